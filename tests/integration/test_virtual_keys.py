"""Virtual keys and providers over HTTP. Their credentials are sent to their provider and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

CANARY_KEY = "sk-canary-0123456789abcdef"
MASKED_KEY = "sk*****def"


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/admin/workspaces", {"name": "Virtual"})["id"]


@pytest.fixture(scope="module")
def app(admin: Client, workspace: str) -> Client:
    return admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])


@pytest.fixture
def body(workspace: str) -> dict[str, Any]:
    return {"name": "My Mock", "provider": "mock", "key": CANARY_KEY, "note": "n", "workspace_id": workspace}


def chat_status(client: Client, **headers: str) -> int:
    sent = {"x-gateway-api-key": client.key, "content-type": "application/json", **headers}
    return send_raw_request(client.gateway.base_url, CHAT_PATH, chat_body(), sent).status


def test_reads_a_virtual_key_without_its_credential(admin: Client, workspace: str, body: dict[str, Any]):
    limits = {
        "usage_limits": {"type": "cost", "credit_limit": 5},
        "rate_limits": {"type": "requests", "unit": "rpm", "value": 3},
        "expires_at": "2099-01-01T00:00:00Z",
    }
    virtual_key = admin.create("/v1/virtual-keys", {**body, **limits})
    assert virtual_key["success"] is True
    assert virtual_key["data"] == {"slug": virtual_key["slug"]}
    fetched = admin.read(f"/v1/virtual-keys/{virtual_key['slug']}")
    assert (fetched["key"], fetched["masked_api_key"], fetched["object"]) == ("", MASKED_KEY, "virtual-key")
    assert (fetched["provider"], fetched["note"], fetched["workspace_id"]) == ("mock", "n", workspace)
    assert fetched["rate_limits"] == [limits["rate_limits"]]
    assert fetched["expires_at"] == "2099-01-01T00:00:00.000Z"
    listed = admin.read(f"/v1/virtual-keys?workspace_id={workspace}&page_size=50&current_page=0")
    assert fetched in listed["data"]
    assert admin.read(f"/v1/providers/{virtual_key['id']}")["integration_id"] == fetched["integration_id"]


def test_requests_use_the_credential_of_their_workspace_by_slug(
    admin: Client, app: Client, workspace: str, body: dict[str, Any], provider: Mock
):
    slug = admin.create("/v1/virtual-keys", body)["slug"]
    other_client = admin.with_new_key(
        workspace_id=admin.create("/v1/workspaces", {"name": "s"})["id"], scopes=["completions.write"]
    )
    wait_for("the key", lambda: chat_status(app, **{"x-gateway-virtual-key": slug}) == 200 or None, 2)
    assert chat_status(app, **{"x-gateway-provider": f"@{slug}"}) == 200
    assert {entry["headers"]["authorization"] for entry in provider.ledger()} == {f"Bearer {CANARY_KEY}"}
    provider.clear_ledger()
    wait_for("the other key", lambda: chat_status(other_client, **{"x-gateway-provider": "mock"}) == 200 or None, 2)
    provider.clear_ledger()
    assert chat_status(other_client, **{"x-gateway-virtual-key": slug}) in {400, 404}
    assert chat_status(other_client, **{"x-gateway-provider": f"@{slug}"}) in {400, 404}
    config = admin.create("/v1/configs", {"name": "c", "config": {"provider": f"@{slug}"}, "workspace_id": workspace})[
        "slug"
    ]
    wait_for("the config", lambda: chat_status(app, **{"x-gateway-config": config}) == 200 or None, 2)
    provider.clear_ledger()
    assert chat_status(other_client, **{"x-gateway-config": config}) in {400, 404}
    assert not provider.ledger()


def test_masked_credential_in_an_update_changes_nothing(
    admin: Client, app: Client, body: dict[str, Any], provider: Mock
):
    slug = admin.create("/v1/virtual-keys", body)["slug"]
    path = f"/v1/virtual-keys/{slug}"
    changed = expect_ok(admin.put(path, {"name": "Renamed", "key": MASKED_KEY, "note": None, "reset_usage": True}))
    assert changed["slug"] == slug
    fetched = admin.read(path)
    assert (fetched["name"], fetched["note"], fetched["masked_api_key"]) == ("Renamed", None, MASKED_KEY)
    assert fetched["last_reset_at"]
    wait_for("the key", lambda: chat_status(app, **{"x-gateway-virtual-key": slug}) == 200 or None, 2)
    assert provider.ledger()[-1]["headers"]["authorization"] == f"Bearer {CANARY_KEY}"
    expect_ok(admin.put(path, {"key": "sk-other-9876543210"}))

    def uses_other_credential() -> bool | None:
        chat_status(app, **{"x-gateway-virtual-key": slug})
        return provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-other-9876543210" or None

    wait_for("the other credential", uses_other_credential, 2)


def test_slug_shared_by_workspaces_requires_the_workspace_id(admin: Client, workspace: str, body: dict[str, Any]):
    other = admin.create("/v1/workspaces", {"name": "another"})["id"]
    created = {
        target_workspace: admin.create("/v1/virtual-keys", {**body, "slug": "shared", "workspace_id": target_workspace})
        for target_workspace in (workspace, other)
    }
    alone = admin.create("/v1/virtual-keys", body)["slug"]
    for path in ("/v1/providers", "/v1/virtual-keys"):
        for response in (admin.get(f"{path}/shared"), admin.put(f"{path}/shared", {}), admin.delete(f"{path}/shared")):
            expect_error(response, 400, "AB01", "workspace_id", "several workspaces")
        for target_workspace, item in created.items():
            assert admin.read(f"{path}/shared?workspace_id={target_workspace}")["workspace_id"] == target_workspace
            assert admin.read(f"{path}/{item['id']}")["workspace_id"] == target_workspace
            expect_ok(admin.put(f"{path}/shared?workspace_id={target_workspace}", {"note": target_workspace}))
        assert admin.read(f"{path}/{alone}")["workspace_id"] == workspace
    expect_ok(admin.delete(f"/v1/providers/shared?workspace_id={other}"))
    assert admin.read("/v1/providers/shared")["note"] == workspace


def test_empty_key_in_an_update_keeps_the_credential(admin: Client, body: dict[str, Any]):
    virtual_key = admin.create("/v1/virtual-keys", body)
    path = f"/v1/virtual-keys/{virtual_key['slug']}"
    before = admin.read(path)["masked_api_key"]
    expect_ok(admin.put(path, {"key": admin.read(path)["key"], "name": "changed"}))
    assert admin.read(path)["masked_api_key"] == before


def test_deleting_a_virtual_key_removes_its_credential(admin: Client, app: Client, body: dict[str, Any]):
    virtual_key = admin.create("/v1/virtual-keys", body)
    wait_for("the key", lambda: chat_status(app, **{"x-gateway-virtual-key": virtual_key["slug"]}) == 200 or None, 2)
    assert expect_ok(admin.delete(f"/v1/virtual-keys/{virtual_key['slug']}")) == {}
    wait_for("its end", lambda: chat_status(app, **{"x-gateway-virtual-key": virtual_key["slug"]}) != 200 or None, 2)
    expect_error(admin.get(f"/v1/virtual-keys/{virtual_key['id']}"), 404, "AB08")


def test_azure_fields_keep_their_names(admin: Client, body: dict[str, Any]):
    azure = {
        "apiVersion": "2024-06-01",
        "resourceName": "res",
        "deploymentConfig": [{"apiVersion": "2024-06-01", "deploymentName": "d", "alias": "gpt", "is_default": True}],
    }
    virtual_key = admin.create(
        "/v1/virtual-keys", {**body, **azure, "model_config": {"custom_host": "https://x.test/v1"}}
    )
    fetched = admin.read(f"/v1/virtual-keys/{virtual_key['slug']}")["model_config"]
    assert fetched == {**azure, "custom_host": "https://x.test/v1"}
    path = f"/v1/virtual-keys/{virtual_key['slug']}"

    def update_model_config(**change: object) -> dict[str, Any]:
        expect_ok(admin.put(path, {"key": body["key"], **change}))
        return admin.read(path)["model_config"]

    other = [{**azure["deploymentConfig"][0], "alias": "other"}]
    assert update_model_config(deploymentConfig=other) == {**fetched, "deploymentConfig": other}
    without = {name: value for name, value in fetched.items() if name != "deploymentConfig"}
    assert update_model_config(deploymentConfig=None) == without
    # `model_config` replaces the whole object, as a config file does.
    assert update_model_config(model_config={"resourceName": "res"}) == {"resourceName": "res"}
    assert update_model_config(model_config={}, deploymentConfig=other) == {"deploymentConfig": other}
    assert update_model_config(model_config={}) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": None}, "name"),
        ({"provider": "nobody"}, "provider"),
        ({"key": "a\nb"}, "key"),
        ({"slug": "a b"}, "slug"),
        ({"model_config": {"custom_host": "ftp://x"}}, "model_config.custom_host"),
        ({"model_config": {"custom_host": "https://x.test/v1#part"}}, "model_config.custom_host"),
        ({"model_config": {"awsSecretAccessKey": "canary"}}, "model_config.awsSecretAccessKey"),
        ({"model_config": {"azure_deployment_config": "x"}}, "model_config.azure_deployment_config"),
        ({"model_config": {"deploymentConfig": "x"}}, "model_config"),
        ({"workspace_id": None}, "workspace_id"),
        ({"deploymentConfig": [{"alias": "x"}]}, "apiVersion"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_rejects_an_invalid_virtual_key(admin: Client, body: dict[str, Any], change: dict[str, Any], words: str):
    sent = {name: value for name, value in {**body, **change}.items() if value is not None}
    expect_error(admin.post("/v1/virtual-keys", sent), 400, "AB01", words)


@pytest.mark.parametrize(("name", "known"), [("open-ai", "openai"), ("hugging-face", "huggingface")])
def test_accepts_older_provider_names(admin: Client, body: dict[str, Any], name: str, known: str):
    virtual_key = admin.create("/v1/virtual-keys", {**body, "provider": name, "slug": f"older-{known}"})
    path = f"/v1/virtual-keys/{virtual_key['slug']}?workspace_id={body['workspace_id']}"
    assert admin.read(path)["provider"] == known


def test_limits_may_only_alert_and_use_provider_units(admin: Client, body: dict[str, Any]):
    alert = {"type": "cost", "alert_threshold": 5}
    virtual_key = admin.create("/v1/virtual-keys", {**body, "slug": "warned", "usage_limits": alert})
    path = f"/v1/virtual-keys/{virtual_key['slug']}?workspace_id={body['workspace_id']}"
    assert admin.read(path)["usage_limits"]["credit_limit"] is None
    expect_error(admin.put(path, {"usage_limits": {"type": "cost"}}), 400, "AB01", "usage_limits.credit_limit")
    fast = {"type": "requests", "unit": "rps", "value": 1}
    expect_error(admin.put(path, {"rate_limits": fast}), 400, "AB01", "rate_limits[0].unit", "rpm, rph, rpd, rpw")


def test_slug_is_unique_within_a_workspace(admin: Client, body: dict[str, Any]):
    admin.create("/v1/virtual-keys", {**body, "slug": "mine"})
    expect_error(admin.post("/v1/virtual-keys", {**body, "slug": "mine"}), 409, "AB07")
    elsewhere = admin.create("/v1/workspaces", {"name": "e"})["id"]
    assert admin.create("/v1/virtual-keys", {**body, "slug": "mine", "workspace_id": elsewhere})["slug"] == "mine"


def test_creates_updates_and_deletes_a_provider_of_an_integration(
    admin: Client, app: Client, workspace: str, body: dict[str, Any]
):
    own = {"name": "Inner", "ai_provider_id": "mock", "key": CANARY_KEY, "workspace_id": workspace}
    integration = admin.create("/v1/integrations", own)["slug"]
    brought = admin.create("/v1/virtual-keys", body)["slug"]
    hidden = admin.read(f"/v1/virtual-keys/{brought}")["integration_id"]
    fields = {"name": "Second", "integration_id": integration, "workspace_id": workspace, "note": "x"}
    # The hidden integration of a virtual key cannot be shared, because the limits of the virtual key apply to its
    # credential.
    expect_error(admin.post("/v1/providers", {**fields, "integration_id": hidden}), 404, "AB02", "integration_id")
    provider = admin.create("/v1/providers", {**fields, "usage_limits": {"type": "tokens", "credit_limit": 100}})
    assert (provider["slug"], provider["object"]) == ("second", "provider")
    fetched = admin.read(f"/v1/providers/{provider['slug']}?workspace_id={workspace}")
    assert (fetched["name"], fetched["note"], fetched["integration_id"]) == ("Second", "x", integration)
    assert fetched["usage_limits"]["credit_limit"] == 100
    wait_for("the provider", lambda: chat_status(app, **{"x-gateway-provider": "@second"}) == 200 or None, 2)
    changed = expect_ok(admin.put("/v1/providers/second", {"name": "Third", "note": None, "reset_usage": True}))
    assert changed == provider
    fetched = admin.read("/v1/providers/second")
    assert (fetched["name"], fetched["note"], bool(fetched["last_reset_at"])) == ("Third", None, True)
    assert admin.read(f"/v1/providers?workspace_id={workspace}&page_size=1&current_page=0")["total"] >= 1
    assert expect_ok(admin.delete("/v1/providers/second")) == {}
    expect_error(admin.get("/v1/providers/second"), 404, "AB08")
    assert admin.create("/v1/providers", fields)["slug"] == "second"


def test_integration_of_another_workspace_is_not_found(admin: Client, body: dict[str, Any]):
    virtual_key = admin.create("/v1/virtual-keys", body)
    own = {"name": "Its", "ai_provider_id": "mock", "key": CANARY_KEY, "workspace_id": body["workspace_id"]}
    integration = admin.create("/v1/integrations", own)["slug"]
    elsewhere = admin.create("/v1/workspaces", {"name": "e"})["id"]
    fields = {"name": "Stolen", "integration_id": integration, "workspace_id": elsewhere}
    expect_error(admin.post("/v1/providers", fields), 404, "AB02", "integration_id")
    inside = admin.with_new_key(
        workspace_id=elsewhere, scopes=["virtual_keys.read", "virtual_keys.update", "virtual_keys.delete"]
    )
    for response in (
        inside.get(f"/v1/virtual-keys/{virtual_key['slug']}"),
        inside.put(f"/v1/virtual-keys/{virtual_key['id']}", {"key": "sk-mine-0123456789"}),
        inside.delete(f"/v1/virtual-keys/{virtual_key['id']}"),
    ):
        expect_error(response, 404, "AB08")


def test_credential_is_in_no_file_and_no_response(admin: Client, body: dict[str, Any]):
    """Runs last, because it searches everything that this file's gateway has written."""
    virtual_key = admin.create("/v1/virtual-keys", body)
    responses = [admin.read(f"/v1/virtual-keys/{virtual_key['slug']}"), admin.read("/v1/virtual-keys?page_size=1000")]
    assert CANARY_KEY not in json.dumps(responses)
    wait_for("the kept snapshot", lambda: (Path(admin.gateway.folder) / "penstock.snapshot").exists() or None, 3)
    written = [path for path in Path(admin.gateway.folder).rglob("*") if path.is_file()]
    names = {path.name for path in written}
    assert {"penstock.snapshot", "gateway.log"} <= names
    for path in written:
        content = path.read_bytes()
        assert CANARY_KEY.encode() not in content, path
        assert admin.key.encode() not in content, path
    # Only an embedded database stores its master key in this folder.
    for name in {"penstock.key", "penstock.snapshot"} & names:
        assert oct((Path(admin.gateway.folder) / name).stat().st_mode & 0o777) == "0o600"
