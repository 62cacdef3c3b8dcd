"""Secrets in AWS Secrets Manager, simulated by moto: by name and ARN, as a whole and by field, with roles, and after
rotation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import httpx2
import pytest

from tests.integration.amazon import run_moto
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.gateway import Mock
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

REGION = "eu-west-1"
AWS_CREDENTIALS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "aws-canary-0123456789"}
ROLE_ARN = "arn:aws:iam::123456789012:role/reader-of-secrets"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the URL of a moto server."""
    with run_moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="module")
def environment_variables(aws: str) -> Mapping[str, str]:
    own = {name.upper(): value for name, value in AWS_CREDENTIALS.items()}
    # One authentication method uses roles of the machine itself.
    borrowed = {"PENSTOCK_IDENTITY_ALLOW_PROVIDER_USE": "true"}
    return {"PENSTOCK_SECRETS_REFRESH_SECONDS": "1", "PENSTOCK_SECRETS_AWS_ENDPOINT_URL": aws, **own, **borrowed}


@pytest.fixture(scope="module")
def secrets_manager(aws: str, admin: Client) -> Any:
    """Returns a Secrets Manager client; its store is emptied for each gateway."""
    assert admin
    httpx2.post(f"{aws}/moto-api/reset").raise_for_status()
    return boto3.client("secretsmanager", region_name=REGION, endpoint_url=aws, **AWS_CREDENTIALS)


@pytest.mark.parametrize(
    ("auth", "by_arn", "part"),
    [
        ({"aws_auth_type": "accessKey", **AWS_CREDENTIALS}, False, None),
        ({"aws_auth_type": "accessKey", **AWS_CREDENTIALS}, True, "api_key"),
        ({"aws_auth_type": "serviceRole"}, True, None),
        ({"aws_auth_type": "assumedRole", "aws_role_arn": ROLE_ARN}, False, "api_key"),
    ],
)
def test_stored_and_rotated_secrets_reach_the_provider(
    admin: Client,
    secrets_manager: Any,
    provider: Mock,
    auth: dict[str, str],
    *,
    by_arn: bool,
    part: str | None,
):
    name = f"{auth['aws_auth_type']}-{'part' if part else 'whole'}-{'arn' if by_arn else 'name'}".lower()

    def secret_text(secret: str) -> str:
        return json.dumps({part: secret, "other": "x"}) if part else secret

    arn = secrets_manager.create_secret(Name=f"prod/{name}", SecretString=secret_text(f"sk-first-{name}"))["ARN"]
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    reference = {"name": name, "manager_type": "aws_sm", "auth_config": {"aws_region": REGION, **auth}}
    secret_reference = admin.create(
        "/v1/secret-references", {**reference, "secret_path": arn if by_arn else f"prod/{name}", "secret_key": part}
    )
    mapping = [{"target_field": "key", "secret_reference_id": secret_reference["id"]}]
    own = {"name": name, "slug": name, "ai_provider_id": "mock", "workspace_id": workspace}
    admin.create("/v1/integrations", {**own, "secret_mappings": mapping})
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key

    def is_secret_used(secret: str) -> bool | None:
        headers = {"x-gateway-api-key": key, "x-gateway-provider": f"@{name}", "content-type": "application/json"}
        response = send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers)
        if response.status != 200:
            return None
        return provider.ledger()[-1]["headers"].get("authorization") == f"Bearer {secret}" or None

    wait_for("the secret", lambda: is_secret_used(f"sk-first-{name}"), 10)
    secrets_manager.put_secret_value(SecretId=arn, SecretString=secret_text(f"sk-second-{name}"))
    wait_for("the new secret", lambda: is_secret_used(f"sk-second-{name}"), 10)
