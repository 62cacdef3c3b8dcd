"""Rules of single fields and routes of the management API that concern several resources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request

if TYPE_CHECKING:
    from collections.abc import Mapping

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

TIME_RANGE_QUERY = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
TEXT_WITH_NUL = "a\0b"


@pytest.fixture(scope="module")
def scenario(admin: Client) -> Mapping[str, Any]:
    return admin.create("/v1/workspaces", {"name": "Rules"})


def read_audit_logs(admin: Client, location: Mapping[str, Any], query: str) -> dict[str, Any]:
    return admin.read(f"/v1/audit-logs?{TIME_RANGE_QUERY}&organisation_id={location['organisation_id']}&{query}")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": TEXT_WITH_NUL}, "name"),
        (
            {"name": "n", "config": {"targets": [{"provider": "mock", "override_params": {"x": TEXT_WITH_NUL}}]}},
            "config.targets[0]",
        ),
        ({"name": "n", "config": {"override_params": {TEXT_WITH_NUL: 1}}}, "config.override_params.ab"),
    ],
)
def test_rejects_nul_in_a_body_with_its_json_path(
    admin: Client, scenario: Mapping[str, Any], body: dict[str, Any], path: str
):
    sent = {"config": {"provider": "mock"}, **body, "workspace_id": scenario["id"]}
    expect_error(admin.post("/v1/configs", sent), 400, "AB01", path, "U+0000")


def test_rejects_nul_in_path_and_query_but_accepts_the_escape_text(admin: Client, scenario: Mapping[str, Any]):
    expect_error(admin.get("/v1/configs?workspace_id=a%00b"), 400, "AB01", "workspace_id", "U+0000")
    expect_error(admin.get("/v1/workspaces?name=%00"), 400, "AB01", "name", "U+0000")
    expect_error(admin.get("/v1/configs/a%00b"), 400, "AB01", "path", "U+0000")
    config = admin.create(
        "/v1/configs", {"name": r"a\u0000b", "config": {"provider": "mock"}, "workspace_id": scenario["id"]}
    )
    assert admin.read(f"/v1/configs/{config['slug']}")["name"] == r"a\u0000b"


@pytest.mark.parametrize(
    "kind", [None, "", "Application/JSON", "text/plain", "application/vnd.api+json", "multipart/form-data; boundary=b"]
)
def test_rejects_nul_in_a_body_of_any_content_type(admin: Client, scenario: Mapping[str, Any], kind: str | None):
    sent = json.dumps({"name": TEXT_WITH_NUL, "config": {"provider": "mock"}, "workspace_id": scenario["id"]}).encode()
    fields = {"x-gateway-api-key": admin.key, **({} if kind is None else {"content-type": kind})}
    expect_error(send_raw_request(admin.gateway.base_url, "/v1/configs", sent, fields), 400, "AB01", "name", "U+0000")


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc3"'])
def test_rejects_invalid_unicode_with_its_json_path(admin: Client, scenario: Mapping[str, Any], text: bytes):
    body = {"name": "n", "config": {"targets": [{"provider": "HERE"}]}, "workspace_id": scenario["id"]}
    fields = {"x-gateway-api-key": admin.key, "content-type": "application/json"}
    sent = json.dumps(body).encode().replace(b'"HERE"', text)
    response = send_raw_request(admin.gateway.base_url, "/v1/configs", sent, fields)
    expect_error(response, 400, "AB01", "config.targets[0].provider", "must be Unicode text")


def test_rejects_invalid_utf8_and_accepts_a_surrogate_pair(admin: Client, scenario: Mapping[str, Any]):
    fields = {"x-gateway-api-key": admin.key, "content-type": "application/json"}
    expect_error(
        send_raw_request(admin.gateway.base_url, "/v1/configs", b"\xff{", fields), 400, "AB01", "must be Unicode text"
    )
    body = json.dumps({"name": "\U0001f6b0", "config": {"provider": "mock"}, "workspace_id": scenario["id"]}).encode()
    assert b"\\ud83d\\udeb0" in body
    slug = expect_ok(send_raw_request(admin.gateway.base_url, "/v1/configs", body, fields))["slug"]
    assert admin.read(f"/v1/configs/{slug}")["name"] == "\U0001f6b0"


def test_rejects_nul_in_a_file_name(admin: Client, scenario: Mapping[str, Any]):
    caller = admin.with_new_key(workspace_id=scenario["id"], scopes=["completions.write"])
    part = b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    fields = {"x-gateway-api-key": caller.key, "content-type": "multipart/form-data; boundary=b"}
    for name, status in ((b'; filename="a.jsonl"', 200), (b'; filename="a\0.jsonl"', 400)):
        # A file name must not contain NUL, but the content of a file may contain any bytes.
        sent = part % (b"purpose", b"", b"batch") + part % (b"file", name, b'"\\u0000"\0') + b"--b--\r\n"
        response = send_raw_request(caller.gateway.base_url, "/v1/files", sent, fields)
        assert response.status == status, response.body
        assert status == 200 or "U+0000" in response.json()["error"]["message"]


def test_serves_health_on_every_path_alias(admin: Client):
    for path in ("/health", "/v1/health", "/admin/health", "/v1/admin/health"):
        response = send_raw_request(admin.gateway.base_url, path, headers={})
        assert (response.status, response.json()["status"]) == (200, "success"), path


def test_audit_logs_filter_by_workspace_slug_and_count_without_rows(admin: Client, scenario: Mapping[str, Any]):
    admin.create("/v1/configs", {"name": "seen", "config": {"provider": "mock"}, "workspace_id": scenario["id"]})
    by_id, by_slug = (read_audit_logs(admin, scenario, f"workspace_id={scenario[name]}") for name in ("id", "slug"))
    assert by_id == by_slug
    assert by_id["total"] > 0
    assert read_audit_logs(admin, scenario, "page_size=0") == {
        **read_audit_logs(admin, scenario, "page_size=1"),
        "records": [],
    }
    response = admin.get(
        f"/v1/audit-logs?{TIME_RANGE_QUERY}&organisation_id={scenario['organisation_id']}&page_size=101"
    )
    expect_error(response, 400, "AB01", "page_size")


def test_rejects_access_for_an_archived_workspace(admin: Client):
    old = admin.create("/v1/workspaces", {"name": "Old"})
    expect_ok(admin.delete(f"/v1/workspaces/{old['id']}", {"name": "Old"}))
    slug = admin.create("/v1/integrations", {"name": "i", "ai_provider_id": "mock", "key": "sk-0123456789"})["slug"]
    opened = {"workspaces": [{"id": old["slug"], "enabled": True}]}
    expect_error(admin.put(f"/v1/integrations/{slug}/workspaces", opened), 404, "AB02", "workspaces[0].id", "archived")


def test_audit_log_lists_objects_deleted_with_an_integration(admin: Client, scenario: Mapping[str, Any]):
    integration = admin.create("/v1/integrations", {"name": "gone", "ai_provider_id": "mock", "key": "sk-0123456789"})
    path = f"/v1/integrations/{integration['slug']}"
    expect_ok(admin.put(f"{path}/models", {"models": [{"slug": "m", "enabled": True, "is_custom": True}]}))
    expect_ok(admin.put(f"{path}/workspaces", {"workspaces": [{"id": scenario["id"], "enabled": True}]}))
    expect_ok(admin.delete(path))
    content = {
        kind: [
            row["before"]["integration_id"]
            for row in read_audit_logs(admin, scenario, f"action=delete&resource_type={kind}")["records"]
        ]
        for kind in ("integration_models", "integration_workspaces", "providers")
    }
    assert content == {kind: [integration["id"]] for kind in content}


def test_rejects_mapping_to_an_unknown_provider_field(admin: Client, scenario: Mapping[str, Any]):
    vault = {"vault_addr": "https://vault.example", "vault_auth_type": "token", "vault_token": "t-0123456789"}
    reference = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
    secret = admin.create("/v1/secret-references", reference)["id"]
    bad = [{"target_field": "configurations.nonsense", "secret_reference_id": secret}]
    words = ("secret_mappings[0].target_field", "nonsense", "configurations.custom_host")
    integration = {"name": "i", "ai_provider_id": "mock"}
    expect_error(admin.post("/v1/integrations", {**integration, "secret_mappings": bad}), 400, "AB01", *words)
    own = {"name": "v", "provider": "mock", "workspace_id": scenario["id"]}
    expect_error(admin.post("/v1/virtual-keys", {**own, "secret_mappings": bad}), 400, "AB01", *words)
    slug = admin.create("/v1/virtual-keys", own)["slug"]
    expect_error(admin.put(f"/v1/virtual-keys/{slug}", {"secret_mappings": bad}), 400, "AB01", *words)
    # A secret reference cannot be narrowed while an integration outside its workspaces needs it.
    mapped = [{"target_field": "key", "secret_reference_id": secret}]
    needing = admin.create("/v1/integrations", {**integration, "secret_mappings": mapped})["slug"]
    narrower = {"allowed_workspaces": [scenario["slug"]]}
    expect_error(admin.put(f"/v1/secret-references/{secret}", narrower), 409, "AB07", needing)
    expect_ok(admin.put(f"/v1/integrations/{needing}", {"secret_mappings": []}))
    expect_ok(admin.put(f"/v1/secret-references/{secret}", narrower))


def test_maps_secrets_to_provider_fields_without_a_form(admin: Client, scenario: Mapping[str, Any]):
    vault = {"vault_addr": "https://vault.example", "vault_auth_type": "token", "vault_token": "t-0123456789"}
    reference = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
    secret = admin.create("/v1/secret-references", reference)["id"]
    for provider, field in (("azure-openai", "azure_ad_token"), ("bedrock", "aws_session_token")):
        mapped = [{"target_field": f"configurations.{field}", "secret_reference_id": secret}]
        own = {"name": "v", "provider": provider, "workspace_id": scenario["id"], "secret_mappings": mapped}
        slug = admin.create("/v1/virtual-keys", own)["slug"]
        expect_ok(admin.put(f"/v1/virtual-keys/{slug}", {"secret_mappings": mapped}))
        integration = admin.create("/v1/integrations", {"name": "i", "ai_provider_id": provider})["slug"]
        expect_ok(admin.put(f"/v1/integrations/{integration}", {"secret_mappings": mapped}))
        assert (
            admin.read(f"/v1/integrations/{integration}")["secret_mappings"][0]["target_field"]
            == f"configurations.{field}"
        )


def test_allows_one_rate_limit_per_type_and_unit(admin: Client, scenario: Mapping[str, Any]):
    limits = [
        {"type": kind, "unit": unit, "value": 5} for kind in ("requests", "tokens") for unit in ("rpm", "rph", "rpd")
    ]
    key = {"name": "k", "scopes": ["completions.write"], "workspace_id": scenario["id"], "rate_limits": limits}
    created = admin.create("/v1/api-keys/workspace/service", key)["id"]
    assert admin.read(f"/v1/api-keys/{created}")["rate_limits"] == limits
    own = {"name": "v", "provider": "mock", "workspace_id": scenario["id"], "rate_limits": limits}
    slug = admin.create("/v1/virtual-keys", own)["slug"]
    assert admin.read(f"/v1/virtual-keys/{slug}")["rate_limits"] == limits
    # A workspace has at most one rate limit, as it has for an integration.
    expect_error(admin.put(f"/v1/workspaces/{scenario['id']}", {"rate_limits": limits}), 400, "AB01", "at most 1")
    expect_error(admin.post("/v1/workspaces", {"name": "w", "rate_limits": limits[:2]}), 400, "AB01", "at most 1")
    expect_ok(admin.put(f"/v1/workspaces/{scenario['id']}", {"rate_limits": limits[:1]}))
    assert admin.read(f"/v1/workspaces/{scenario['id']}")["rate_limits"] == limits[:1]
    duplicate_limits = {**key, "rate_limits": [*limits, limits[0]]}
    expect_error(admin.post("/v1/api-keys/workspace/service", duplicate_limits), 400, "AB01", "rate_limits[6]")


def test_next_rotation_time_alone_leaves_the_period_unchanged(admin: Client, scenario: Mapping[str, Any]):
    policy = {"rotation_period_days": 30, "key_transition_period_ms": 3_600_000}
    key = {"name": "k", "scopes": ["completions.write"], "workspace_id": scenario["id"], "rotation_policy": policy}
    path = f"/v1/api-keys/{admin.create('/v1/api-keys/workspace/service', key)['id']}"
    for moment, due in (
        ("2098-01-02T03:04:05Z", "2098-01-02T00:00:00.000Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T00:00:00.000Z"),
    ):
        expect_ok(admin.put(path, {"rotation_policy": {"next_rotation_at": moment}}))
        fetched = admin.read(path)["rotation_policy"]
        assert {**policy, "next_rotation_at": due}.items() <= fetched.items()
    expect_ok(admin.put(path, {"rotation_policy": {"rotation_period": "weekly"}}))
    fetched = admin.read(path)["rotation_policy"]
    assert (fetched["rotation_period"], fetched["rotation_period_days"]) == ("weekly", None)
    for moment in ("9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"):
        for body in (
            {"rotation_policy": {"next_rotation_at": moment}},
            {"expires_at": moment},
            usage_limit_with_reset(moment),
        ):
            assert admin.put(path, body).status in {200, 400}, body
            assert admin.get(path).status == 200


def usage_limit_with_reset(moment: str) -> dict[str, Any]:
    return {"usage_limits": {"credit_limit": 5, "next_usage_reset_at": moment}}


def test_creation_mode_of_a_key_distinguishes_ui_and_api(admin: Client, scenario: Mapping[str, Any]):
    body = {"name": "k", "scopes": ["completions.write"], "workspace_id": scenario["id"]}
    key = admin.create("/v1/api-keys/workspace/service", body)["id"]
    assert admin.read(f"/v1/api-keys/{key}")["creation_mode"] == "api"
    session = Client(admin.gateway, "").post("/v1/auth/sessions", {"api_key": admin.key})
    cookie = (session.get_header("set-cookie") or "").partition(";")[0]
    fields = {"cookie": cookie, "x-csrf-token": session.json()["csrf_token"], "content-type": "application/json"}
    by_hand = send_raw_request(
        admin.gateway.base_url, "/v1/api-keys/workspace/service", json.dumps(body).encode(), fields
    ).json()
    assert admin.read(f"/v1/api-keys/{by_hand['id']}")["creation_mode"] == "ui"
    founding = admin.read("/v1/api-keys")["data"]
    assert "auto" in {row["creation_mode"] for row in founding}


def test_pages_sorts_and_filters_workspace_members(admin: Client):
    workspace = admin.create("/v1/workspaces", {"name": "Crowd"})
    path = f"/v1/admin/workspaces/{workspace['id']}/users"
    for number in range(5):
        person = {
            "email": f"m{number}@example.test",
            "role": "member",
            "workspaces": [{"id": workspace["id"], "role": "member"}],
        }
        token = admin.create("/v1/admin/users/invites", person)["invite_link"].rpartition("=")[2]
        own = {"token": token, "first_name": "A", "last_name": "B", "password": "a long password of a test"}
        expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", own))
    every = [row["email"] for row in admin.read(f"{path}?order=asc")["data"]]
    assert len(every) == 5
    assert [row["email"] for row in admin.read(path)["data"]] == every[::-1]
    pages = [admin.read(f"{path}?order=asc&page_size=2&current_page={number}") for number in range(4)]
    assert [row["email"] for page in pages for row in page["data"]] == every
    assert {page["total"] for page in pages} == {5}
    first = admin.read(f"{path}?email=M0@example.test")["data"]
    assert [row["email"] for row in first] == ["m0@example.test"]
    expect_ok(admin.put(f"{path}/{first[0]['id']}", {"role": "manager"}))
    changed = [row["email"] for row in admin.read(f"{path}?sort=last_updated_at")["data"]]
    assert changed[0] == "m0@example.test"
    assert admin.read(f"{path}?role=manager")["total"] == 1


def test_price_list_has_a_default_and_models_have_a_primary_type(admin: Client):
    listed = admin.read("/v1/pricing/openai.json")
    default = listed["default"]["pricing_config"]
    assert default["pay_as_you_go"]["request_token"] == {"price": 0.0}
    values = [part["operands"][0]["value"] for part in default["calculate"]["request"]["operands"]]
    assert {"input_tokens", "cache_read_tokens"} <= set(values)
    chat = admin.read("/v1/model-configs/general/openai/gpt-4o")
    assert chat["type"]["primary"] == "chat"
    assert (chat["messages"]["options"], chat["removeParams"]) == (["system", "user", "assistant"], [])
    embedding = admin.read("/v1/model-configs/general/openai/text-embedding-3-small")
    assert (embedding["type"]["primary"], embedding["messages"], embedding["params"]) == ("embedding", None, [])


def test_pricing_adjustments_change_the_cost_of_requests(admin: Client, scenario: Mapping[str, Any]):
    integration = admin.create(
        "/v1/integrations", {"name": "ours", "slug": "ours", "ai_provider_id": "mock", "key": "sk-0123456789"}
    )
    path, model = f"/v1/integrations/{integration['slug']}", "mock?usage=on"
    expect_ok(admin.put(f"{path}/workspaces", {"workspaces": [{"id": scenario["id"], "enabled": True}]}))
    price = {"pay_as_you_go": {"request_token": {"price": 0.02}, "response_token": {"price": 0.04}}}
    priced = {"slug": model, "enabled": True, "is_custom": True, "pricing_config": price}
    expect_ok(admin.put(f"{path}/models", {"models": [priced]}))
    app = admin.with_new_key(workspace_id=scenario["id"], scopes=["completions.write"])
    fields = {**MOCK_HEADERS, "x-gateway-api-key": app.key, "x-gateway-provider": "@ours"}

    def send_and_read_cost() -> tuple[int, str]:
        before = len(admin.gateway.records(0))
        assert send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(model), fields).status == 200
        record = admin.gateway.records(before + 1)[-1]
        return record["cost_nanodollars"], record["price_version"]

    usual, version = send_and_read_cost()
    assert usual > 0
    expect_ok(admin.put(path, {"pricing_adjustments": {"multiplier": {"default": 0.5}}}))
    half, changed = send_and_read_cost()
    assert 2 * half == usual
    assert changed.startswith(f"{version}*")
    expect_ok(admin.put(path, {"pricing_adjustments": None}))
    assert send_and_read_cost() == (usual, version)


def test_accepts_back_shown_access_of_an_archived_workspace(admin: Client):
    old, new = (admin.create("/v1/workspaces", {"name": name}) for name in ("Leaving", "Staying"))
    path = f"/v1/integrations/{admin.create('/v1/integrations', {'name': 'i', 'ai_provider_id': 'mock'})['slug']}"
    both = [{"id": workspace["id"], "enabled": True, "usage_limits": [{"credit_limit": 5}]} for workspace in (old, new)]
    expect_ok(admin.put(f"{path}/workspaces", {"workspaces": both}))
    vault = {"vault_addr": "https://vault.example", "vault_auth_type": "token", "vault_token": "t-0123456789"}
    reference = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
    names = {"allowed_workspaces": [old["id"], new["id"]]}
    secret = f"/v1/secret-references/{admin.create('/v1/secret-references', {**reference, **names})['id']}"
    expect_ok(admin.delete(f"/v1/workspaces/{old['id']}", {"name": "Leaving", "force_delete": True}))
    fields = ("id", "enabled", "rate_limits")
    fetched = admin.read(f"{path}/workspaces")["workspaces"]
    limits = [{"usage_limits": [{"credit_limit": 5}]}] * 2
    sent = [{name: item[name] for name in fields} | more for item, more in zip(fetched, limits, strict=True)]
    for override in (False, True):
        body = {"workspaces": sent, "override_existing_workspace_access": override}
        expect_ok(admin.put(f"{path}/workspaces", body))
        again = admin.read(f"{path}/workspaces")["workspaces"]
        assert {item["workspace_id"]: item["enabled"] for item in again} == {old["id"]: True, new["id"]: True}
    expect_ok(admin.put(f"{path}/workspaces", {"workspaces": [{"id": old["slug"], "enabled": False}]}))
    opened = {"workspaces": [{"id": old["slug"], "enabled": True}]}
    expect_error(admin.put(f"{path}/workspaces", opened), 404, "AB02", "workspaces[0].id", "archived")
    expect_ok(admin.put(secret, {"allowed_workspaces": admin.read(f"{secret}/workspaces")["allowed_workspaces"]}))
    assert admin.read(f"{secret}/workspaces")["allowed_workspaces"] == names["allowed_workspaces"]
    expect_ok(admin.put(secret, {"allowed_workspaces": [new["slug"]]}))
    expect_error(admin.put(secret, names), 404, "AB02", "allowed_workspaces[0]", "archived")


def test_rejects_machine_identity_references_unless_allowed(admin: Client):
    body = {"name": "mine", "manager_type": "aws_sm", "secret_path": "a/b"}
    role = {"aws_auth_type": "serviceRole", "aws_region": "eu-west-1"}
    words = ("auth_config.aws_auth_type", "identity.allow_provider_use")
    expect_error(admin.post("/v1/secret-references", {**body, "auth_config": role}), 400, "AB01", *words)
    keys = {"aws_access_key_id": "AKIA0123456789ABCDEF", "aws_secret_access_key": "s", "aws_region": "eu-west-1"}
    secret_reference = admin.create(
        "/v1/secret-references", {**body, "auth_config": {"aws_auth_type": "accessKey", **keys}}
    )
    path = f"/v1/secret-references/{secret_reference['slug']}"
    expect_error(admin.put(path, {"auth_config": {"aws_auth_type": "serviceRole"}}), 400, "AB01", *words)
    assert admin.read(path)["auth_config"]["aws_auth_type"] == "accessKey"
    assert admin.read("/v1/secret-references?search=mine")["total"] == 1
