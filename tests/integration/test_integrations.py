"""Integrations over HTTP, on both databases: what is written is read back, who may use them, and what the data plane makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, good, refused
from tests.integration.wire import CHAT, Answer, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from tests.gateway import Mock

CANARY = "sk-canary-integration-0123456789"
HEADER_CANARY = "header-canary-0123456789"
MASKED = "sk*****789"
# Addresses of this machine are asked in these tests.
TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.made("/v1/admin/workspaces", {"name": "Integrations"})


@pytest.fixture(scope="module")
def other(admin: Client) -> dict[str, Any]:
    return admin.made("/v1/admin/workspaces", {"name": "Other"})


@pytest.fixture(scope="module")
def app(admin: Client, workspace: dict[str, Any]) -> Client:
    return admin.with_key(workspace_id=workspace["id"], scopes=["completions.write"])


@pytest.fixture(scope="module")
def other_app(admin: Client, other: dict[str, Any]) -> Client:
    return admin.with_key(workspace_id=other["id"], scopes=["completions.write"])


@pytest.fixture
def body() -> dict[str, Any]:
    return {"name": "My Mock", "ai_provider_id": "mock", "key": CANARY, "description": "d"}


def chat(client: Client, model: str = "mock", **headers: str) -> Answer:
    sent = {"x-gateway-api-key": client.key, "content-type": "application/json"}
    return ask(client.gateway.base_url, CHAT, asked(model), {**sent, **headers})


def comes_true(client: Client, slug: str, status: int, model: str = "mock") -> None:
    """Wait until requests to a provider are answered so."""
    wait(f"@{slug}", lambda: chat(client, model, **{"x-gateway-provider": f"@{slug}"}).status == status or None, 3)


def share(admin: Client, slug: str, workspace: dict[str, Any], **more: object) -> None:
    given = {"workspaces": [{"id": workspace["slug"], "enabled": True, **more}]}
    assert good(admin.put(f"/v1/integrations/{slug}/workspaces", given)) == {}


def test_every_field_is_read_back_and_no_secret(admin: Client, workspace: dict[str, Any], body: dict[str, Any]):
    given = {
        **body,
        "slug": "all-fields",
        "workspace_id": workspace["slug"],
        "configurations": {"custom_host": "https://x.test/v1", "custom_headers": {"x-token": HEADER_CANARY}},
        "pricing_adjustments": {"multiplier": {"default": 1.5, "image": {"default": 2.0}}},
        "tags": {"team": "red"},
        "create_default_provider": False,
    }
    made = admin.made("/v1/integrations", given)
    assert (made["slug"], made["object"]) == ("all-fields", "integration")
    shown = admin.shown("/v1/integrations/all-fields")
    assert shown == admin.shown(f"/v2/integrations/{made['id']}")
    same = {name: given[name] for name in ("name", "description", "ai_provider_id", "tags")}
    assert same.items() <= shown.items()
    assert shown["pricing_adjustments"]["multiplier"]["default"] == 1.5
    assert (shown["masked_key"], shown["workspace_id"], shown["type"]) == (MASKED, workspace["id"], "workspace")
    assert shown["configurations"] == {"custom_host": "https://x.test/v1", "custom_headers": {"x-token": "he*****789"}}
    assert (shown["status"], shown["allow_all_models"], shown["workspace_count"]) == ("active", True, 1)
    assert shown["global_workspace_access_settings"]["enabled"] is False
    assert CANARY not in json.dumps(shown)
    listed = admin.shown("/v1/integrations?page_size=100&type=workspace&tags=team:red")
    assert [row["slug"] for row in listed["data"]] == ["all-fields"]
    assert admin.shown("/v1/integrations?type=organisation&tags=team:red")["total"] == 0
    assert admin.shown(f"/v1/providers?workspace_id={workspace['id']}&page_size=1000")["data"] == []


def test_what_is_changed_is_changed_and_masked_values_stay(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    headers = {"x-token": HEADER_CANARY, "x-plain": "old-value-0123"}
    given = {"slug": "changed", "workspace_id": workspace["id"], "configurations": {"custom_headers": headers}}
    admin.made("/v1/integrations", {**body, **given})
    comes_true(app, "changed", 200)
    shown = admin.shown("/v1/integrations/changed")
    change = {
        "name": "Renamed",
        "key": shown["masked_key"],
        "description": None,
        "tags": {"a": "b"},
        "pricing_adjustments": None,
        "configurations": {"custom_headers": {**shown["configurations"]["custom_headers"], "x-plain": "new-value"}},
    }
    assert good(admin.put("/v1/integrations/changed", change)) == {}
    after = admin.shown("/v1/integrations/changed")
    assert (after["name"], after["description"], after["tags"]) == ("Renamed", None, {"a": "b"})
    assert after["masked_key"] == MASKED

    def sent() -> dict[str, str] | None:
        chat(app, **{"x-gateway-provider": "@changed"})
        found = provider.ledger()[-1]["headers"]
        return found if found.get("x-plain") == "new-value" else None

    found = wait("the header field", sent, 3)
    assert (found["authorization"], found["x-token"]) == (f"Bearer {CANARY}", HEADER_CANARY)


def test_one_workspaces_own_comes_with_its_provider_and_goes_with_it(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any]
):
    given = {**body, "slug": "own", "workspace_id": workspace["id"], "default_provider_slug": "own-provider"}
    admin.made("/v1/integrations", given)
    comes_true(app, "own-provider", 200)
    assert chat(other_app, **{"x-gateway-provider": "@own-provider"}).status in {400, 404}
    assert good(admin.delete("/v1/integrations/own")) == {}
    comes_true(app, "own-provider", 400)
    refused(admin.get("/v1/integrations/own"), 404, "AB08")
    refused(admin.get("/v1/providers/own-provider"), 404, "AB08")
    end = "end_time=2099-01-01T00:00:00Z"
    organisation = admin.shown(f"/v1/workspaces/{workspace['id']}")["organisation_id"]
    logs = admin.shown(
        f"/v1/audit-logs?start_time=2020-01-01T00:00:00Z&{end}&organisation_id={organisation}&page_size=100"
    )
    actions = {(row["resource_type"], row["action"]) for row in logs["records"]}
    wanted = {("integrations", "create"), ("integrations", "delete"), ("providers", "create"), ("providers", "delete")}
    assert wanted <= actions
    assert CANARY not in json.dumps(logs)


def test_the_organisations_is_used_by_whom_it_was_given_to(
    admin: Client,
    workspace: dict[str, Any],
    other: dict[str, Any],
    app: Client,
    other_app: Client,
    body: dict[str, Any],
):
    admin.made("/v1/integrations", {**body, "slug": "shared"})
    given = {"name": "p", "slug": "mine", "integration_id": "shared", "workspace_id": other["id"]}
    refused(admin.post("/v1/providers", given), 404, "AB02", "integration_id")
    limits = {
        "usage_limits": [{"type": "tokens", "credit_limit": 5}],
        "rate_limits": [{"type": "requests", "unit": "rpd", "value": 7}],
    }
    share(admin, "shared", workspace, **limits, default_provider_slug="given")
    comes_true(app, "given", 200)
    assert chat(other_app, **{"x-gateway-provider": "@given"}).status in {400, 404}
    listed = admin.shown("/v1/integrations/shared/workspaces")
    (row,) = listed["workspaces"]
    assert (row["id"], row["enabled"], listed["total"]) == (workspace["slug"], True, 1)
    assert row["usage_limits"][0]["credit_limit"] == 5
    assert row["rate_limits"] == limits["rate_limits"]
    assert admin.shown("/v1/integrations/shared")["workspace_count"] == 1
    share(admin, "shared", workspace, usage_limits=None, reset_usage=True)
    (row,) = admin.shown("/v1/integrations/shared/workspaces")["workspaces"]
    assert (row["usage_limits"], bool(row["last_reset_at"])) == (None, True)
    assert row["rate_limits"] == limits["rate_limits"]
    good(admin.put("/v1/integrations/shared/workspaces", {"workspaces": [{"id": workspace["id"], "enabled": False}]}))
    comes_true(app, "given", 400)


def test_what_all_may_use_comes_to_new_workspaces_too(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any]
):
    admin.made("/v1/integrations", {**body, "slug": "everybodys"})
    never = {"workspaces": [{"id": workspace["id"], "enabled": False}]}
    everywhere = {
        "global_workspace_access": {"enabled": True, "rate_limits": [{"type": "tokens", "unit": "rpm", "value": 9}]}
    }
    good(admin.put("/v1/integrations/everybodys/workspaces", {**never, **everywhere}))
    shown = admin.shown("/v1/integrations/everybodys")
    assert shown["global_workspace_access"]["rate_limits"][0]["value"] == 9
    comes_true(other_app, "everybodys", 200)
    assert chat(app, **{"x-gateway-provider": "@everybodys"}).status in {400, 404}
    fresh = admin.made("/v1/workspaces", {"name": "fresh"})
    comes_true(admin.with_key(workspace_id=fresh["id"], scopes=["completions.write"]), "everybodys", 200)
    override = {"override_existing_workspaces_access": True, **everywhere, "workspaces": []}
    good(admin.put("/v1/integrations/everybodys/workspaces", override))
    comes_true(app, "everybodys", 200)
    good(admin.put("/v1/integrations/everybodys/workspaces", {"global_workspace_access": {"enabled": False}}))
    comes_true(other_app, "everybodys", 400)


def test_models_are_added_changed_disabled_and_deleted(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    admin.made("/v1/integrations", {**body, "slug": "models", "workspace_id": workspace["id"]})
    price = {"type": "static", "pay_as_you_go": {"request_token": {"price": 0.1}, "response_token": {"price": 0.2}}}
    custom = {
        "slug": "mine/fine",
        "enabled": True,
        "is_custom": True,
        "is_finetune": True,
        "base_model_slug": "mock",
        "pricing_config": price,
        "configurations": {"custom_host": f"{provider.url}/v1", "custom_headers": {"x-model": HEADER_CANARY}},
    }
    for path in ("models", "integration-models"):
        given = {"models": [custom, {"slug": "mock?old=1", "enabled": False}], "allow_all_models": False}
        assert good(admin.put(f"/v1/integrations/models/{path}", given)) == {}
        listed = admin.shown(f"/v1/integrations/models/{path}")
        assert (listed["total"], listed["allow_all_models"]) == (2, False)
        shown = {row["slug"]: row for row in listed["models"]}["mine/fine"]
        assert {
            name: shown[name] for name in custom if name not in {"configurations", "pricing_config"}
        }.items() <= custom.items()
        assert shown["configurations"]["custom_headers"] == {"x-model": "he*****789"}
        assert shown["pricing_config"]["pay_as_you_go"]["response_token"] == {"price": 0.2}
    comes_true(app, "models", 403)
    refused_answer = chat(app, **{"x-gateway-provider": "@models"})
    assert "model_not_allowed" in refused_answer.body.decode()
    answer = chat(app, "mine/fine", **{"x-gateway-provider": "@models"})
    assert answer.status != 403
    assert provider.ledger()[-1]["headers"]["x-model"] == HEADER_CANARY
    refused(admin.delete("/v1/integrations/models/models?slugs=mock%3Fold%3D1"), 400, "AB01", "custom")
    refused(admin.delete("/v1/integrations/models/models?slugs=none"), 404, "AB02", "none")
    assert good(admin.delete("/v1/integrations/models/models", {"models": ["mine/fine"]})) == {}
    good(admin.put("/v1/integrations/models/models", {"models": [], "allow_all_models": True}))
    comes_true(app, "models", 200)
    assert chat(app, "mock?old=1", **{"x-gateway-provider": "@models"}).status == 403


def test_a_body_names_its_provider_in_its_model(
    admin: Client, workspace: dict[str, Any], app: Client, other_app: Client, body: dict[str, Any], provider: Mock
):
    admin.made("/v1/integrations", {**body, "slug": "named", "workspace_id": workspace["id"]})
    wait("@named", lambda: chat(app, "@named/mock").status == 200 or None, 3)
    entry = provider.ledger()[-1]
    assert entry["headers"]["authorization"] == f"Bearer {CANARY}"
    assert entry["model"] == "mock"
    assert chat(other_app, "@named/mock").status == 400
    pinned = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    config = admin.made("/v1/configs", pinned)["slug"]
    wait("the config", lambda: chat(app, "@named/mock", **{"x-gateway-config": config}).status == 200 or None, 3)
    entry = provider.ledger()[-1]
    assert "authorization" not in entry["headers"]
    assert entry["model"] == "mock"


def test_what_may_not_be_used_is_used_by_no_target_of_a_config(
    admin: Client, workspace: dict[str, Any], app: Client, body: dict[str, Any], provider: Mock
):
    admin.made("/v1/integrations", {**body, "slug": "bound", "workspace_id": workspace["id"]})
    good(admin.put("/v1/integrations/bound/models", {"models": [{"slug": "mock?chunks=2", "enabled": False}]}))
    comes_true(app, "bound", 200)
    wait("the model", lambda: chat(app, "mock?chunks=2", **{"x-gateway-provider": "@bound"}).status == 403 or None, 3)
    provider.forget()
    second = {"provider": "mock", "api_key": "sk-second"}
    fallback = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "@bound"}, second]}
    assert chat(app, "mock?chunks=2", **{"x-gateway-config": json.dumps(fallback)}).status == 200
    assert [entry["headers"]["authorization"] for entry in provider.ledger()] == ["Bearer sk-second"]
    provider.forget()
    override = {"provider": "@bound", "override_params": {"model": "mock?chunks=2"}}
    assert chat(app, "mock", **{"x-gateway-config": json.dumps(override)}).status == 403
    assert chat(app, "@bound/mock?chunks=2").status == 403
    assert not provider.ledger()


def test_azures_deployments_are_found_by_their_models(admin: Client, workspace: dict[str, Any]):
    deployment = {"azure_deployment_name": "d", "azure_api_version": "2024-06-01", "azure_model_slug": "gpt-4o"}
    azure = {"azure_auth_mode": "default", "azure_resource_name": "res", "azure_deployment_config": [deployment]}
    given = {"name": "a", "ai_provider_id": "azure-openai", "key": CANARY, "workspace_id": workspace["id"]}
    made = admin.made("/v1/integrations", {**given, "configurations": azure})
    assert admin.shown(f"/v1/integrations/{made['slug']}")["configurations"] == azure
    path = "configurations.azure_entra_client_secret"
    entra = {**azure, "azure_auth_mode": "entra", "azure_entra_tenant_id": "t", "azure_entra_client_id": "c"}
    refused(admin.post("/v1/integrations", {**given, "configurations": entra}), 400, "AB01", path)
    secret = {**entra, "azure_entra_client_secret": CANARY}
    made = admin.made("/v1/integrations", {**given, "configurations": secret})
    shown = admin.shown(f"/v1/integrations/{made['slug']}")["configurations"]
    assert shown["azure_entra_client_secret"] == MASKED


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
def test_what_cannot_be_is_refused(admin: Client, body: dict[str, Any], change: dict[str, Any], words: str):
    sent = {name: value for name, value in {**body, **change}.items() if value is not None}
    refused(admin.post("/v1/integrations", sent), 400, "AB01", words)


def test_a_slug_is_taken_once(admin: Client, body: dict[str, Any]):
    admin.made("/v1/integrations", {**body, "slug": "once"})
    refused(admin.post("/v1/integrations", {**body, "slug": "once"}), 409, "AB07")


def test_the_provider_that_comes_along_has_the_very_slug_while_it_is_free(
    admin: Client, workspace: dict[str, Any], other: dict[str, Any], body: dict[str, Any]
):
    for place, slug in ((workspace, "My_Own"), (other, "Its_Own")):
        own = {"workspace_id": place["id"]}
        admin.made("/v1/integrations", {**body, **own, "slug": slug, "default_provider_slug": "The_Very"})
        shown = admin.shown(f"/v1/providers/The_Very?workspace_id={place['id']}")
        assert (shown["slug"], shown["integration_id"]) == ("The_Very", slug)
    admin.made("/v1/integrations", {**body, "slug": "Third", "workspace_id": other["id"]})
    assert admin.shown(f"/v1/providers/Third?workspace_id={other['id']}")["integration_id"] == "Third"


def test_a_slug_that_was_asked_for_is_given_or_refused_and_never_another(
    admin: Client, workspace: dict[str, Any], body: dict[str, Any]
):
    taken = {**body, "slug": "taker", "workspace_id": workspace["id"], "default_provider_slug": "asked-for"}
    admin.made("/v1/integrations", taken)
    refused(
        admin.post("/v1/integrations", {**taken, "slug": "late"}), 409, "AB07", "asked-for", "default_provider_slug"
    )
    shared = {**taken, "slug": "shared-late", "workspace_id": None}
    admin.made("/v1/integrations", shared)
    path, access = "/v1/integrations/shared-late/workspaces", {"id": workspace["id"], "enabled": True}
    refused(admin.put(path, {"workspaces": [access]}), 409, "AB07", "asked-for")
    good(admin.put(path, {"workspaces": [{**access, "default_provider_slug": "another"}]}))
    there = admin.shown(f"/v1/providers?workspace_id={workspace['id']}&page_size=1000")["data"]
    assert {row["integration_id"]: row["slug"] for row in there}["shared-late"] == "another"


def test_a_provider_says_nothing_of_its_own_address(admin: Client, workspace: dict[str, Any]):
    elsewhere = {"name": "p", "integration_id": "taker", "workspace_id": workspace["id"]}
    moved = {**elsewhere, "model_config": {"custom_host": "https://other.test"}}
    refused(admin.post("/v1/providers", moved), 400, "AB01", "model_config", "integration")


def test_a_workspaces_key_keeps_to_its_own(
    admin: Client, workspace: dict[str, Any], other: dict[str, Any], body: dict[str, Any]
):
    admin.made("/v1/integrations", {**body, "slug": "for-other"})
    share(admin, "for-other", other)
    verbs = [f"workspace_integrations.{verb}" for verb in ("create", "read", "update", "delete", "list")]
    inside = admin.with_key(workspace_id=workspace["id"], scopes=verbs)
    for answer in (
        inside.get("/v1/integrations/for-other"),
        inside.put("/v1/integrations/for-other", {"name": "mine"}),
        inside.delete("/v1/integrations/for-other"),
    ):
        refused(answer, 404, "AB08")
    share(admin, "for-other", workspace)
    assert inside.shown("/v1/integrations/for-other")["type"] == "organisation"
    for answer in (
        inside.put("/v1/integrations/for-other", {"name": "mine"}),
        inside.delete("/v1/integrations/for-other"),
        inside.put("/v1/integrations/for-other/workspaces", {"global_workspace_access": {"enabled": True}}),
        inside.put("/v1/integrations/for-other/models", {"models": []}),
    ):
        refused(answer, 403, "AB03", "organisation_integrations")
    assert [row["id"] for row in inside.shown("/v1/integrations/for-other/workspaces")["workspaces"]] == [
        workspace["slug"]
    ]
    own = inside.made("/v1/integrations", {**body, "slug": "of-inside"})
    shown = inside.shown(f"/v1/integrations/{own['slug']}")
    assert shown["workspace_id"] == workspace["id"]
    refused(inside.put("/v1/integrations/of-inside/workspaces", {"workspaces": []}), 400, "AB01", "own")
    stranger = admin.with_key(workspace_id=other["id"], scopes=verbs)
    refused(stranger.get("/v1/integrations/of-inside"), 404, "AB08")
    refused(stranger.delete("/v1/integrations/of-inside"), 404, "AB08")


def test_a_credential_that_others_use_too_is_changed_where_it_is_kept(
    admin: Client, workspace: dict[str, Any], body: dict[str, Any]
):
    admin.made("/v1/integrations", {**body, "slug": "kept"})
    share(admin, "kept", workspace)
    refused(admin.put("/v1/virtual-keys/kept", {"key": "sk-mine-0123456789"}), 403, "AB03", "kept")
    inside = admin.with_key(workspace_id=workspace["id"], scopes=["virtual_keys.update"])
    refused(inside.put("/v1/virtual-keys/kept", {"key": "sk-mine-0123456789"}), 403, "AB03", "kept")
    assert good(inside.put("/v1/virtual-keys/kept", {"note": "mine"}))["slug"] == "kept"
    assert admin.shown("/v1/integrations/kept")["masked_key"] == MASKED


def test_credentials_are_in_no_file_and_no_answer(admin: Client):
    """Runs last: it looks at all that the gateway of this file has written."""
    answers = [admin.shown("/v1/integrations?page_size=1000"), admin.shown("/v1/providers?page_size=1000")]
    for row in answers[0]["data"]:
        answers += [admin.shown(f"/v1/integrations/{row['slug']}{rest}") for rest in ("", "/models", "/workspaces")]
    assert CANARY not in json.dumps(answers)
    assert HEADER_CANARY not in json.dumps(answers)
    for path in (path for path in Path(admin.gateway.folder).rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert CANARY.encode() not in content, path
        assert HEADER_CANARY.encode() not in content, path
