"""Idempotency keys and `If-Match` preconditions. They prevent repeated and conflicting changes."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.access.tenant_rules import WorkspaceRules
from tests.integration.management_client import Client, expect_error, expect_ok, row_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

COUNTER = itertools.count(1)


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Conditions"})


@pytest.fixture
def key() -> str:
    return f"key {next(COUNTER)} of a test"


def post_once(client: Client, key: str, path: str, body: object) -> Response:
    return Client(client.gateway, client.key, {"idempotency-key": key}).post(path, body)


def test_repeated_idempotency_key_replays_the_response(admin: Client, workspace: dict[str, Any], key: str):
    body = {"name": "once", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
    before = admin.read("/v1/api-keys")["total"]
    first, again = (post_once(admin, key, "/v1/api-keys/workspace/service", body) for _ in range(2))
    assert expect_ok(first) == expect_ok(again)
    assert expect_ok(first)["key"]
    assert (first.get_header("idempotency-replayed"), again.get_header("idempotency-replayed")) == (None, "true")
    assert admin.read("/v1/api-keys")["total"] == before + 1
    assert expect_ok(post_once(admin, key + "!", "/v1/api-keys/workspace/service", body)) != expect_ok(first)


def test_every_create_and_rotation_supports_idempotency_keys(admin: Client, workspace: dict[str, Any]):
    target_workspace = {"workspace_id": workspace["id"]}
    key = admin.create(
        "/v1/api-keys/workspace/service", {"name": "n", "scopes": ["completions.write"], **target_workspace}
    )
    bodies: dict[str, dict[str, Any]] = {
        "/v1/workspaces": {"name": "once more"},
        "/v1/configs": {"name": "once", "config": {"provider": "mock"}, **target_workspace},
        "/v1/virtual-keys": {"name": "once", "provider": "openai", "key": "sk-1234567890", **target_workspace},
        "/v1/admin/users/invites": {"email": "once@example.test", "role": "member", "workspaces": []},
        f"/v1/api-keys/{key['id']}/rotate": {},
    }
    for path, body in bodies.items():
        first, again = (
            (post_once(admin, "each", path, body) for _ in range(2))
            if path.endswith("workspaces")
            else (
                post_once(admin, path, path, body),
                post_once(admin, path, path, body),
            )
        )
        assert expect_ok(first) == expect_ok(again), path


def test_idempotency_key_belongs_to_one_request_and_caller(admin: Client, key: str):
    expect_ok(post_once(admin, key, "/v1/workspaces", {"name": "a"}))
    expect_error(post_once(admin, key, "/v1/workspaces", {"name": "b"}), 409, "AB07", "another request")
    expect_error(post_once(admin, key, "/v1/configs", {"name": "a"}), 400, "AB01")
    other = admin.with_new_key(kind="organisation/service", scopes=["workspaces.create"])
    assert expect_ok(post_once(other, key, "/v1/workspaces", {"name": "b"}))["name"] == "b"


def test_failed_request_can_be_repeated_under_its_key(admin: Client, key: str):
    expect_error(post_once(admin, key, "/v1/workspaces", {"name": "x", "users": ["nobody"]}), 404, "AB02")
    assert expect_ok(post_once(admin, key, "/v1/workspaces", {"name": "x"}))["name"] == "x"


def test_concurrent_requests_with_one_key_run_once(admin: Client, key: str):
    before = admin.read("/v1/workspaces")["total"]
    with ThreadPoolExecutor(8) as many:
        responses = list(many.map(lambda _: post_once(admin, key, "/v1/workspaces", {"name": "race"}), range(16)))
    assert {response.status for response in responses} <= {200, 409}
    assert admin.read("/v1/workspaces")["total"] == before + 1
    assert len({expect_ok(response)["id"] for response in responses if response.status == 200}) == 1


@pytest.mark.parametrize("wrong", ["", "x" * 256])
def test_rejects_invalid_idempotency_keys(admin: Client, wrong: str):
    expect_error(post_once(admin, wrong, "/v1/workspaces", {"name": "x"}), 400, "AB01", "Idempotency-Key")


# ── If-Match ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChangeCase(NamedTuple):
    """Object that can be changed, a change to it, and a later change that a stale `If-Match` must reject."""

    path: str
    change: dict[str, Any]
    rejected_change: dict[str, Any]
    # Body that the delete request needs, if any.
    delete_body: object = None
    is_deletable: bool = True


def create_change_cases(admin: Client, workspace: dict[str, Any]) -> list[ChangeCase]:
    """Creates an object of each kind."""
    target_workspace = {"workspace_id": workspace["id"]}
    inside = f"?workspace_id={workspace['id']}"
    key = admin.create(
        "/v1/api-keys/workspace/service", {"name": "n", "scopes": ["completions.write"], **target_workspace}
    )
    config = admin.create("/v1/configs", {"name": "n", "config": {"provider": "mock"}, **target_workspace})
    virtual = {"name": "n", "provider": "openai", "key": "sk-1234567890", **target_workspace}
    slug = admin.create("/v1/virtual-keys", virtual)["data"]["slug"]
    own = admin.create("/v1/workspaces", {"name": "n"})["id"]
    mine = {"name": "n", "ai_provider_id": "openai", "key": "sk-1234567890"}
    inner, complete = (admin.create("/v1/integrations", {**mine, **where})["slug"] for where in (target_workspace, {}))
    body = {"name": "n", "integration_id": inner, **target_workspace}
    reference = {
        "name": "n",
        "manager_type": "hashicorp_vault",
        "secret_path": "p",
        "auth_config": {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": "t"},
    }
    user = admin.read("/v1/admin/users")["data"][0]["id"]
    expect_ok(admin.post(f"/v1/workspaces/{own}/users", {"users": [{"id": user, "role": "member"}]}))
    names, lost = {"name": "m"}, {"name": "lost"}
    return [
        ChangeCase(f"/v1/api-keys/{key['id']}", names, lost),
        ChangeCase(f"/v1/configs/{config['slug']}{inside}", names, lost),
        ChangeCase(f"/v1/virtual-keys/{slug}{inside}", {"name": "m", "key": "sk-0987654321"}, lost),
        ChangeCase(f"/v1/providers/{admin.create('/v1/providers', body)['slug']}{inside}", names, lost),
        ChangeCase(f"/v1/workspaces/{own}/users/{user}", {"role": "manager"}, {"role": "admin"}),
        ChangeCase(f"/v1/workspaces/{own}", names, lost, {"name": "m"}),
        ChangeCase(f"/v1/integrations/{inner}", names, lost),
        ChangeCase(f"/v1/integrations/{complete}", names, lost),
        ChangeCase(f"/v1/secret-references/{admin.create('/v1/secret-references', reference)['id']}", names, lost),
        ChangeCase(
            "/v1/admin/organisation/settings",
            {"user_api_key_rotation_period": 9},
            {"user_api_key_rotation_period": 8},
            is_deletable=False,
        ),
    ]


def test_if_match_allows_changes_only_to_the_read_state(admin: Client, workspace: dict[str, Any]):
    for thing in create_change_cases(admin, workspace):
        path = thing.path
        read = admin.get(path).get_header("etag")
        assert read, path
        assert admin.get(path).get_header("etag") == read
        careful = Client(admin.gateway, admin.key, {"if-match": read})
        changed = careful.put(path, thing.change)
        expect_ok(changed)
        now = admin.get(path).get_header("etag")
        assert now not in {read, None}
        assert row_state(changed.get_header("etag")) == row_state(now)
        expect_error(careful.put(path, thing.rejected_change), 412, "AB01", "read it again")
        (name, value), *_ = thing.change.items()
        assert admin.read(path)[name] == value
        assert admin.get(path).get_header("etag") == now
        if thing.is_deletable:
            expect_error(careful.delete(path, thing.delete_body), 412, "AB01")
        for template in ("*", '"other", {}'):
            now_careful = Client(
                admin.gateway, admin.key, {"if-match": template.format(admin.get(path).get_header("etag"))}
            )
            expect_ok(now_careful.put(path, thing.change))
        if thing.is_deletable:
            last = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get_header("etag") or ""})
            expect_ok(last.delete(path, thing.delete_body))


def test_if_match_covers_models_and_workspaces_of_integrations(admin: Client):
    slug = admin.create("/v1/integrations", {"name": "n", "ai_provider_id": "openai", "key": "sk-1234567890"})["slug"]
    workspace = admin.create("/v1/workspaces", {"name": "given"})["slug"]
    for below, first, second in (
        ("models", {"models": [{"slug": "a", "enabled": True}]}, {"models": [{"slug": "a", "enabled": False}]}),
        (
            "workspaces",
            {"workspaces": [{"id": workspace, "enabled": True}]},
            {"workspaces": [{"id": workspace, "enabled": False}]},
        ),
    ):
        path = f"/v1/integrations/{slug}/{below}"
        careful = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get_header("etag") or ""})
        expect_ok(careful.put(path, first))
        expect_error(careful.put(path, second), 412, "AB01", "read it again")
        (row,) = [row for row in admin.read(path)[below] if row.get("slug", row.get("id")) in {"a", workspace}]
        assert row["enabled"]


def test_only_one_of_concurrent_if_match_changes_succeeds(admin: Client):
    path = f"/v1/workspaces/{admin.create('/v1/workspaces', {'name': 'two'})['id']}"
    careful = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get_header("etag") or ""})
    with ThreadPoolExecutor(6) as many:
        responses = list(many.map(lambda number: careful.put(path, {"name": f"by {number}"}), range(6)))
    assert sorted(response.status for response in responses) == [200, 412, 412, 412, 412, 412]
    (winner,) = [expect_ok(response)["name"] for response in responses if response.status == 200]
    assert admin.read(path)["name"] == winner


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        ("abc", 400, "AB01"),
        ('W/"a', 400, "AB01"),
        ('W/"a"', 412, "AB01"),
        ('W/"a", "b"', 412, "AB01"),
        ('"a"', 412, "AB01"),
    ],
)
def test_rejects_invalid_or_unsatisfiable_if_match(
    admin: Client, workspace: dict[str, Any], header: str, status: int, code: str
):
    careful = Client(admin.gateway, admin.key, {"if-match": header})
    requests: list[Callable[[], Response]] = [
        lambda: careful.put(f"/v1/workspaces/{workspace['id']}", {"name": "x"}),
        lambda: careful.post("/v1/workspaces", {"name": "x"}),
    ]
    for send in requests:
        expect_error(send(), status, code)


# ── error messages ───────────────────────────────────────────────────────────────────────────────────────────────────


ROLE_NEEDED = "is needed: admin, manager or member"
UNKNOWN_FIELD = (
    "is an unknown field; allowed: email, role, first_name, last_name, workspaces, workspace_api_key_details"
)

UNKNOWN_RULE = f"is an unknown field; allowed: {', '.join(WorkspaceRules.__struct_fields__)}"


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"email": "a@b", "role": "member", "workspaces": [{"id": "x"}]}, "workspaces[0].role", ROLE_NEEDED),
        ({"email": "a@b", "role": "member", "workspaces": [], "x": 1}, "x", UNKNOWN_FIELD),
        ({"email": "a@b", "role": "king", "workspaces": []}, "role", "'king' is not allowed: expected admin or member"),
        (
            {"email": "a@b", "role": "member", "workspaces": {}},
            "workspaces",
            "an object is not allowed: expected a list",
        ),
        ([], "", "a list is not allowed: expected an object"),
        (None, "", "a body is needed"),
    ],
)
def test_each_invalid_field_is_named_with_its_path(admin: Client, body: object, path: str, message: str):
    response = admin.post("/v1/admin/users/invites", body)
    expect_error(response, 400, "AB01")
    response_json = response.json()["data"]
    assert response_json["errors"] == [{"path": path, "message": message}]
    assert response_json["message"] == f"{path} {message}".strip()


def test_if_none_match_returns_304_for_unchanged_objects(admin: Client, workspace: dict[str, Any]):
    body = {"name": "read", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    path = f"/v1/configs/{admin.create('/v1/configs', body)['slug']}"
    first = admin.get(path)
    tag = first.get_header("etag")
    assert tag
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = Client(admin.gateway, admin.key, {"if-none-match": sent}).get(path)
        assert (again.status, again.body, again.get_header("etag")) == (304, b"", tag), sent
    for sent in ('"other"', tag.strip('"'), ""):
        again = Client(admin.gateway, admin.key, {"if-none-match": sent}).get(path)
        assert (again.status, again.body) == (200, first.body), sent
    expect_ok(admin.put(path, {"name": "changed"}))
    changed = Client(admin.gateway, admin.key, {"if-none-match": tag}).get(path)
    assert expect_ok(changed)["name"] == "changed"
    assert changed.get_header("etag") != tag


def test_if_none_match_does_not_bypass_authentication(admin: Client, workspace: dict[str, Any]):
    body = {"name": "read", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    path = f"/v1/configs/{admin.create('/v1/configs', body)['slug']}"
    expect_error(Client(admin.gateway, "nobody", {"if-none-match": "*"}).get(path), 401, "AB05")


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("/v1/workspaces?order=up", "order", "'up' is not allowed: expected asc or desc"),
        ("/v1/integrations?type=both", "type", "'both' is not allowed: expected all, organisation or workspace"),
        ("/v1/integrations?pageSize=0", "pageSize", "'0' is not allowed: expected an integer from 1 to 1000"),
        (
            "/v1/audit-logs?start_time=x",
            "start_time",
            "'x' is not allowed: expected a time in ISO 8601 such as 2026-01-31T00:00:00Z",
        ),
        ("/v2/api-keys?ids=1", "ids", "'1' is not allowed: expected ids with commas"),
    ],
)
def test_each_invalid_parameter_is_named_with_allowed_values(admin: Client, path: str, name: str, message: str):
    response = admin.get(path)
    expect_error(response, 400, "AB01")
    assert response.json()["data"]["errors"] == [{"path": name, "message": message}]


def test_nested_invalid_value_is_reported_with_allowed_values(admin: Client):
    limit = {"type": "requests", "unit": "rpy", "value": 1}
    body = {"name": "k", "scopes": ["completions.write"], "rate_limits": [limit]}
    response = admin.post("/v1/api-keys/workspace/service", body)
    expect_error(response, 400, "AB01", "rate_limits[0].unit", "expected rpd, rph, rpm, rps or rpw")


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"settings": 5}, "settings", "5 is not allowed: expected an object"),
        ({"settings": {"colour": 1}}, "settings.colour", UNKNOWN_RULE),
        ({"defaults": {"metadata": {"a": 5}}}, "defaults.metadata.a", "5 is not allowed: expected a string"),
    ],
)
def test_fields_named_like_gateway_internals_are_reported(
    admin: Client, workspace: dict[str, Any], body: object, path: str, message: str
):
    response = admin.put(f"/v1/workspaces/{workspace['id']}", body)
    expect_error(response, 400, "AB01")
    assert response.json()["data"]["errors"] == [{"path": path, "message": message}]
