"""Integrations over HTTP: field round trips, workspace access, and their use on the data plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, Response, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

CANARY = "sk-canary-integration-0123456789"
HEADER_CANARY = "header-canary-0123456789"
MASKED_KEY = "sk*****789"
# Custom hosts in these tests are on this machine.
TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Integrations"})


@pytest.fixture(scope="module")
def other_workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Other"})


@pytest.fixture(scope="module")
def app(admin: Client, workspace: dict[str, Any]) -> Client:
    return admin.with_new_key(workspace_id=workspace["id"], scopes=["completions.write"])


@pytest.fixture(scope="module")
def other_app(admin: Client, other_workspace: dict[str, Any]) -> Client:
    return admin.with_new_key(workspace_id=other_workspace["id"], scopes=["completions.write"])


@pytest.fixture
def body() -> dict[str, Any]:
    return {"name": "My Mock", "ai_provider_id": "mock", "key": CANARY, "description": "d"}


def send_chat(client: Client, model: str = "mock", **headers: str) -> Response:
    sent = {"x-gateway-api-key": client.key, "content-type": "application/json"}
    return send_raw_request(client.gateway.base_url, CHAT_PATH, chat_body(model), {**sent, **headers})


def wait_for_status(client: Client, slug: str, status: int, model: str = "mock") -> None:
    """Waits until requests to a provider return this status."""
    wait_for(
        f"@{slug}", lambda: send_chat(client, model, **{"x-gateway-provider": f"@{slug}"}).status == status or None, 3
    )


def share_integration(admin: Client, slug: str, workspace: dict[str, Any], **more: object) -> None:
    body = {"workspaces": [{"id": workspace["slug"], "enabled": True, **more}]}
    assert expect_ok(admin.put(f"/v1/integrations/{slug}/workspaces", body)) == {}


def test_every_field_is_read_back_without_secrets(admin: Client, workspace: dict[str, Any], body: dict[str, Any]):
    fields = {
        **body,
        "slug": "all-fields",
        "workspace_id": workspace["slug"],
        "configurations": {"custom_host": "https://x.test/v1", "custom_headers": {"x-token": HEADER_CANARY}},
        "pricing_adjustments": {"multiplier": {"default": 1.5, "image": {"default": 2.0}}},
        "tags": {"team": "red"},
        "create_default_provider": False,
    }
    integration = admin.create("/v1/integrations", fields)
    assert (integration["slug"], integration["object"]) == ("all-fields", "integration")
    fetched = admin.read("/v1/integrations/all-fields")
    assert fetched == admin.read(f"/v2/integrations/{integration['id']}")
    same = {name: fields[name] for name in ("name", "description", "ai_provider_id", "tags")}
    assert same.items() <= fetched.items()
    assert fetched["pricing_adjustments"]["multiplier"]["default"] == 1.5
    assert (fetched["masked_key"], fetched["workspace_id"], fetched["type"]) == (
        MASKED_KEY,
        workspace["id"],
        "workspace",
    )
    assert fetched["configurations"] == {
        "custom_host": "https://x.test/v1",
        "custom_headers": {"x-token": "he*****789"},
    }
    assert (fetched["status"], fetched["allow_all_models"], fetched["workspace_count"]) == ("active", True, 1)
    assert fetched["global_workspace_access_settings"]["enabled"] is False
    assert CANARY not in json.dumps(fetched)
    listed = admin.read("/v1/integrations?page_size=100&type=workspace&tags=team:red")
    assert [row["slug"] for row in listed["data"]] == ["all-fields"]
    assert admin.read("/v1/integrations?type=organisation&tags=team:red")["total"] == 0
    assert admin.read(f"/v1/providers?workspace_id={workspace['id']}&page_size=1000")["data"] == []


def test_update_changes_fields_and_keeps_masked_values(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    headers = {"x-token": HEADER_CANARY, "x-plain": "old-value-0123"}
    fields = {"slug": "changed", "workspace_id": workspace["id"], "configurations": {"custom_headers": headers}}
    admin.create("/v1/integrations", {**body, **fields})
    wait_for_status(app, "changed", 200)
    fetched = admin.read("/v1/integrations/changed")
    change = {
        "name": "Renamed",
        "key": fetched["masked_key"],
        "description": None,
        "tags": {"a": "b"},
        "pricing_adjustments": None,
        "configurations": {"custom_headers": {**fetched["configurations"]["custom_headers"], "x-plain": "new-value"}},
    }
    assert expect_ok(admin.put("/v1/integrations/changed", change)) == {}
    after = admin.read("/v1/integrations/changed")
    assert (after["name"], after["description"], after["tags"]) == ("Renamed", None, {"a": "b"})
    assert after["masked_key"] == MASKED_KEY

    def find_updated_headers() -> dict[str, str] | None:
        send_chat(app, **{"x-gateway-provider": "@changed"})
        actual = provider.ledger()[-1]["headers"]
        return actual if actual.get("x-plain") == "new-value" else None

    actual = wait_for("the header field", find_updated_headers, 3)
    assert (actual["authorization"], actual["x-token"]) == (f"Bearer {CANARY}", HEADER_CANARY)


def test_workspace_integration_creates_and_deletes_its_provider(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any]
):
    fields = {**body, "slug": "own", "workspace_id": workspace["id"], "default_provider_slug": "own-provider"}
    admin.create("/v1/integrations", fields)
    wait_for_status(app, "own-provider", 200)
    assert send_chat(other_app, **{"x-gateway-provider": "@own-provider"}).status in {400, 404}
    assert expect_ok(admin.delete("/v1/integrations/own")) == {}
    wait_for_status(app, "own-provider", 400)
    expect_error(admin.get("/v1/integrations/own"), 404, "AB08")
    expect_error(admin.get("/v1/providers/own-provider"), 404, "AB08")
    end = "end_time=2099-01-01T00:00:00Z"
    organisation = admin.read(f"/v1/workspaces/{workspace['id']}")["organisation_id"]
    logs = admin.read(
        f"/v1/audit-logs?start_time=2020-01-01T00:00:00Z&{end}&organisation_id={organisation}&page_size=100"
    )
    actions = {(row["resource_type"], row["action"]) for row in logs["records"]}
    expected = {
        ("integrations", "create"),
        ("integrations", "delete"),
        ("providers", "create"),
        ("providers", "delete"),
    }
    assert expected <= actions
    assert CANARY not in json.dumps(logs)


def test_workspace_in_the_query_owns_what_is_created(admin: Client, workspace: dict[str, Any]):
    body = {"name": "by query", "ai_provider_id": "mock", "key": "k-0123456789", "slug": "by-query"}
    response = admin.post(f"/v1/integrations?workspace_id={workspace['slug']}", body)
    assert response.status == 200, response.body
    assert admin.read("/v1/integrations/by-query")["workspace_id"] == workspace["id"]
    differing = admin.post("/v1/integrations?workspace_id=ws-other", {**body, "workspace_id": workspace["slug"]})
    assert (differing.status, b"is not 'ws-other'" in differing.body) == (400, True)


def test_organisation_integration_is_limited_to_its_workspaces(
    admin: Client,
    workspace: dict[str, Any],
    other_workspace: dict[str, Any],
    app: Client,
    other_app: Client,
    body: dict[str, Any],
):
    admin.create("/v1/integrations", {**body, "slug": "shared"})
    fields = {"name": "p", "slug": "mine", "integration_id": "shared", "workspace_id": other_workspace["id"]}
    expect_error(admin.post("/v1/providers", fields), 404, "AB02", "integration_id")
    limits = {
        "usage_limits": [{"type": "tokens", "credit_limit": 5}],
        "rate_limits": [{"type": "requests", "unit": "rpd", "value": 7}],
    }
    share_integration(admin, "shared", workspace, **limits, default_provider_slug="given")
    wait_for_status(app, "given", 200)
    assert send_chat(other_app, **{"x-gateway-provider": "@given"}).status in {400, 404}
    listed = admin.read("/v1/integrations/shared/workspaces")
    (row,) = listed["workspaces"]
    assert (row["id"], row["enabled"], listed["total"]) == (workspace["slug"], True, 1)
    assert row["usage_limits"][0]["credit_limit"] == 5
    assert row["rate_limits"] == limits["rate_limits"]
    assert admin.read("/v1/integrations/shared")["workspace_count"] == 1
    share_integration(admin, "shared", workspace, usage_limits=None, reset_usage=True)
    (row,) = admin.read("/v1/integrations/shared/workspaces")["workspaces"]
    assert (row["usage_limits"], bool(row["last_reset_at"])) == (None, True)
    assert row["rate_limits"] == limits["rate_limits"]
    expect_ok(
        admin.put("/v1/integrations/shared/workspaces", {"workspaces": [{"id": workspace["id"], "enabled": False}]})
    )
    wait_for_status(app, "given", 400)


def test_global_access_applies_to_new_workspaces(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any]
):
    admin.create("/v1/integrations", {**body, "slug": "everybodys"})
    never = {"workspaces": [{"id": workspace["id"], "enabled": False}]}
    all_workspaces = {
        "global_workspace_access": {"enabled": True, "rate_limits": [{"type": "tokens", "unit": "rpm", "value": 9}]}
    }
    expect_ok(admin.put("/v1/integrations/everybodys/workspaces", {**never, **all_workspaces}))
    fetched = admin.read("/v1/integrations/everybodys")
    assert fetched["global_workspace_access"]["rate_limits"][0]["value"] == 9
    wait_for_status(other_app, "everybodys", 200)
    assert send_chat(app, **{"x-gateway-provider": "@everybodys"}).status in {400, 404}
    fresh = admin.create("/v1/workspaces", {"name": "fresh"})
    wait_for_status(admin.with_new_key(workspace_id=fresh["id"], scopes=["completions.write"]), "everybodys", 200)
    override = {"override_existing_workspaces_access": True, **all_workspaces, "workspaces": []}
    expect_ok(admin.put("/v1/integrations/everybodys/workspaces", override))
    wait_for_status(app, "everybodys", 200)
    expect_ok(admin.put("/v1/integrations/everybodys/workspaces", {"global_workspace_access": {"enabled": False}}))
    wait_for_status(other_app, "everybodys", 400)


def test_models_are_added_changed_disabled_and_deleted(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    admin.create("/v1/integrations", {**body, "slug": "models", "workspace_id": workspace["id"]})
    price = {"type": "static", "pay_as_you_go": {"request_token": {"price": 0.1}, "response_token": {"price": 0.2}}}
    custom = {
        "slug": "mine/fine",
        "enabled": True,
        "is_custom": True,
        "is_finetune": True,
        "base_model_slug": "mock",
        "pricing_config": price,
        "configurations": {"custom_headers": {"x-model": HEADER_CANARY}},
    }
    for path in ("models", "integration-models"):
        fields = {"models": [custom, {"slug": "mock?old=1", "enabled": False}], "allow_all_models": False}
        assert expect_ok(admin.put(f"/v1/integrations/models/{path}", fields)) == {}
        listed = admin.read(f"/v1/integrations/models/{path}")
        assert (listed["total"], listed["allow_all_models"]) == (2, False)
        displayed = {row["slug"]: row for row in listed["models"]}["mine/fine"]
        assert {
            name: displayed[name] for name in custom if name not in {"configurations", "pricing_config"}
        }.items() <= custom.items()
        assert displayed["configurations"]["custom_headers"] == {"x-model": "he*****789"}
        assert displayed["pricing_config"]["pay_as_you_go"]["response_token"] == {"price": 0.2}
    wait_for_status(app, "models", 403)
    refused_answer = send_chat(app, **{"x-gateway-provider": "@models"})
    assert "model_not_allowed" in refused_answer.body.decode()
    response = send_chat(app, "mine/fine", **{"x-gateway-provider": "@models"})
    assert response.status != 403
    assert provider.ledger()[-1]["headers"]["x-model"] == HEADER_CANARY
    expect_error(admin.delete("/v1/integrations/models/models?slugs=mock%3Fold%3D1"), 400, "AB01", "custom")
    expect_error(admin.delete("/v1/integrations/models/models?slugs=none"), 404, "AB02", "none")
    assert expect_ok(admin.delete("/v1/integrations/models/models", {"models": ["mine/fine"]})) == {}
    expect_ok(admin.put("/v1/integrations/models/models", {"models": [], "allow_all_models": True}))
    wait_for_status(app, "models", 200)
    assert send_chat(app, "mock?old=1", **{"x-gateway-provider": "@models"}).status == 403


def test_model_prefix_selects_the_provider(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any], provider: Mock
):
    admin.create("/v1/integrations", {**body, "slug": "named", "workspace_id": workspace["id"]})
    wait_for("@named", lambda: send_chat(app, "@named/mock").status == 200 or None, 3)
    entry = provider.ledger()[-1]
    assert entry["headers"]["authorization"] == f"Bearer {CANARY}"
    assert entry["model"] == "mock"
    assert send_chat(other_app, "@named/mock").status == 400
    pinned = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    config = admin.create("/v1/configs", pinned)["slug"]
    wait_for(
        "the config", lambda: send_chat(app, "@named/mock", **{"x-gateway-config": config}).status == 200 or None, 3
    )
    entry = provider.ledger()[-1]
    assert "authorization" not in entry["headers"]
    assert entry["model"] == "mock"


def test_config_target_cannot_use_a_disabled_model(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    admin.create("/v1/integrations", {**body, "slug": "bound", "workspace_id": workspace["id"]})
    expect_ok(admin.put("/v1/integrations/bound/models", {"models": [{"slug": "mock?chunks=2", "enabled": False}]}))
    wait_for_status(app, "bound", 200)
    wait_for(
        "the model",
        lambda: send_chat(app, "mock?chunks=2", **{"x-gateway-provider": "@bound"}).status == 403 or None,
        3,
    )
    provider.clear_ledger()
    second = {"provider": "mock", "api_key": "sk-second"}
    fallback = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "@bound"}, second]}
    assert send_chat(app, "mock?chunks=2", **{"x-gateway-config": json.dumps(fallback)}).status == 200
    assert [entry["headers"]["authorization"] for entry in provider.ledger()] == ["Bearer sk-second"]
    provider.clear_ledger()
    override = {"provider": "@bound", "override_params": {"model": "mock?chunks=2"}}
    assert send_chat(app, "mock", **{"x-gateway-config": json.dumps(override)}).status == 403
    assert send_chat(app, "@bound/mock?chunks=2").status == 403
    assert not provider.ledger()


def test_azure_options_are_validated_and_masked(admin: Client, workspace: dict[str, Any]):
    deployment = {"azure_deployment_name": "d", "azure_api_version": "2024-06-01", "azure_model_slug": "gpt-4o"}
    azure = {"azure_auth_mode": "default", "azure_resource_name": "res", "azure_deployment_config": [deployment]}
    body = {"name": "a", "ai_provider_id": "azure-openai", "key": CANARY, "workspace_id": workspace["id"]}
    integration = admin.create("/v1/integrations", {**body, "configurations": azure})
    assert admin.read(f"/v1/integrations/{integration['slug']}")["configurations"] == azure
    path = "configurations.azure_entra_client_secret"
    entra = {**azure, "azure_auth_mode": "entra", "azure_entra_tenant_id": "t", "azure_entra_client_id": "c"}
    expect_error(admin.post("/v1/integrations", {**body, "configurations": entra}), 400, "AB01", path)
    secret = {**entra, "azure_entra_client_secret": CANARY}
    integration = admin.create("/v1/integrations", {**body, "configurations": secret})
    fetched = admin.read(f"/v1/integrations/{integration['slug']}")["configurations"]
    assert fetched["azure_entra_client_secret"] == MASKED_KEY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": None}, "name"),
        ({"ai_provider_id": "nobody"}, "ai_provider_id"),
        ({"key": "a\nb"}, "key"),
        ({"slug": "a b"}, "slug"),
        ({"configurations": {"custom_host": "ftp://x"}}, "configurations.custom_host"),
        ({"configurations": {"colour": "red"}}, "configurations.colour"),
        ({"configurations": {"custom_headers": {"a b": "c"}}}, "configurations.custom_headers"),
        ({"pricing_adjustments": {"multiplier": {"default": -1}}}, "multiplier.default"),
        ({"secret_mappings": [{"target_field": "nothing", "secret_reference_id": "x"}]}, "target_field"),
    ],
)
def test_rejects_invalid_fields(admin: Client, body: dict[str, Any], change: dict[str, Any], words: str):
    sent = {name: value for name, value in {**body, **change}.items() if value is not None}
    expect_error(admin.post("/v1/integrations", sent), 400, "AB01", words)


def test_rejects_a_duplicate_slug(admin: Client, body: dict[str, Any]):
    admin.create("/v1/integrations", {**body, "slug": "once"})
    expect_error(admin.post("/v1/integrations", {**body, "slug": "once"}), 409, "AB07")


def test_default_provider_gets_the_same_slug_if_it_is_free(
    admin: Client, workspace: dict[str, Any], other_workspace: dict[str, Any], body: dict[str, Any]
):
    for target_workspace, slug in ((workspace, "My_Own"), (other_workspace, "Its_Own")):
        own = {"workspace_id": target_workspace["id"]}
        admin.create("/v1/integrations", {**body, **own, "slug": slug, "default_provider_slug": "The_Very"})
        fetched = admin.read(f"/v1/providers/The_Very?workspace_id={target_workspace['id']}")
        assert (fetched["slug"], fetched["integration_id"]) == ("The_Very", slug)
    admin.create("/v1/integrations", {**body, "slug": "Third", "workspace_id": other_workspace["id"]})
    assert admin.read(f"/v1/providers/Third?workspace_id={other_workspace['id']}")["integration_id"] == "Third"


def test_requested_provider_slug_is_used_or_rejected(admin: Client, workspace: dict[str, Any], body: dict[str, Any]):
    used = {**body, "slug": "taker", "workspace_id": workspace["id"], "default_provider_slug": "asked-for"}
    admin.create("/v1/integrations", used)
    expect_error(
        admin.post("/v1/integrations", {**used, "slug": "late"}), 409, "AB07", "asked-for", "default_provider_slug"
    )
    shared = {**used, "slug": "shared-late", "workspace_id": None}
    admin.create("/v1/integrations", shared)
    path, access = "/v1/integrations/shared-late/workspaces", {"id": workspace["id"], "enabled": True}
    expect_error(admin.put(path, {"workspaces": [access]}), 409, "AB07", "asked-for")
    expect_ok(admin.put(path, {"workspaces": [{**access, "default_provider_slug": "another"}]}))
    second_workspace = admin.read(f"/v1/providers?workspace_id={workspace['id']}&page_size=1000")["data"]
    assert {row["integration_id"]: row["slug"] for row in second_workspace}["shared-late"] == "another"


def test_provider_cannot_override_the_host(admin: Client, workspace: dict[str, Any]):
    elsewhere = {"name": "p", "integration_id": "taker", "workspace_id": workspace["id"]}
    moved = {**elsewhere, "model_config": {"custom_host": "https://other.example"}}
    expect_error(admin.post("/v1/providers", moved), 400, "AB01", "model_config", "integration")


def test_workspace_key_manages_only_its_own_integrations(
    admin: Client, workspace: dict[str, Any], other_workspace: dict[str, Any], body: dict[str, Any]
):
    admin.create("/v1/integrations", {**body, "slug": "for-other"})
    share_integration(admin, "for-other", other_workspace)
    verbs = [f"workspace_integrations.{verb}" for verb in ("create", "read", "update", "delete", "list")]
    inside = admin.with_new_key(workspace_id=workspace["id"], scopes=verbs)
    for response in (
        inside.get("/v1/integrations/for-other"),
        inside.put("/v1/integrations/for-other", {"name": "mine"}),
        inside.delete("/v1/integrations/for-other"),
    ):
        expect_error(response, 404, "AB08")
    share_integration(admin, "for-other", workspace)
    assert inside.read("/v1/integrations/for-other")["type"] == "organisation"
    for response in (
        inside.put("/v1/integrations/for-other", {"name": "mine"}),
        inside.delete("/v1/integrations/for-other"),
        inside.put("/v1/integrations/for-other/workspaces", {"global_workspace_access": {"enabled": True}}),
        inside.put("/v1/integrations/for-other/models", {"models": []}),
    ):
        expect_error(response, 403, "AB03", "organisation_integrations")
    assert [row["id"] for row in inside.read("/v1/integrations/for-other/workspaces")["workspaces"]] == [
        workspace["slug"]
    ]
    own = inside.create("/v1/integrations", {**body, "slug": "of-inside"})
    fetched = inside.read(f"/v1/integrations/{own['slug']}")
    assert fetched["workspace_id"] == workspace["id"]
    expect_error(inside.put("/v1/integrations/of-inside/workspaces", {"workspaces": []}), 400, "AB01", "one workspace")
    other_client = admin.with_new_key(workspace_id=other_workspace["id"], scopes=verbs)
    expect_error(other_client.get("/v1/integrations/of-inside"), 404, "AB08")
    expect_error(other_client.delete("/v1/integrations/of-inside"), 404, "AB08")


def test_shared_credential_changes_only_at_its_integration(
    admin: Client, workspace: dict[str, Any], body: dict[str, Any]
):
    admin.create("/v1/integrations", {**body, "slug": "kept"})
    share_integration(admin, "kept", workspace)
    expect_error(admin.put("/v1/virtual-keys/kept", {"key": "sk-mine-0123456789"}), 403, "AB03", "kept")
    inside = admin.with_new_key(workspace_id=workspace["id"], scopes=["virtual_keys.update"])
    expect_error(inside.put("/v1/virtual-keys/kept", {"key": "sk-mine-0123456789"}), 403, "AB03", "kept")
    assert expect_ok(inside.put("/v1/virtual-keys/kept", {"note": "mine"}))["slug"] == "kept"
    assert admin.read("/v1/integrations/kept")["masked_key"] == MASKED_KEY


def test_credentials_appear_in_no_file_and_no_response(admin: Client):
    """Runs last, because it searches all files that this module's gateway has written."""
    responses = [admin.read("/v1/integrations?page_size=1000"), admin.read("/v1/providers?page_size=1000")]
    for row in responses[0]["data"]:
        responses += [admin.read(f"/v1/integrations/{row['slug']}{rest}") for rest in ("", "/models", "/workspaces")]
    assert CANARY not in json.dumps(responses)
    assert HEADER_CANARY not in json.dumps(responses)
    for path in (path for path in Path(admin.gateway.folder).rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert CANARY.encode() not in content, path
        assert HEADER_CANARY.encode() not in content, path


def test_lists_find_part_of_a_name_or_slug(admin: Client, workspace: dict[str, Any], body: dict[str, Any]):
    within = {"workspace_id": workspace["id"]}
    fields = {"name": "Lookup 100%", **within}
    own = {"slug": "to-find", "create_default_provider": False}
    integration = admin.create("/v1/integrations", {**body, **fields, **own})
    admin.create("/v1/providers", {**fields, "slug": "to-find", "integration_id": integration["slug"]})
    admin.create("/v1/configs", {**fields, "slug": "to-find", "config": {"provider": "mock"}})
    checks = [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]
    guardrail = admin.create("/v1/guardrails", {**fields, "checks": checks})
    key = admin.create("/v1/api-keys/workspace/service", {**fields, "scopes": ["completions.write"]})
    also = {"integrations": "to-find", "providers": "to-find", "configs": "to-find", "guardrails": guardrail["slug"]}
    for kind, other_workspace in {**also, "virtual-keys": "to-find", "api-keys": key["id"]}.items():
        for words in ("LOOKUP", "0%25", other_workspace):
            names = [row["name"] for row in admin.read(f"/v1/{kind}?search={words}")["data"]]
            assert names == ["Lookup 100%"], (kind, words)
        assert admin.read(f"/v1/{kind}?search=100_")["total"] == 0, kind
