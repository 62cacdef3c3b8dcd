"""API keys over HTTP: allowed fields, rotation and access."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

HALF_HOUR_MS = 1_800_000


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/admin/workspaces", {"name": "Keys"})["id"]


@pytest.fixture(scope="module")
def owner(admin: Client, workspace: str) -> str:
    (user,) = admin.read("/v1/admin/users?role=owner")["data"]
    admin.post(f"/v1/workspaces/{workspace}/users", {"users": [{"id": user["id"], "role": "member"}]})
    return user["id"]


@pytest.fixture
def body(workspace: str) -> dict[str, Any]:
    return {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace}


def wait_for_status(gateway: Gateway, key: str, status: int = 200, seconds: float = 2) -> float:
    """Waits until the data plane answers a key with `status`; returns the time that it took in seconds."""
    started = time.monotonic()
    headers = {**MOCK_HEADERS, "x-gateway-api-key": key}
    wait_for(
        f"a {status}",
        lambda: send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), headers).status == status or None,
        seconds,
    )
    return time.monotonic() - started


def test_key_is_shown_once_and_masked_afterwards(admin: Client, body: dict[str, Any]):
    limits = {
        "rate_limits": [{"type": "requests", "unit": "rps", "value": 9}, {"type": "tokens", "unit": "rpw", "value": 1}],
        "usage_limits": {"type": "tokens", "credit_limit": 100, "alert_threshold": 50, "periodic_reset_days": 3},
        "alert_emails": ["a@b.test"],
        "expires_at": "2099-01-01T02:00:00+02:00",
        "description": "for the app",
        "defaults": {"metadata": {"a": {"b": 1}}, "allow_config_override": False},
        "rotation_policy": {"rotation_period_days": 10, "key_transition_period_ms": HALF_HOUR_MS},
    }
    key = admin.create("/v1/api-keys/workspace/service", {**body, **limits})
    assert set(key) == {"id", "key", "object"}
    fetched = admin.read(f"/v1/api-keys/{key['id']}")
    assert fetched["key"] == f"{key['key'][:2]}*****{key['key'][-3:]}"
    assert (fetched["type"], fetched["status"], fetched["creation_mode"]) == ("workspace-service", "active", "api")
    for name in ("rate_limits", "alert_emails", "description"):
        assert fetched[name] == limits[name]
    assert limits["usage_limits"].items() <= fetched["usage_limits"].items()
    assert fetched["expires_at"] == "2099-01-01T00:00:00.000Z"
    assert (fetched["defaults"]["metadata"], fetched["defaults"]["allow_config_override"]) == ({"a": {"b": 1}}, False)
    due = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=10)
    assert fetched["rotation_policy"]["next_rotation_at"] == f"{due}T00:00:00.000Z"
    for prefix in ("/v1/api-keys", "/v2/api-keys"):
        (listed,) = admin.read(f"{prefix}?ids={key['id']}")["data"]
        assert listed == fetched
    everything = str([fetched, admin.read("/v1/api-keys?page_size=1000")])
    assert key["key"] not in everything


def test_new_and_deleted_keys_take_effect_within_a_second(admin: Client, body: dict[str, Any]):
    key = admin.create("/v1/api-keys/workspace/service", body)
    assert wait_for_status(admin.gateway, key["key"]) < 1
    assert expect_ok(admin.delete(f"/v1/api-keys/{key['id']}")) == {}
    assert wait_for_status(admin.gateway, key["key"], 401) < 1
    expect_error(admin.get(f"/v1/api-keys/{key['id']}"), 404, "AB08")


def test_key_without_scope_and_expired_key_are_rejected(admin: Client, body: dict[str, Any], provider: Mock):
    reader = admin.with_new_key(**{**body, "scopes": ["configs.list"]})
    assert reader.read("/v1/configs")["total"] == 0
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)).isoformat()
    short = admin.with_new_key(**{**body, "scopes": ["configs.list", "completions.write"], "expires_at": soon})
    wait_for_status(admin.gateway, short.key)
    # A known key without the right is rejected with the reason, in whichever header it is sent. The organisation's key
    # has the wrong type.
    workspaces = ("x-gateway-api-key", "{}"), ("x-api-key", "{}"), ("authorization", "Bearer {}")
    wait_for_status(admin.gateway, reader.key, 403)
    for key, reason in ((reader.key, "completions.write"), (admin.key, "organisation")):
        for name, value in workspaces:
            response = send_raw_request(
                admin.gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, name: value.format(key)}
            )
            expect_error(response, 403, "AB03", reason)
    # The data plane knows both keys, so it forwards neither as a provider's credential.
    before = len(provider.ledger())
    for key in (reader.key, admin.key):
        both_headers = {**MOCK_HEADERS, "x-gateway-api-key": short.key, "authorization": f"Bearer {key}", "x-note": key}
        assert send_raw_request(admin.gateway.base_url, "/v1/proxy/echo", headers=both_headers).status == 200
    sent = provider.ledger()[before:]
    assert len(sent) == 2
    assert not any(key in json.dumps(entry) for entry in sent for key in (reader.key, admin.key))
    wait_for_status(admin.gateway, short.key, 401, 4)
    wait_for("the end", lambda: short.get("/v1/configs").status == 401 or None, 3)
    expect_error(short.get("/v1/configs"), 401, "AB05", "expired")
    expect_error(
        admin.put(
            "/v1/api-keys/" + admin.read("/v1/api-keys")["data"][0]["id"], {"expires_at": "2001-01-01T00:00:00Z"}
        ),
        400,
        "AB01",
        "expires_at",
    )


def test_missing_and_unknown_keys_are_unauthorised(admin: Client):
    unknown = Client(admin.gateway, "nobody")
    expect_error(unknown.get("/v1/configs"), 401, "AB05")
    response = send_raw_request(admin.gateway.base_url, "/v1/configs", headers={})
    expect_error(response, 401, "AB05", "x-gateway-api-key")
    for headers in ({"authorization": f"Bearer {admin.key}"}, {"x-portkey-api-key": admin.key}):
        assert send_raw_request(admin.gateway.base_url, "/v1/configs", headers=headers).status == 200


def test_creates_keys_of_every_type(admin: Client, workspace: str, owner: str):
    kinds = {
        "organisation/service": {"scopes": ["workspaces.create", "audit_logs.list"]},
        "organisation/user": {"scopes": ["configs.list"], "user_id": owner},
        "workspace/service": {"scopes": ["completions.write"], "workspace_id": workspace},
        "workspace/user": {"scopes": ["completions.write"], "workspace_id": workspace, "user_id": owner},
    }
    for kind, fields in kinds.items():
        key = admin.create(f"/v1/api-keys/{kind}", {"name": kind, **fields})
        assert admin.read(f"/v1/api-keys/{key['id']}")["type"] == kind.replace("/", "-")
    expect_error(admin.post("/v1/api-keys/team/service", {"name": "x", "scopes": ["configs.list"]}), 400, "AB01")


@pytest.mark.parametrize(
    ("kind", "change", "status", "code", "words"),
    [
        ("workspace/service", {"scopes": []}, 400, "AB01", "scopes"),
        ("workspace/service", {"scopes": ["fly.high"]}, 400, "AB01", "scopes[0]"),
        ("workspace/service", {"scopes": ["workspaces.delete"]}, 400, "AB01", "workspace-service"),
        ("organisation/service", {"scopes": ["completions.write"], "workspace_id": None}, 400, "AB01", "scopes[0]"),
        ("organisation/service", {"scopes": ["configs.list"]}, 403, "AB03", "workspace_id"),
        ("workspace/service", {"workspace_id": None}, 400, "AB01", "workspace_id"),
        ("workspace/service", {"workspace_id": "ws-none"}, 403, "AB03", "ws-none"),
        ("workspace/service", {"organisation_id": "other"}, 403, "AB03", "other"),
        ("workspace/service", {"user_id": "someone"}, 400, "AB01", "user_id"),
        ("workspace/user", {}, 400, "AB01", "user_id"),
        ("workspace/user", {"user_id": "someone"}, 404, "AB02", "user_id"),
        ("workspace/service", {"defaults": {"config_id": "pc-none"}}, 404, "AB02", "defaults.config_id"),
        ("workspace/service", {"expires_at": "2001-01-01T00:00:00Z"}, 400, "AB01", "expires_at"),
        ("workspace/service", {"alert_emails": ["nobody"]}, 400, "AB01", "alert_emails"),
        ("workspace/service", {"usage_limits": {"credit_limit": 0}}, 400, "AB01", "credit_limit"),
        ("workspace/service", {"rate_limits": [{"type": "requests", "unit": "rpx", "value": 1}]}, 400, "AB01", "unit"),
        (
            "workspace/service",
            {"rotation_policy": {"rotation_period": "weekly", "rotation_period_days": 7}},
            400,
            "AB01",
            "rotation_policy",
        ),
        ("workspace/service", {"rotation_policy": {"rotation_period_days": 366}}, 400, "AB01", "rotation_period_days"),
        (
            "workspace/service",
            {"rotation_policy": {"rotation_period": "weekly", "key_transition_period_ms": HALF_HOUR_MS - 1}},
            400,
            "AB01",
            "key_transition_period_ms",
        ),
        (
            "workspace/service",
            {"rotation_policy": {"rotation_period_days": 1, "key_transition_period_ms": 86_400_000}},
            400,
            "AB01",
            "key_transition_period_ms",
        ),
    ],
)
def test_rejects_invalid_key_fields(  # noqa: PLR0913, PLR0917 - the columns of the table
    admin: Client, body: dict[str, Any], kind: str, change: dict[str, Any], status: int, code: str, words: str
):
    sent = {name: value for name, value in {**body, **change}.items() if value is not None}
    expect_error(admin.post(f"/v1/api-keys/{kind}", sent), status, code, words)


def test_key_cannot_grant_more_than_its_own_scopes(admin: Client, workspace: str):
    scopes = [
        "workspace_service_api_keys.create",
        "workspace_service_api_keys.update",
        "workspace_service_api_keys.rotate",
        "configs.list",
    ]
    maker = admin.with_new_key(workspace_id=workspace, scopes=scopes)
    weak = maker.create("/v1/api-keys/workspace/service", {"name": "weak", "scopes": ["configs.list"]})
    strong = {"name": "strong", "scopes": ["configs.delete"]}
    expect_error(maker.post("/v1/api-keys/workspace/service", strong), 403, "AB03", "configs.delete")
    expect_error(maker.put(f"/v1/api-keys/{weak['id']}", {"scopes": ["configs.delete"]}), 403, "AB03")
    expect_error(
        maker.post("/v1/api-keys/organisation/service", {"name": "x", "scopes": ["configs.list"]}), 403, "AB03"
    )
    # Rotating a stronger key would reveal its secret, so it is rejected too.
    other = admin.create("/v1/api-keys/workspace/service", {**strong, "workspace_id": workspace})
    expect_error(maker.post(f"/v1/api-keys/{other['id']}/rotate", {}), 403, "AB03")
    expect_error(maker.get(f"/v1/api-keys/{weak['id']}"), 403, "AB03")
    expect_error(maker.delete(f"/v1/api-keys/{weak['id']}"), 403, "AB03")


def test_keys_of_another_workspace_are_not_found(admin: Client, workspace: str, body: dict[str, Any]):
    elsewhere = admin.create("/v1/workspaces", {"name": "elsewhere"})["id"]
    verbs = [f"workspace_service_api_keys.{verb}" for verb in ("list", "read", "update", "delete", "rotate")]
    other_client = admin.with_new_key(workspace_id=elsewhere, scopes=verbs)
    key = admin.create("/v1/api-keys/workspace/service", body)
    expect_error(other_client.get(f"/v1/api-keys/{key['id']}"), 404, "AB08")
    expect_error(other_client.put(f"/v1/api-keys/{key['id']}", {"name": "mine"}), 404, "AB08")
    expect_error(other_client.delete(f"/v1/api-keys/{key['id']}"), 404, "AB08")
    expect_error(other_client.post(f"/v1/api-keys/{key['id']}/rotate", {}), 404, "AB08")
    expect_error(other_client.get(f"/v1/api-keys?workspace_id={workspace}"), 403, "AB03")
    assert other_client.read(f"/v1/api-keys?ids={key['id']}")["total"] == 0
    expect_error(other_client.get("/v1/api-keys?ids=x"), 400, "AB01", "ids")


def test_update_keeps_omitted_fields_and_null_clears_them(admin: Client, body: dict[str, Any]):
    fields = {
        "rate_limits": [{"type": "tokens", "unit": "rpm", "value": 1}],
        "rotation_policy": {"rotation_period": "monthly"},
    }
    key = admin.create("/v1/api-keys/workspace/service", {**body, **fields})
    path = f"/v1/api-keys/{key['id']}"
    before = admin.read(path)
    assert before["rotation_policy"]["next_rotation_at"].endswith("-01T00:00:00.000Z")
    assert expect_ok(admin.put(path, {"name": "new", "reset_usage": True})) == {}
    after = admin.read(path)
    assert (after["name"], after["rate_limits"], after["scopes"]) == ("new", fields["rate_limits"], body["scopes"])
    assert after["last_reset_at"]
    expect_ok(admin.put(path, {"rate_limits": None, "rotation_policy": None, "scopes": ["logs.write"]}))
    after = admin.read(path)
    assert (after["rate_limits"], after["rotation_policy"], after["scopes"]) == (None, None, ["logs.write"])
    wait_for_status(admin.gateway, key["key"], 403)


def test_rotated_key_has_two_secrets_during_the_transition(admin: Client, body: dict[str, Any]):
    created = admin.create("/v1/api-keys/workspace/service", body)
    rotated = admin.create(f"/v1/api-keys/{created['id']}/rotate", {"key_transition_period_ms": HALF_HOUR_MS})
    end = dt.datetime.fromisoformat(rotated["key_transition_expires_at"]) - dt.datetime.now(dt.UTC)
    assert 1790 < end.total_seconds() < 1801
    for key in (created["key"], rotated["key"]):
        wait_for_status(admin.gateway, key)
    fetched = admin.read(f"/v1/api-keys/{created['id']}")
    assert (fetched["key"][-3:], bool(fetched["last_rotated_at"])) == (rotated["key"][-3:], True)
    expect_error(admin.post(f"/v1/api-keys/{created['id']}/rotate", {}), 409, "AB07")
    short = {"key_transition_period_ms": HALF_HOUR_MS - 1}
    expect_error(admin.post(f"/v1/api-keys/{created['id']}/rotate", short), 400, "AB01", "key_transition_period_ms")
    long = {"key_transition_period_ms": 10**15}
    expect_error(admin.post(f"/v1/api-keys/{created['id']}/rotate", long), 400, "AB01", "key_transition_period_ms")


def test_rotates_a_key_without_a_body(admin: Client, body: dict[str, Any]):
    key = admin.create("/v1/api-keys/workspace/service", body)
    assert expect_ok(admin.send("POST", f"/v1/api-keys/{key['id']}/rotate"))["id"] == key["id"]


def test_enforced_rotation_period_applies_to_user_keys(admin: Client, owner: str):
    users = [{"id": owner, "role": "admin"}]
    workspace = admin.create(
        "/v1/workspaces", {"name": "strict", "users": users, "settings": {"user_api_key_rotation_period": "weekly"}}
    )
    body = {"name": "mine", "scopes": ["completions.write"], "workspace_id": workspace["id"], "user_id": owner}
    key = admin.create("/v1/api-keys/workspace/user", body)
    assert admin.read(f"/v1/api-keys/{key['id']}")["rotation_policy"]["rotation_period_days"] == 7
    admin.create("/v1/api-keys/workspace/user", {**body, "rotation_policy": {"rotation_period_days": 7}})
    for policy in ({"rotation_period": "monthly"}, {"next_rotation_at": "2099-01-01T00:00:00Z"}):
        expect_error(
            admin.post("/v1/api-keys/workspace/user", {**body, "rotation_policy": policy}), 400, "AB01", "enforced"
        )
        expect_error(admin.put(f"/v1/api-keys/{key['id']}", {"rotation_policy": policy}), 400, "AB01", "enforced")
    # A policy without a period keeps the current one.
    expect_ok(
        admin.put(f"/v1/api-keys/{key['id']}", {"rotation_policy": {"key_transition_period_ms": 2 * HALF_HOUR_MS}})
    )
    remaining = admin.read(f"/v1/api-keys/{key['id']}")["rotation_policy"]
    assert (remaining["rotation_period_days"], remaining["key_transition_period_ms"]) == (7, 2 * HALF_HOUR_MS)
    assert remaining["next_rotation_at"]
    # The policy is accepted in the form in which it was returned.
    expect_ok(admin.put(f"/v1/api-keys/{key['id']}", {"rotation_policy": remaining}))
    assert admin.read(f"/v1/api-keys/{key['id']}")["rotation_policy"] == remaining
    config = admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["id"]})
    expect_ok(admin.put(f"/v2/workspaces/{workspace['id']}", {"defaults": {"user_api_key_config": config["slug"]}}))
    key = admin.create("/v1/api-keys/workspace/user", body)
    assert admin.read(f"/v1/api-keys/{key['id']}")["defaults"]["config_id"] == config["id"]


def test_archived_config_cannot_be_a_default(admin: Client, body: dict[str, Any]):
    new = {"name": "c", "config": {"provider": "mock"}, "workspace_id": body["workspace_id"]}
    config = admin.create("/v1/configs", new)
    expect_ok(admin.put(f"/v1/configs/{config['slug']}", {"status": "archived"}))
    expect_error(
        admin.post("/v1/api-keys/workspace/service", {**body, "defaults": {"config_id": config["slug"]}}),
        404,
        "AB02",
        "defaults.config_id",
    )
    default = {"defaults": {"user_api_key_config": config["slug"]}}
    expect_error(
        admin.put(f"/v2/workspaces/{body['workspace_id']}", default), 404, "AB02", "defaults.user_api_key_config"
    )


def test_user_key_follows_role_and_ends_with_membership(admin: Client, owner: str):
    """Tests with the owner, who has admin rights in every workspace. A plain member could exist only through an invite."""
    workspace = admin.create("/v1/workspaces", {"name": "people", "users": [{"id": owner, "role": "member"}]})["id"]
    body = {
        "kind": "workspace/user",
        "workspace_id": workspace,
        "user_id": owner,
        "scopes": ["configs.create", "configs.list"],
    }
    person = admin.with_new_key(**body)
    assert person.post("/v1/configs", {"name": "c", "config": {"provider": "mock"}}).status == 200
    expect_ok(admin.delete(f"/v1/workspaces/{workspace}/users/{owner}"))
    expect_error(person.get("/v1/configs"), 401, "AB05")
