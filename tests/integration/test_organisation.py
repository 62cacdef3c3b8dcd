"""Rules of the organisation and its workspaces over HTTP, and in force on the data plane, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.kit.roles import DEFAULT_FLAGS
from tests.integration.managed import Client, good, refused
from tests.integration.wire import CHAT, JSON, MOCK, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.wire import Answer

SETTINGS = "/v1/admin/organisation/settings"
DEFAULTS = "/v1/admin/organisation/defaults"


@pytest.fixture
def cleared(admin: Client) -> Iterator[Client]:
    yield admin
    admin.put(SETTINGS, {"user_api_key_rotation_period": None, "session_settings": None, "block_inline_config": False})


def call(admin: Client, key: str, fields: Mapping[str, str]) -> Answer:
    return ask(admin.gateway.base_url, CHAT, asked(), {**JSON, "x-gateway-api-key": key, **fields})


def key_in(admin: Client, workspace: str) -> str:
    key = admin.with_key(workspace_id=workspace, scopes=["completions.write"]).key
    wait("the key", lambda: call(admin, key, MOCK).status != 401 or None, 3)
    return key


def test_an_organisation_without_rules_says_the_usual(admin: Client):
    shown = admin.shown(SETTINGS)
    assert shown == {
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


@pytest.mark.parametrize(("given", "days"), [("weekly", 7), ("monthly", 30), (1, 1), (365, 365)])
def test_a_rule_that_is_written_is_read_and_the_others_stay(cleared: Client, given: str | int, days: int):
    good(cleared.put(SETTINGS, {"session_settings": {"max_session_ttl": 900}}))
    assert good(cleared.put(SETTINGS, {"user_api_key_rotation_period": given}))["user_api_key_rotation_period"] == days
    shown = cleared.shown(SETTINGS)
    assert (shown["user_api_key_rotation_period"], shown["session_settings"]) == (days, {"max_session_ttl": 900})
    assert good(cleared.put(SETTINGS, {"user_api_key_rotation_period": None}))["user_api_key_rotation_period"] is None


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
        # Of a workspace alone.
        ({"user_api_key_max_ttl": 60}, "user_api_key_max_ttl"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_path(admin: Client, body: dict[str, Any], path: str):
    refused(admin.put(SETTINGS, body), 400, "AB01", path)


def test_settings_for_what_is_to_come_are_kept_and_null_takes_each_away(cleared: Client):
    before = cleared.shown(SETTINGS)
    given = {
        "user_api_key_ttl": 3600,
        "security_settings": {**DEFAULT_FLAGS, "membersViewLogs": False},
        "security_settings_overrides": {"logs": False},
        "user_api_key_auto_create": True,
        "default_workspace_user_api_key_auto_create": True,
        "export_settings": {"deniedFields": ["request", "metadata"]},
        "data_visibility": {"managersViewAllData": True, "membersViewAllData": False},
        "disable_auto_provision_user": True,
    }
    assert good(cleared.put(SETTINGS, given)) == {**before, **given} == cleared.shown(SETTINGS)
    assert good(cleared.put(SETTINGS, {"data_visibility": {"managersViewAllData": False}}))["data_visibility"] == {
        "managersViewAllData": False,
        "membersViewAllData": True,
    }
    assert good(cleared.put(SETTINGS, dict.fromkeys(given))) == before


def test_a_workspace_goes_before_its_organisation_in_how_often_keys_are_rotated(cleared: Client):
    user = cleared.shown("/v1/admin/users?role=owner")["data"][0]["id"]
    good(cleared.put(SETTINGS, {"user_api_key_rotation_period": 20}))
    days = {}
    for name, rules in (("above", {}), ("own", {"user_api_key_rotation_period": "weekly"})):
        place = cleared.made("/v1/workspaces", {"name": name, "settings": rules, "users": [user]})["id"]
        body = {"name": "k", "workspace_id": place, "user_id": user, "scopes": ["completions.write"]}
        made = cleared.made("/v1/api-keys/workspace/user", body)
        days[name] = cleared.shown(f"/v1/api-keys/{made['id']}")["rotation_policy"]["rotation_period_days"]
        refused(
            cleared.post("/v1/api-keys/workspace/user", {**body, "rotation_policy": {"rotation_period_days": 9}}),
            400,
            "AB01",
            "rotation_policy",
        )
    assert days == {"above": 20, "own": 7}


@pytest.mark.parametrize("of", ["workspace", "organisation"])
def test_with_inline_choices_blocked_each_is_refused_with_its_code_and_what_is_saved_goes_on(cleared: Client, of: str):
    place = cleared.made("/v1/workspaces", {"name": f"blocked by {of}"})["id"]
    other = cleared.made("/v1/workspaces", {"name": "not blocked"})["id"]
    saved = {"name": "kept", "provider": "mock", "key": "sk-kept", "workspace_id": place}
    slug = cleared.made("/v1/virtual-keys", saved)["data"]["slug"]
    key, free = key_in(cleared, place), key_in(cleared, other)
    if of == "workspace":
        good(cleared.put(f"/v1/workspaces/{place}", {"settings": {"block_inline_config": True}}))
        assert cleared.shown(f"/v1/workspaces/{place}")["settings"] == {"block_inline_config": True}
    else:
        good(cleared.put(SETTINGS, {"block_inline_config": True}))
    wait("the rule", lambda: call(cleared, key, MOCK).status == 400 or None, 2)
    for fields, code in (
        ({"x-gateway-config": '{"provider":"mock"}', "x-gateway-provider": "mock"}, "inline_config_blocked"),
        ({"x-gateway-provider": "mock", "x-gateway-custom-host": "https://a.test"}, "inline_provider_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-custom-host": "https://a.test"}, "inline_custom_host_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-azure-resource-name": "a"}, "inline_provider_url_blocked"),
        ({"x-gateway-virtual-key": slug, "x-gateway-forward-headers": "x-a"}, "inline_forward_headers_blocked"),
    ):
        answer = call(cleared, key, fields)
        assert (answer.status, answer.json()["error"]["code"]) == (400, code), answer.body
        assert answer.json()["status"] == "failure"
    for fields in ({"x-gateway-virtual-key": slug}, {"x-gateway-provider": f"@{slug}"}):
        assert call(cleared, key, fields).status == 200
    assert call(cleared, free, MOCK).status == (200 if of == "workspace" else 400)


def test_defaults_are_kept_and_each_may_be_emptied(admin: Client):
    for prefix in ("/v1/admin/organisation", "/v2/admin/organisation"):
        both = {"input_guardrails": ["pg-a"], "output_guardrails": ["pg-b", "pg-c"]}
        assert good(admin.put(f"{prefix}/defaults", both)) == {}
        assert good(admin.put(f"{prefix}/defaults", {"output_guardrails": None})) == {}
        shown = admin.shown(f"{prefix}/defaults")
        assert (shown["input_guardrails"], shown["output_guardrails"]) == (["pg-a"], [])
    assert "defaults" not in admin.shown(SETTINGS)


def test_only_keys_of_the_organisation_with_the_scope_see_or_change_rules(admin: Client):
    (place, *_) = admin.shown("/v1/workspaces")["data"]
    reader = admin.with_key(kind="organisation/service", scopes=["organisation_settings.read"])
    assert reader.get(SETTINGS).status == 200
    refused(reader.put(SETTINGS, {"block_inline_config": True}), 403, "AB03", "organisation_settings.update")
    inside = admin.with_key(workspace_id=place["id"], scopes=["workspaces.read", "workspaces.update"])
    for answer in (inside.get(SETTINGS), inside.put(DEFAULTS, {})):
        refused(answer, 403, "AB03")
