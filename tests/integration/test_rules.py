"""Rules for user API keys, set by a workspace and its organisation, over HTTP."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

SETTINGS_PATH = "/v1/admin/organisation/settings"
USER_KEYS_PATH = "/v1/api-keys/workspace/user"
NUMBERS = itertools.count(1)
KEY_RULES = {
    "user_api_key_ttl": 3600,
    "user_api_key_max_ttl": 7200,
    "user_api_key_count": 3,
    "user_key_metadata": {"team": "a"},
    "user_key_metadata_override": 0,
    "debug_log": 1,
}


class RuledWorkspace:
    """A workspace with rules, and keys of the organisation's owner in it."""

    def __init__(self, admin: Client, **rules: object) -> None:
        self.admin = admin
        self.user: str = admin.read("/v1/admin/users?role=owner")["data"][0]["id"]
        workspace = admin.create("/v1/workspaces", {"name": f"ruled {next(NUMBERS)}", "settings": rules})
        assert workspace["settings"] == rules
        self.id: str = workspace["id"]
        self.path = f"/v1/workspaces/{self.id}"

    def create_key(self, kind: str = "user", **fields: object) -> dict[str, Any]:
        path, body = f"/v1/api-keys/workspace/{kind}", self.key_body(**fields)
        if kind != "user":
            del body["user_id"]
        return self.admin.read(f"/v1/api-keys/{self.admin.create(path, body)['id']}")

    def key_body(self, **fields: object) -> dict[str, Any]:
        caller = {"workspace_id": self.id, "user_id": self.user}
        return {"name": "k", "scopes": ["completions.write"], **caller, **fields}


@pytest.fixture
def resetting_admin(admin: Client) -> Iterator[Client]:
    yield admin
    admin.put(SETTINGS_PATH, {"user_api_key_ttl": None})


def timestamp_in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def seconds_until_expiry(key: dict[str, Any]) -> float:
    return (datetime.fromisoformat(key["expires_at"]) - datetime.now(UTC)).total_seconds()


def test_debug_log_setting_omits_headers_from_records(admin: Client):
    workspace = RuledWorkspace(admin, debug_log=0)
    key = admin.create("/v1/api-keys/workspace/service", {**workspace.key_body(), "user_id": None})

    def send_and_get_record(**more: str) -> dict[str, Any]:
        model = f"noted-{next(NUMBERS)}"
        sent = {**MOCK_HEADERS, "x-gateway-api-key": key["key"], **more}
        assert send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(model), sent).status == 200

        def find_record() -> dict[str, Any] | None:
            return next((record for record in admin.gateway.records(0) if record.get("ai_model") == model), None)

        return wait_for("the record", find_record)

    def lacks_headers(record: dict[str, Any]) -> bool:
        return (record.get("debug"), "request_headers" in record) == (False, False)

    # Every worker of this node uses the change as soon as it is acknowledged.
    assert lacks_headers(send_and_get_record())
    assert lacks_headers(send_and_get_record(**{"x-gateway-debug": "true"}))
    for value in (1, None):
        expect_ok(admin.put(workspace.path, {"settings": {"debug_log": value}}))

        def has_headers() -> bool:
            noted = send_and_get_record()
            return ("debug" in noted, "request_headers" in noted) == (False, True)

        wait_for("a record with headers", lambda: has_headers() or None)
        assert lacks_headers(send_and_get_record(**{"x-gateway-debug": "false"}))


def test_rules_are_stored_and_removed_one_by_one(admin: Client):
    workspace = RuledWorkspace(admin, **KEY_RULES)
    assert admin.read(workspace.path)["settings"] == KEY_RULES
    changed = expect_ok(admin.put(workspace.path, {"settings": {"debug_log": 0, "user_api_key_ttl": None}}))["settings"]
    assert changed == {
        name: value for name, value in {**KEY_RULES, "debug_log": 0}.items() if name != "user_api_key_ttl"
    }


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"user_api_key_ttl": 0}, "user_api_key_ttl"),
        ({"user_api_key_max_ttl": -1}, "user_api_key_max_ttl"),
        ({"user_api_key_max_ttl": 10**9}, "user_api_key_max_ttl"),
        ({"user_api_key_count": -2}, "user_api_key_count"),
        ({"user_key_metadata": {"a": 1}}, "user_key_metadata"),
        ({"user_key_metadata_override": 2}, "user_key_metadata_override"),
        ({"debug_log": 2}, "debug_log"),
        ({"debug_log": "yes"}, "debug_log"),
        ({"user_api_key_ttl": 61, "user_api_key_max_ttl": 60}, "settings.user_api_key_ttl"),
        # Only the organisation has this rule.
        ({"default_workspace_user_api_key_auto_create": True}, "default_workspace_user_api_key_auto_create"),
    ],
)
def test_rejects_an_invalid_rule_by_its_name(admin: Client, rules: dict[str, Any], words: str):
    expect_error(admin.post("/v1/workspaces", {"name": "x", "settings": rules}), 400, "AB01", words)


def test_rejects_a_rule_that_conflicts_with_a_stored_one(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_max_ttl=60)
    expect_error(admin.put(workspace.path, {"settings": {"user_api_key_ttl": 61}}), 400, "AB01", "user_api_key_ttl")


def test_default_expiry_applies_to_user_keys_only(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_ttl=3600)
    assert 3590 < seconds_until_expiry(workspace.create_key()) <= 3600
    assert 3590 < seconds_until_expiry(workspace.create_key(expires_at=None)) <= 3600
    assert 7100 < seconds_until_expiry(workspace.create_key(expires_at=timestamp_in(7200))) <= 7200
    assert workspace.create_key("service")["expires_at"] is None
    assert RuledWorkspace(admin).create_key()["expires_at"] is None


def test_key_expires_on_the_data_plane_by_rule(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_ttl=2)
    key = admin.create(USER_KEYS_PATH, workspace.key_body())["key"]
    base, fields = admin.gateway.base_url, {**JSON_HEADERS, **MOCK_HEADERS, "x-gateway-api-key": key}
    assert send_raw_request(base, CHAT_PATH, chat_body(), fields).status == 200
    time.sleep(2)
    wait_for("the end", lambda: send_raw_request(base, CHAT_PATH, chat_body(), fields).status == 401 or None, 2)


def test_maximum_ttl_bounds_the_expiry_and_is_its_default(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_max_ttl=3600)
    key = workspace.create_key()
    assert 3590 < seconds_until_expiry(key) <= 3600
    expect_error(
        admin.post(USER_KEYS_PATH, workspace.key_body(expires_at=timestamp_in(3660))),
        400,
        "AB01",
        "expires_at",
        "3600 s",
    )
    path = f"/v1/api-keys/{key['id']}"
    for end in (None, timestamp_in(3660)):
        expect_error(admin.put(path, {"expires_at": end}), 400, "AB01", "expires_at")
    # The expiry may be sent back as it was shown, and an earlier one may be set.
    expect_ok(admin.put(path, {"expires_at": key["expires_at"], "name": "l"}))
    expect_ok(admin.put(path, {"expires_at": timestamp_in(60)}))
    expect_ok(admin.put(path, {"expires_at": key["expires_at"]}))
    # Keys from before the rule keep their expiry.
    old = RuledWorkspace(admin)
    before = old.create_key()
    expect_ok(admin.put(old.path, {"settings": {"user_api_key_max_ttl": 60}}))
    expect_ok(admin.put(f"/v1/api-keys/{before['id']}", {"name": "m"}))
    assert admin.read(f"/v1/api-keys/{before['id']}")["expires_at"] is None


def test_organisation_rule_applies_without_a_workspace_rule(resetting_admin: Client):
    expect_ok(resetting_admin.put(SETTINGS_PATH, {"user_api_key_ttl": 1000}))
    assert 990 < seconds_until_expiry(RuledWorkspace(resetting_admin).create_key()) <= 1000
    assert 490 < seconds_until_expiry(RuledWorkspace(resetting_admin, user_api_key_ttl=500).create_key()) <= 500
    assert 90 < seconds_until_expiry(RuledWorkspace(resetting_admin, user_api_key_max_ttl=100).create_key()) <= 100


def test_count_rule_limits_active_user_keys(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_count=2)
    first = workspace.create_key()
    workspace.create_key(expires_at=timestamp_in(1))
    expect_error(admin.post(USER_KEYS_PATH, workspace.key_body()), 403, "AB03", "user_id", "user_api_key_count")
    workspace.create_key("service")
    # Expired and deleted keys no longer count.
    time.sleep(1.1)
    workspace.create_key()
    expect_error(admin.post(USER_KEYS_PATH, workspace.key_body()), 403, "AB03")
    expect_ok(admin.delete(f"/v1/api-keys/{first['id']}"))
    workspace.create_key()
    expect_ok(admin.put(workspace.path, {"settings": {"user_api_key_count": -1}}))
    workspace.create_key()
    expect_ok(admin.put(workspace.path, {"settings": {"user_api_key_count": 0}}))
    expect_error(admin.post(USER_KEYS_PATH, workspace.key_body()), 403, "AB03")


@pytest.mark.parametrize(("override", "team"), [(None, "own"), (1, "own"), (0, "a")])
def test_rule_metadata_is_set_on_every_user_key(admin: Client, override: int | None, team: str):
    rules = {"user_key_metadata": {"team": "a", "floor": "3"}}
    workspace = RuledWorkspace(admin, **rules, **({} if override is None else {"user_key_metadata_override": override}))
    assert workspace.create_key()["defaults"]["metadata"] == {"team": "a", "floor": "3"}
    key = workspace.create_key(defaults={"metadata": {"team": "own", "mine": "x"}})
    assert key["defaults"]["metadata"] == {"team": team, "floor": "3", "mine": "x"}
    path = f"/v1/api-keys/{key['id']}"
    expect_ok(admin.put(path, {"defaults": {"metadata": {"team": "own"}}}))
    assert admin.read(path)["defaults"]["metadata"] == {"team": team, "floor": "3"}
    expect_ok(admin.put(path, {"defaults": None}))
    assert admin.read(path)["defaults"]["metadata"] == {"team": "a", "floor": "3"}
    expect_ok(admin.put(path, {"name": "renamed"}))
    assert workspace.create_key("service")["defaults"]["metadata"] is None


def test_key_from_an_invitation_follows_the_rules(admin: Client):
    ruled, full = RuledWorkspace(admin, **KEY_RULES), RuledWorkspace(admin, user_api_key_count=0)
    locations = [{"id": location.id, "role": "member"} for location in (ruled, full)]
    details = {"name": "k", "scopes": ["completions.write"]}
    invited = {
        "email": f"guest{next(NUMBERS)}@example.test",
        "role": "member",
        "workspaces": locations,
        "workspace_api_key_details": {name: details[name] for name in ("scopes",)},
    }
    token = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    body = {"token": token, "first_name": "A", "last_name": "B", "password": "a password of twelve"}
    (invite,) = expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", body))["api_keys"]
    key = admin.read(f"/v1/api-keys/{invite['id']}")
    assert key["workspace_id"] == ruled.id
    assert 3590 < seconds_until_expiry(key) <= 3600
    assert key["defaults"]["metadata"] == {"team": "a"}


def test_workspace_key_cannot_loosen_its_limits(admin: Client):
    workspace = RuledWorkspace(admin, user_api_key_max_ttl=3600, user_api_key_count=2)
    inside = admin.with_new_key(workspace_id=workspace.id, scopes=["workspaces.update", "workspaces.read"])
    for rules in (
        {"user_api_key_max_ttl": None},
        {"user_api_key_max_ttl": 3601},
        {"user_api_key_count": None},
        {"user_api_key_count": -1},
        {"user_api_key_count": 3},
    ):
        expect_error(inside.put(workspace.path, {"settings": rules}), 403, "AB03", "would loosen")
    expect_ok(inside.put(workspace.path, {"settings": {"user_api_key_max_ttl": 3599, "user_api_key_count": 1}}))
    expect_ok(admin.put(workspace.path, {"settings": {"user_api_key_max_ttl": None, "user_api_key_count": -1}}))
