"""AWS Secrets Manager backend."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.fetch import Fetcher
    from penstock.settings import Settings

ROLE_SESSION_NAME = "penstock"


async def fetch(settings: Settings, _fetcher: Fetcher, auth: Mapping[str, Any], path: str) -> str:
    """Returns the text of a secret by name or ARN. Binary secrets are decoded as UTF-8.

    Does not check addresses: a tenant chooses only the region, and the library accepts only one label of an AWS host
    name as region.
    """
    async with AsyncExitStack() as stack:
        keys = await _credentials(settings, auth, stack)
        client = await _create_client("secretsmanager", settings, auth, keys, stack)
        secret_value = await client.get_secret_value(SecretId=path)
    text = secret_value.get("SecretString")
    return text if text is not None else secret_value["SecretBinary"].decode()


async def _credentials(settings: Settings, auth: Mapping[str, Any], stack: AsyncExitStack) -> dict[str, str]:
    """Returns the credentials of the auth config. They are empty for `serviceRole`, which uses the machine's own
    identity.
    """
    if auth["aws_auth_type"] == "accessKey":
        return {
            "aws_access_key_id": auth["aws_access_key_id"],
            "aws_secret_access_key": auth["aws_secret_access_key"],
        }
    if auth["aws_auth_type"] == "serviceRole":
        return {}
    request = {"RoleArn": auth["aws_role_arn"], "RoleSessionName": ROLE_SESSION_NAME}
    if auth.get("aws_external_id"):
        request["ExternalId"] = auth["aws_external_id"]
    client = await _create_client("sts", settings, auth, {}, stack)
    credentials = (await client.assume_role(**request))["Credentials"]
    return {
        "aws_access_key_id": credentials["AccessKeyId"],
        "aws_secret_access_key": credentials["SecretAccessKey"],
        "aws_session_token": credentials["SessionToken"],
    }


async def _create_client(
    service: str, settings: Settings, auth: Mapping[str, Any], keys: dict[str, str], stack: AsyncExitStack
) -> Any:  # noqa: ANN401 - client classes are generated at runtime
    seconds = settings.secrets.fetch_ms / 1000
    config = AioConfig(connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 2})
    # The library generates client classes from service descriptions at runtime, so they have no static types.
    session: Any = AioSession()
    opening = session.create_client(
        service,
        region_name=auth.get("aws_region"),
        endpoint_url=settings.secrets.aws_endpoint_url or None,
        verify=settings.upstream.tls_ca or None,
        config=config,
        **keys,
    )
    return await stack.enter_async_context(opening)
