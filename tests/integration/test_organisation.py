"""Rules of the organisation and its workspaces, over HTTP and on the data plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.access.roles import DEFAULT_FLAGS
from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

SETTINGS_PATH = "/v1/admin/organisation/settings"
DEFAULTS_PATH = "/v1/admin/organisation/defaults"


@pytest.fixture
def resetting_admin(admin: Client) -> Iterator[Client]:
    yield admin
    admin.put(
        SETTINGS_PATH, {"user_api_key_rotation_period": None, "session_settings": None, "block_inline_config": False}
    )


def send_chat(admin: Client, key: str, fields: Mapping[str, str]) -> Response:
    return send_raw_request(
        admin.gateway.base_url, CHAT_PATH, chat_body(), {**JSON_HEADERS, "x-gateway-api-key": key, **fields}
    )


def create_workspace_key(admin: Client, workspace: str) -> str:
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    wait_for("the key", lambda: send_chat(admin, key, MOCK_HEADERS).status != 401 or None, 3)
    return key


def test_new_organisation_has_the_default_settings(admin: Client):
    fetched = admin.read(SETTINGS_PATH)
    assert fetched == {
        "user_api_key_rotation_period": None,
        "block_inline_config": False,
        "user_api_key_ttl": None,
        "session_settings": {"max_session_ttl": 43200},
        "security_settings": DEFAULT_FLAGS,
        "security_settings_overrides": {},
        "user_api_key_auto_create": False,
        "default_workspace_user_api_key_auto_create": False,
        "export_settings": {"deniedFields": []},
        "data_visibility": {"managersViewAllData": True, "membersViewAllData": True},
        "disable_auto_provision_user": False,
        "object": "organisation-settings",
    }


@pytest.mark.parametrize(("period", "days"), [("weekly", 7), ("monthly", 30), (1, 1), (365, 365)])
def test_written_rule_is_read_back_and_others_stay(resetting_admin: Client, period: str | int, days: int):
    expect_ok(resetting_admin.put(SETTINGS_PATH, {"session_settings": {"max_session_ttl": 900}}))
    assert (
        expect_ok(resetting_admin.put(SETTINGS_PATH, {"user_api_key_rotation_period": period}))[
            "user_api_key_rotation_period"
        ]
        == days
    )
    fetched = resetting_admin.read(SETTINGS_PATH)
    assert (fetched["user_api_key_rotation_period"], fetched["session_settings"]) == (days, {"max_session_ttl": 900})
    assert (
        expect_ok(resetting_admin.put(SETTINGS_PATH, {"user_api_key_rotation_period": None}))[
            "user_api_key_rotation_period"
        ]
        is None
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"session_settings": {"max_session_ttl": 899}}, "session_settings.max_session_ttl"),
        ({"user_api_key_rotation_period": 0}, "user_api_key_rotation_period"),
        ({"user_api_key_rotation_period": 366}, "user_api_key_rotation_period"),
        ({"user_api_key_rotation_period": "daily"}, "user_api_key_rotation_period"),
        ({"block_inline_config": "yes"}, "block_inline_config"),
        ({"blocks": True}, "blocks"),
        ({"user_api_key_ttl": 0}, "user_api_key_ttl"),
        ({"user_api_key_ttl": 1e9}, "user_api_key_ttl"),
        ({"user_api_key_auto_create": 2}, "user_api_key_auto_create"),
        ({"default_workspace_user_api_key_auto_create": "no"}, "default_workspace_user_api_key_auto_create"),
        ({"export_settings": {"deniedFields": ["secrets"]}}, "export_settings.deniedFields"),
        ({"export_settings": {}}, "deniedFields"),
        ({"data_visibility": {"membersViewNothing": True}}, "membersViewNothing"),
        ({"disable_auto_provision_user": []}, "disable_auto_provision_user"),
        # Only workspaces have this rule.
        ({"user_api_key_max_ttl": 60}, "user_api_key_max_ttl"),
    ],
)
def test_rejects_an_invalid_rule_by_its_path(admin: Client, body: dict[str, Any], path: str):
    expect_error(admin.put(SETTINGS_PATH, body), 400, "AB01", path)


def test_settings_are_stored_and_null_resets_each(resetting_admin: Client):
    before = resetting_admin.read(SETTINGS_PATH)
    body = {
        "user_api_key_ttl": 3600,
        "security_settings": {**DEFAULT_FLAGS, "membersViewLogs": False},
        "security_settings_overrides": {"logs": False},
        "user_api_key_auto_create": True,
        "default_workspace_user_api_key_auto_create": True,
        "export_settings": {"deniedFields": ["request", "metadata"]},
        "data_visibility": {"managersViewAllData": True, "membersViewAllData": False},
        "disable_auto_provision_user": True,
    }
    assert (
        expect_ok(resetting_admin.put(SETTINGS_PATH, body)) == {**before, **body} == resetting_admin.read(SETTINGS_PATH)
    )
    assert expect_ok(resetting_admin.put(SETTINGS_PATH, {"data_visibility": {"managersViewAllData": False}}))[
        "data_visibility"
    ] == {
        "managersViewAllData": False,
        "membersViewAllData": True,
    }
    assert expect_ok(resetting_admin.put(SETTINGS_PATH, dict.fromkeys(body))) == before


def test_workspace_rotation_period_overrides_the_organisations(resetting_admin: Client):
    user = resetting_admin.read("/v1/admin/users?role=owner")["data"][0]["id"]
    expect_ok(resetting_admin.put(SETTINGS_PATH, {"user_api_key_rotation_period": 20}))
    days = {}
    for name, rules in (("above", {}), ("own", {"user_api_key_rotation_period": "weekly"})):
        workspace = resetting_admin.create("/v1/workspaces", {"name": name, "settings": rules, "users": [user]})["id"]
        body = {"name": "k", "workspace_id": workspace, "user_id": user, "scopes": ["completions.write"]}
        key = resetting_admin.create("/v1/api-keys/workspace/user", body)
        days[name] = resetting_admin.read(f"/v1/api-keys/{key['id']}")["rotation_policy"]["rotation_period_days"]
        expect_error(
            resetting_admin.post(
                "/v1/api-keys/workspace/user", {**body, "rotation_policy": {"rotation_period_days": 9}}
            ),
            400,
            "AB01",
            "rotation_policy",
        )
    assert days == {"above": 20, "own": 7}


@pytest.mark.parametrize("of", ["workspace", "organisation"])
def test_blocked_inline_options_are_rejected_saved_ones_work(resetting_admin: Client, of: str):
    workspace = resetting_admin.create("/v1/workspaces", {"name": f"blocked by {of}"})["id"]
    other = resetting_admin.create("/v1/workspaces", {"name": "not blocked"})["id"]
    saved = {"name": "kept", "provider": "mock", "key": "sk-kept", "workspace_id": workspace}
    slug = resetting_admin.create("/v1/virtual-keys", saved)["data"]["slug"]
    key, free = create_workspace_key(resetting_admin, workspace), create_workspace_key(resetting_admin, other)
    if of == "workspace":
        expect_ok(resetting_admin.put(f"/v1/workspaces/{workspace}", {"settings": {"block_inline_config": True}}))
        assert resetting_admin.read(f"/v1/workspaces/{workspace}")["settings"] == {"block_inline_config": True}
    else:
        expect_ok(resetting_admin.put(SETTINGS_PATH, {"block_inline_config": True}))
    wait_for("the rule", lambda: send_chat(resetting_admin, key, MOCK_HEADERS).status == 400 or None, 2)
    for fields, code in (
        ({"x-gateway-config": '{"provider":"mock"}', "x-gateway-provider": "mock"}, "inline_config_blocked"),
        ({"x-gateway-provider": "mock", "x-gateway-custom-host": "https://a.test"}, "inline_provider_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-custom-host": "https://a.test"}, "inline_custom_host_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-azure-resource-name": "a"}, "inline_provider_url_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-forward-headers": "x-a"}, "inline_forward_headers_blocked"),
    ):
        response = send_chat(resetting_admin, key, fields)
        assert (response.status, response.json()["error"]["code"]) == (400, code), response.body
        assert response.json()["status"] == "failure"
    for fields in ({"x-gateway-virtual-key": slug}, {"x-gateway-provider": f"@{slug}"}):
        assert send_chat(resetting_admin, key, fields).status == 200
    assert send_chat(resetting_admin, free, MOCK_HEADERS).status == (200 if of == "workspace" else 400)


def test_default_guardrails_are_stored_and_can_be_cleared(admin: Client):
    body = {"name": "g", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
    owner = {"organisation_id": admin.read("/v1/workspaces")["data"][0]["organisation_id"]}
    item, other = [admin.create("/v1/guardrails", {**body, **owner}) for _ in range(2)]
    for prefix in ("/v1/admin/organisation", "/v2/admin/organisation"):
        both = {"input_guardrails": [item["slug"]], "output_guardrails": [item["id"], other["slug"]]}
        assert expect_ok(admin.put(f"{prefix}/defaults", both)) == {}
        assert expect_ok(admin.put(f"{prefix}/defaults", {"output_guardrails": None})) == {}
        fetched = admin.read(f"{prefix}/defaults")
        names = [{"id": item["id"], "slug": item["slug"]}]
        assert (fetched["input_guardrails"], fetched["output_guardrails"]) == (names, [])
    assert "defaults" not in admin.read(SETTINGS_PATH)


def test_only_organisation_keys_with_the_scope_access_rules(admin: Client):
    (workspace, *_) = admin.read("/v1/workspaces")["data"]
    reader = admin.with_new_key(kind="organisation/service", scopes=["organisation_settings.read"])
    assert reader.get(SETTINGS_PATH).status == 200
    expect_error(reader.put(SETTINGS_PATH, {"block_inline_config": True}), 403, "AB03", "organisation_settings.update")
    inside = admin.with_new_key(workspace_id=workspace["id"], scopes=["workspaces.read", "workspaces.update"])
    for response in (inside.get(SETTINGS_PATH), inside.put(DEFAULTS_PATH, {})):
        expect_error(response, 403, "AB03")
