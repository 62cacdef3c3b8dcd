"""Secret references over HTTP. Secrets stored at AWS, Azure and HashiCorp reach the provider and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration import vaults as fakes
from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.integration.vaults import MockSecretStores
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.gateway import Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

CANARIES = (fakes.AWS_SECRET, fakes.ENTRA_SECRET, fakes.VAULT_TOKEN, fakes.VAULT_SECRET_ID)


@pytest.fixture(scope="module")
def vaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSecretStores]:
    fake = MockSecretStores(tmp_path_factory.mktemp("vaults"))
    yield fake
    fake.stop()


@pytest.fixture(scope="module")
def environment_variables(vaults: MockSecretStores) -> Mapping[str, str]:
    return {
        "TLS_CA": str(vaults.ca),
        "TRUSTED_CUSTOM_HOSTS": "127.0.0.1",
        "PENSTOCK_SECRETS_REFRESH_SECONDS": "1",
        # Some authentication methods use roles of the machine itself.
        "PENSTOCK_IDENTITY_ALLOW_PROVIDER_USE": "true",
        "PENSTOCK_SECRETS_AWS_ENDPOINT_URL": vaults.url,
        "PENSTOCK_SECRETS_AZURE_AUTHORITY": vaults.url,
        "AWS_ACCESS_KEY_ID": fakes.AWS_KEY,
        "AWS_SECRET_ACCESS_KEY": fakes.AWS_SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        # The machine's own token, which must not be disclosed.
        "VAULT_TOKEN": "hvs.of-the-machine",
    }


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Secrets"})


@pytest.fixture(scope="module")
def app(admin: Client, workspace: dict[str, Any]) -> Client:
    return admin.with_new_key(workspace_id=workspace["id"], scopes=["completions.write"])


def aws_reference(**more: object) -> dict[str, Any]:
    auth = {
        "aws_auth_type": "accessKey",
        "aws_access_key_id": fakes.AWS_KEY,
        "aws_secret_access_key": fakes.AWS_SECRET,
        "aws_region": "eu-west-1",
    }
    return {"name": "My Secret", "manager_type": "aws_sm", "auth_config": auth, "secret_path": "a/b", **more}


def auth_cases(vaults: MockSecretStores) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Returns for each authentication method the secret manager's type, its auth config, and a secret path."""
    azure = {"azure_vault_url": vaults.url, "azure_entra_tenant_id": "tenant", "azure_entra_client_id": "client"}
    vault = {"vault_addr": vaults.url}
    role = {"aws_role_arn": "arn:aws:iam::1:role/r", "aws_external_id": "xy", "aws_region": "eu-west-1"}
    return {
        "accessKey": ("aws_sm", aws_reference()["auth_config"], "prod/key"),
        "assumedRole": ("aws_sm", {"aws_auth_type": "assumedRole", **role}, "prod/key"),
        "serviceRole": ("aws_sm", {"aws_auth_type": "serviceRole", "aws_region": "eu-west-1"}, "prod/key"),
        "entra": (
            "azure_kv",
            {"azure_auth_mode": "entra", "azure_entra_client_secret": fakes.ENTRA_SECRET, **azure},
            "azure-key",
        ),
        "token": (
            "hashicorp_vault",
            {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, **vault},
            "secret/data/app",
        ),
        "approle": (
            "hashicorp_vault",
            {"vault_auth_type": "approle", "vault_role_id": "role", "vault_secret_id": fakes.VAULT_SECRET_ID, **vault},
            "secret/app",
        ),
        "narrow": (
            "hashicorp_vault",
            {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, **vault},
            "versioned/app",
        ),
    }


def credential_if_used(client: Client, provider: Mock, slug: str, expected: str) -> str | None:
    """Sends a request; returns the credential that reached the provider if it is the wanted one, otherwise `None`."""
    provider.clear_ledger()
    headers = {"x-gateway-api-key": client.key, "content-type": "application/json", "x-gateway-provider": f"@{slug}"}
    if send_raw_request(client.gateway.base_url, CHAT_PATH, chat_body(), headers).status != 200:
        return None
    sent = provider.ledger()[-1]["headers"].get("authorization")
    return sent if sent == f"Bearer {expected}" else None


def test_every_field_is_read_back_without_secrets(admin: Client, workspace: dict[str, Any]):
    body = aws_reference(
        slug="whole", description="d", secret_key="k", tags={"team": "red"}, allowed_workspaces=[workspace["slug"]]
    )
    secret_reference = admin.create("/v1/secret-references", body)
    assert (secret_reference["slug"], secret_reference["object"]) == ("whole", "secret-reference")
    fetched = admin.read("/v1/secret-references/whole")
    assert fetched == admin.read(f"/v1/secret-references/{secret_reference['id']}")
    same = {
        name: body[name]
        for name in ("name", "slug", "description", "manager_type", "secret_path", "secret_key", "tags")
    }
    assert same.items() <= fetched.items()
    access = admin.read(f"/v1/secret-references/{fetched['id']}/workspaces")
    assert (fetched["status"], fetched["allow_all_workspaces"], access["allowed_workspaces"]) == (
        "ACTIVE",
        False,
        [workspace["id"]],
    )
    assert fetched["auth_config"] == {**body["auth_config"], "aws_secret_access_key": "aw*****789"}
    for query in ("search=SECRET", "search=whole", "manager_type=aws_sm&tags=team:red", "page_size=1&current_page=0"):
        assert "whole" in [row["slug"] for row in admin.read(f"/v1/secret-references?{query}")["data"]], query
    for query in ("search=none", "manager_type=azure_kv", "tags=team:blue"):
        assert admin.read(f"/v1/secret-references?{query}")["total"] == 0, query
    expect_error(admin.get("/v1/secret-references?page_size=101"), 400, "AB01", "page_size")


def test_update_is_merged_and_keeps_masked_values(admin: Client):
    slug = admin.create("/v1/secret-references", aws_reference())["slug"]
    path = f"/v1/secret-references/{slug}"
    masked = {"aws_secret_access_key": "aw*****789"}
    assert expect_ok(admin.put(path, {"auth_config": masked, "description": "new"})) == {}
    # A change of the region requires the secret again.
    workspace = "auth_config.aws_secret_access_key"
    expect_error(admin.put(path, {"auth_config": {**masked, "aws_region": "us-east-1"}}), 400, "AB01", workspace)
    clear = {name: aws_reference()["auth_config"][name] for name in masked}
    assert expect_ok(admin.put(path, {"auth_config": {**clear, "aws_region": "us-east-1"}})) == {}
    fetched = admin.read(path)
    assert (fetched["auth_config"]["aws_region"], fetched["description"]) == ("us-east-1", "new")
    assert fetched["auth_config"]["aws_secret_access_key"] == "aw*****789"
    expect_ok(admin.put(path, {"auth_config": {"aws_auth_type": "serviceRole"}}))
    assert admin.read(path)["auth_config"] == {"aws_auth_type": "serviceRole", "aws_region": "us-east-1"}
    expect_error(admin.put(path, {"auth_config": {"aws_auth_type": "accessKey"}}), 400, "AB01", "aws_access_key_id")
    expect_error(admin.put(path, {"manager_type": "azure_kv"}), 400, "AB01", "manager_type")
    expect_ok(admin.put(path, {"name": "n", "secret_path": "p", "secret_key": None, "tags": {"a": "b"}}))
    fetched = admin.read(path)
    assert (fetched["name"], fetched["secret_path"], fetched["secret_key"], fetched["tags"]) == (
        "n",
        "p",
        None,
        {"a": "b"},
    )


def test_access_is_either_for_all_or_for_listed_workspaces(admin: Client, workspace: dict[str, Any]):
    both = aws_reference(allow_all_workspaces=True, allowed_workspaces=[workspace["id"]])
    expect_error(admin.post("/v1/secret-references", both), 400, "AB01", "allowed_workspaces")
    expect_error(
        admin.post("/v1/secret-references", aws_reference(allowed_workspaces=[])), 400, "AB01", "allowed_workspaces"
    )
    expect_error(admin.post("/v1/secret-references", aws_reference(allowed_workspaces=["none"])), 404, "AB02", "none")
    slug = admin.create("/v1/secret-references", aws_reference(allowed_workspaces=[workspace["id"]]))["slug"]
    mapping = {"secret_mappings": [{"target_field": "key", "secret_reference_id": slug}]}
    body = {"name": "i", "ai_provider_id": "mock", **mapping}
    other = admin.create("/v1/workspaces", {"name": "o"})["id"]
    expect_error(admin.post("/v1/integrations", body), 404, "AB02", "secret_mappings[0].secret_reference_id")
    expect_error(admin.post("/v1/integrations", {**body, "workspace_id": other}), 404, "AB02", "secret_mappings")
    expect_ok(admin.put(f"/v1/secret-references/{slug}", {"allow_all_workspaces": True}))
    assert admin.read(f"/v1/secret-references/{slug}/workspaces")["allowed_workspaces"] == []
    duplicate = {"secret_mappings": mapping["secret_mappings"] * 2}
    expect_error(admin.post("/v1/integrations", {**body, **duplicate}), 400, "AB01", "secret_mappings[1].target_field")
    admin.create("/v1/integrations", body)


@pytest.mark.parametrize(
    "auth_kind", ["accessKey", "assumedRole", "serviceRole", "entra", "token", "approle", "narrow"]
)
def test_a_secret_is_fetched_used_and_refreshed(
    admin: Client, workspace: dict[str, Any], app: Client, vaults: MockSecretStores, provider: Mock, auth_kind: str
):
    kind, auth, path = auth_cases(vaults)[auth_kind]

    def store_secret(text: str) -> None:
        vaults.kept |= {"prod/key": text, "azure-key": text}
        vaults.kept |= dict.fromkeys(("secret/app", "versioned/app"), json.dumps({"api_key": text}))

    store_secret(f"sk-first-{auth_kind}-0123456789")
    reference = {"name": auth_kind, "manager_type": kind, "auth_config": auth, "secret_path": path}
    secret_reference = admin.create("/v1/secret-references", reference)
    mapping = [{"target_field": "key", "secret_reference_id": secret_reference["id"]}]
    slug = f"by-{auth_kind}".lower()
    body = {
        "name": auth_kind,
        "slug": slug,
        "ai_provider_id": "mock",
        "workspace_id": workspace["id"],
        "secret_mappings": mapping,
    }
    admin.create("/v1/integrations", body)
    fetched = admin.read(f"/v1/integrations/{slug}")
    assert fetched["secret_mappings"][0]["secret_reference_id"] == secret_reference["id"]
    assert fetched["masked_key"] is None
    wait_for("the secret", lambda: credential_if_used(app, provider, slug, f"sk-first-{auth_kind}-0123456789"), 10)
    store_secret(f"sk-second-{auth_kind}-0123456789")
    wait_for("the new secret", lambda: credential_if_used(app, provider, slug, f"sk-second-{auth_kind}-0123456789"), 10)
    expect_error(admin.delete(f"/v1/secret-references/{secret_reference['id']}"), 409, "AB07", slug)
    expect_ok(admin.delete(f"/v1/integrations/{slug}"))
    assert expect_ok(admin.delete(f"/v1/secret-references/{secret_reference['id']}")) == {}
    expect_error(admin.get(f"/v1/secret-references/{secret_reference['id']}"), 404, "AB08")


def test_secret_field_fills_an_option_and_survives_an_outage(
    admin: Client, workspace: dict[str, Any], app: Client, vaults: MockSecretStores, provider: Mock
):
    vaults.kept["plain/all"] = json.dumps({"key": "sk-part-0123456789", "organisation": "org-secret", "n": 1})
    auth = {
        "vault_auth_type": "token",
        "vault_token": fakes.VAULT_TOKEN,
        "vault_addr": vaults.url,
        "vault_namespace": "ns",
    }
    reference = {"name": "parts", "slug": "parts", "manager_type": "hashicorp_vault", "auth_config": auth}
    admin.create("/v1/secret-references", {**reference, "secret_path": "plain/all", "secret_key": "key"})
    mappings = [
        {"target_field": "key", "secret_reference_id": "parts"},
        {"target_field": "configurations.custom_host", "secret_reference_id": "parts", "secret_key": "host"},
    ]
    body = {"name": "vk", "slug": "parted", "provider": "mock", "workspace_id": workspace["id"]}
    admin.create("/v1/virtual-keys", {**body, "secret_mappings": mappings[:1]})
    assert admin.read("/v1/virtual-keys/parted")["secret_mappings"][0]["target_field"] == "key"
    wait_for("the part", lambda: credential_if_used(app, provider, "parted", "sk-part-0123456789"), 10)
    assert ("vault", "ns plain/all") in vaults.received_requests
    # A missing field is not replaced by a default: the provider is left out of the snapshot.
    expect_ok(admin.put("/v1/virtual-keys/parted", {"secret_mappings": mappings}))
    wait_for("its end", lambda: credential_if_used(app, provider, "parted", "sk-part-0123456789") is None or None, 10)
    expect_ok(admin.put("/v1/virtual-keys/parted", {"secret_mappings": mappings[:1]}))
    wait_for("the part", lambda: credential_if_used(app, provider, "parted", "sk-part-0123456789"), 10)
    vaults.away = True
    try:
        admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["id"]})
        wait_for("a refused refresh", lambda: "secret 'parts'" in admin.gateway.program.read_output() or None, 10)
        assert credential_if_used(app, provider, "parted", "sk-part-0123456789")
    finally:
        vaults.away = False


def test_provider_stays_usable_while_its_key_is_remapped(
    admin: Client, workspace: dict[str, Any], app: Client, vaults: MockSecretStores, provider: Mock
):
    auth = {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, "vault_addr": vaults.url}
    location = {"name": "soon", "manager_type": "hashicorp_vault", "auth_config": auth}
    body = {"name": "used", "slug": "used", "provider": "mock", "key": "sk-of-before", "workspace_id": workspace["id"]}
    admin.create("/v1/virtual-keys", body)
    wait_for("the key", lambda: credential_if_used(app, provider, "used", "sk-of-before"), 3)
    for turn in range(3):
        secret = f"sk-mapped-{turn}-0123456789"
        vaults.kept[f"plain/{turn}"] = json.dumps({"key": secret})
        reference = admin.create("/v1/secret-references", {**location, "secret_path": f"plain/{turn}"})["id"]
        mapping = {"target_field": "key", "secret_reference_id": reference}
        expect_ok(admin.put("/v1/virtual-keys/used", {"secret_mappings": [mapping]}))
        assert credential_if_used(app, provider, "used", secret)


def test_single_field_of_a_secret_needs_no_name(
    admin: Client, workspace: dict[str, Any], app: Client, vaults: MockSecretStores, provider: Mock
):
    vaults.kept["plain/one"] = json.dumps({"password": "sk-sole-0123456789"})
    auth = {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, "vault_addr": vaults.url}
    target_workspace = {"manager_type": "hashicorp_vault", "auth_config": auth, "secret_path": "plain/one"}
    names = admin.create("/v1/secret-references", {"name": "sole", **target_workspace, "secret_key": "password"})["id"]
    unnamed = admin.create("/v1/secret-references", {"name": "sole", **target_workspace})["id"]
    for slug, mapping in (
        ("sole-of-reference", {"secret_reference_id": names}),
        ("sole-of-mapping", {"secret_reference_id": unnamed, "secret_key": "password"}),
        ("sole-of-nobody", {"secret_reference_id": unnamed}),
    ):
        mappings = [{"target_field": "key", **mapping}]
        body = {"name": slug, "slug": slug, "provider": "mock", "workspace_id": workspace["id"]}
        admin.create("/v1/virtual-keys", {**body, "secret_mappings": mappings})
        wait_for(slug, lambda slug=slug: credential_if_used(app, provider, slug, "sk-sole-0123456789"), 10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"manager_type": "gcp"}, "manager_type"),
        ({"auth_config": {"aws_auth_type": "none"}}, "auth_config.aws_auth_type"),
        ({"auth_config": {"aws_auth_type": "serviceRole", "colour": "red"}}, "auth_config.colour"),
        ({"auth_config": {"aws_auth_type": "assumedRole", "aws_region": "r"}}, "aws_role_arn"),
        ({"secret_path": ""}, "secret_path"),
        ({"slug": "a b"}, "slug"),
        ({"name": ""}, "name"),
    ],
)
def test_rejects_invalid_fields(admin: Client, change: dict[str, Any], words: str):
    expect_error(admin.post("/v1/secret-references", aws_reference(**change)), 400, "AB01", words)


def test_workspace_keys_cannot_list_secret_references(admin: Client, workspace: dict[str, Any]):
    inside = admin.with_new_key(workspace_id=workspace["id"], scopes=["workspace_integrations.read"])
    expect_error(inside.get("/v1/secret-references"), 403, "AB03", "secret_references.list")


def test_auth_secrets_appear_in_no_file_and_no_response(admin: Client):
    """Runs last, because it searches all files that this module's gateway has written."""
    rows = admin.read("/v1/secret-references?page_size=100")["data"]
    responses = [admin.read(f"/v1/secret-references/{row['slug']}") for row in rows]
    assert responses
    for canary in CANARIES:
        assert canary not in json.dumps(responses)
        for path in (path for path in Path(admin.gateway.folder).rglob("*") if path.is_file()):
            assert canary.encode() not in path.read_bytes(), (canary, path)
