"""What is done only once, and only while nobody else changed it; on both databases."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.integration.managed import Client, good, refused, state

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.wire import Answer

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.made("/v1/admin/workspaces", {"name": "Conditions"})


@pytest.fixture
def key() -> str:
    return f"key {next(NUMBERS)} of a test"


def once(client: Client, key: str, path: str, body: object) -> Answer:
    return Client(client.gateway, client.key, {"idempotency-key": key}).post(path, body)


def test_what_is_asked_twice_under_one_key_is_done_once_and_answered_alike(
    admin: Client, workspace: dict[str, Any], key: str
):
    body = {"name": "once", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
    before = admin.shown("/v1/api-keys")["total"]
    first, again = (once(admin, key, "/v1/api-keys/workspace/service", body) for _ in range(2))
    assert good(first) == good(again)
    assert good(first)["key"]
    assert (first.get("idempotency-replayed"), again.get("idempotency-replayed")) == (None, "true")
    assert admin.shown("/v1/api-keys")["total"] == before + 1
    assert good(once(admin, key + "!", "/v1/api-keys/workspace/service", body)) != good(first)


def test_every_create_and_rotation_can_be_done_once(admin: Client, workspace: dict[str, Any]):
    place = {"workspace_id": workspace["id"]}
    made = admin.made("/v1/api-keys/workspace/service", {"name": "n", "scopes": ["completions.write"], **place})
    bodies: dict[str, dict[str, Any]] = {
        "/v1/workspaces": {"name": "once more"},
        "/v1/configs": {"name": "once", "config": {"provider": "mock"}, **place},
        "/v1/virtual-keys": {"name": "once", "provider": "openai", "key": "sk-1234567890", **place},
        "/v1/admin/users/invites": {"email": "once@example.test", "role": "member", "workspaces": []},
        f"/v1/api-keys/{made['id']}/rotate": {},
    }
    for path, body in bodies.items():
        first, again = (
            (once(admin, "each", path, body) for _ in range(2))
            if path.endswith("workspaces")
            else (
                once(admin, path, path, body),
                once(admin, path, path, body),
            )
        )
        assert good(first) == good(again), path


def test_one_key_for_two_requests_is_a_conflict_and_two_callers_have_keys_of_their_own(admin: Client, key: str):
    good(once(admin, key, "/v1/workspaces", {"name": "a"}))
    refused(once(admin, key, "/v1/workspaces", {"name": "b"}), 409, "AB07", "another request")
    refused(once(admin, key, "/v1/configs", {"name": "a"}), 400, "AB01")
    other = admin.with_key(kind="organisation/service", scopes=["workspaces.create"])
    assert good(once(other, key, "/v1/workspaces", {"name": "b"}))["name"] == "b"


def test_what_failed_may_be_asked_again(admin: Client, key: str):
    refused(once(admin, key, "/v1/workspaces", {"name": "x", "users": ["nobody"]}), 404, "AB02")
    assert good(once(admin, key, "/v1/workspaces", {"name": "x"}))["name"] == "x"


def test_many_at_once_do_it_once(admin: Client, key: str):
    before = admin.shown("/v1/workspaces")["total"]
    with ThreadPoolExecutor(8) as many:
        answers = list(many.map(lambda _: once(admin, key, "/v1/workspaces", {"name": "race"}), range(16)))
    assert {answer.status for answer in answers} <= {200, 409}
    assert admin.shown("/v1/workspaces")["total"] == before + 1
    assert len({good(answer)["id"] for answer in answers if answer.status == 200}) == 1


@pytest.mark.parametrize("wrong", ["", "x" * 256])
def test_a_key_that_is_none_is_refused(admin: Client, wrong: str):
    refused(once(admin, wrong, "/v1/workspaces", {"name": "x"}), 400, "AB01", "Idempotency-Key")


# ── If-Match ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Thing(NamedTuple):
    """Something that can be changed, another state of it, and one that would be lost."""

    path: str
    change: dict[str, Any]
    lost: dict[str, Any]
    # What must be said to delete it; nothing where that cannot be.
    farewell: object = None
    goes: bool = True


def made_things(admin: Client, workspace: dict[str, Any]) -> list[Thing]:
    """Something of each kind."""
    place = {"workspace_id": workspace["id"]}
    inside = f"?workspace_id={workspace['id']}"
    key = admin.made("/v1/api-keys/workspace/service", {"name": "n", "scopes": ["completions.write"], **place})
    config = admin.made("/v1/configs", {"name": "n", "config": {"provider": "mock"}, **place})
    virtual = {"name": "n", "provider": "openai", "key": "sk-1234567890", **place}
    slug = admin.made("/v1/virtual-keys", virtual)["data"]["slug"]
    own = admin.made("/v1/workspaces", {"name": "n"})["id"]
    mine = {"name": "n", "ai_provider_id": "openai", "key": "sk-1234567890"}
    inner, whole = (admin.made("/v1/integrations", {**mine, **where})["slug"] for where in (place, {}))
    made = {"name": "n", "integration_id": inner, **place}
    reference = {
        "name": "n",
        "manager_type": "hashicorp_vault",
        "secret_path": "p",
        "auth_config": {"vault_auth_type": "token", "vault_addr": "https://vault.test", "vault_token": "t"},
    }
    user = admin.shown("/v1/admin/users")["data"][0]["id"]
    good(admin.post(f"/v1/workspaces/{own}/users", {"users": [{"id": user, "role": "member"}]}))
    named, lost = {"name": "m"}, {"name": "lost"}
    return [
        Thing(f"/v1/api-keys/{key['id']}", named, lost),
        Thing(f"/v1/configs/{config['slug']}{inside}", named, lost),
        Thing(f"/v1/virtual-keys/{slug}{inside}", {"name": "m", "key": "sk-0987654321"}, lost),
        Thing(f"/v1/providers/{admin.made('/v1/providers', made)['slug']}{inside}", named, lost),
        Thing(f"/v1/workspaces/{own}/users/{user}", {"role": "manager"}, {"role": "admin"}),
        Thing(f"/v1/workspaces/{own}", named, lost, {"name": "m"}),
        Thing(f"/v1/integrations/{inner}", named, lost),
        Thing(f"/v1/integrations/{whole}", named, lost),
        Thing(f"/v1/secret-references/{admin.made('/v1/secret-references', reference)['id']}", named, lost),
        Thing(
            "/v1/admin/organisation/settings",
            {"user_api_key_rotation_period": 9},
            {"user_api_key_rotation_period": 8},
            goes=False,
        ),
    ]


def test_a_change_that_counts_on_what_was_read_is_done_only_while_it_is_so(admin: Client, workspace: dict[str, Any]):
    for thing in made_things(admin, workspace):
        path = thing.path
        read = admin.get(path).get("etag")
        assert read, path
        assert admin.get(path).get("etag") == read
        careful = Client(admin.gateway, admin.key, {"if-match": read})
        changed = careful.put(path, thing.change)
        good(changed)
        now = admin.get(path).get("etag")
        assert now not in {read, None}
        assert state(changed.get("etag")) == state(now)
        refused(careful.put(path, thing.lost), 412, "AB01", "read it again")
        (name, value), *_ = thing.change.items()
        assert admin.shown(path)[name] == value
        assert admin.get(path).get("etag") == now
        if thing.goes:
            refused(careful.delete(path, thing.farewell), 412, "AB01")
        for template in ("*", '"other", {}'):
            now_careful = Client(admin.gateway, admin.key, {"if-match": template.format(admin.get(path).get("etag"))})
            good(now_careful.put(path, thing.change))
        if thing.goes:
            last = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get("etag") or ""})
            good(last.delete(path, thing.farewell))


def test_models_and_workspaces_of_an_integration_are_changed_only_while_they_are_as_they_were_read(admin: Client):
    slug = admin.made("/v1/integrations", {"name": "n", "ai_provider_id": "openai", "key": "sk-1234567890"})["slug"]
    place = admin.made("/v1/workspaces", {"name": "given"})["slug"]
    for below, first, second in (
        ("models", {"models": [{"slug": "a", "enabled": True}]}, {"models": [{"slug": "a", "enabled": False}]}),
        (
            "workspaces",
            {"workspaces": [{"id": place, "enabled": True}]},
            {"workspaces": [{"id": place, "enabled": False}]},
        ),
    ):
        path = f"/v1/integrations/{slug}/{below}"
        careful = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get("etag") or ""})
        good(careful.put(path, first))
        refused(careful.put(path, second), 412, "AB01", "read it again")
        (row,) = [row for row in admin.shown(path)[below] if row.get("slug", row.get("id")) in {"a", place}]
        assert row["enabled"]


def test_of_two_changes_at_once_that_count_on_the_same_one_is_lost_to_nobody(admin: Client):
    path = f"/v1/workspaces/{admin.made('/v1/workspaces', {'name': 'two'})['id']}"
    careful = Client(admin.gateway, admin.key, {"if-match": admin.get(path).get("etag") or ""})
    with ThreadPoolExecutor(6) as many:
        answers = list(many.map(lambda number: careful.put(path, {"name": f"by {number}"}), range(6)))
    assert sorted(answer.status for answer in answers) == [200, 412, 412, 412, 412, 412]
    (winner,) = [good(answer)["name"] for answer in answers if answer.status == 200]
    assert admin.shown(path)["name"] == winner


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
def test_a_condition_that_is_none_or_can_not_be_kept_is_refused(
    admin: Client, workspace: dict[str, Any], header: str, status: int, code: str
):
    careful = Client(admin.gateway, admin.key, {"if-match": header})
    ways: list[Callable[[], Answer]] = [
        lambda: careful.put(f"/v1/workspaces/{workspace['id']}", {"name": "x"}),
        lambda: careful.post("/v1/workspaces", {"name": "x"}),
    ]
    for way in ways:
        refused(way(), status, code)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"email": "a@b", "role": "member", "workspaces": [{"id": "x"}]}, "workspaces[0].role", "is needed"),
        ({"email": "a@b", "role": "member", "workspaces": [], "x": 1}, "x", "is not known"),
        ({"email": "a@b", "role": "king", "workspaces": []}, "role", "'king' is not allowed: expected admin or member"),
        ({"email": "a@b", "role": "member", "workspaces": {}}, "workspaces", "expected `array`, got `object`"),
        ([], "", "expected `object`, got `array`"),
        (None, "", "a body is needed"),
    ],
)
def test_each_field_that_is_wrong_is_named_with_its_path(admin: Client, body: object, path: str, message: str):
    answer = admin.post("/v1/admin/users/invites", body)
    refused(answer, 400, "AB01")
    said = answer.json()["data"]
    assert said["errors"] == [{"path": path, "message": message}]
    assert said["message"] == f"{path} {message}".strip()


def test_what_the_caller_has_already_is_not_sent_again(admin: Client, workspace: dict[str, Any]):
    body = {"name": "read", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    path = f"/v1/configs/{admin.made('/v1/configs', body)['slug']}"
    first = admin.get(path)
    tag = first.get("etag")
    assert tag
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = Client(admin.gateway, admin.key, {"if-none-match": sent}).get(path)
        assert (again.status, again.body, again.get("etag")) == (304, b"", tag), sent
    for sent in ('"other"', tag.strip('"'), ""):
        again = Client(admin.gateway, admin.key, {"if-none-match": sent}).get(path)
        assert (again.status, again.body) == (200, first.body), sent
    good(admin.put(path, {"name": "changed"}))
    changed = Client(admin.gateway, admin.key, {"if-none-match": tag}).get(path)
    assert good(changed)["name"] == "changed"
    assert changed.get("etag") != tag


def test_who_may_not_read_does_not_learn_that_nothing_changed(admin: Client, workspace: dict[str, Any]):
    body = {"name": "read", "config": {"provider": "mock"}, "workspace_id": workspace["id"]}
    path = f"/v1/configs/{admin.made('/v1/configs', body)['slug']}"
    refused(Client(admin.gateway, "nobody", {"if-none-match": "*"}).get(path), 401, "AB05")


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("/v1/workspaces?order=up", "order", "'up' is not allowed: expected asc or desc"),
        ("/v1/integrations?type=both", "type", "'both' is not allowed: expected workspace or organisation or all"),
        ("/v1/integrations?pageSize=0", "pageSize", "expected `int` >= 1"),
        (
            "/v1/audit-logs?start_time=2020-01-01T00:00:00Z&end_time=2021-01-01T00:00:00Z",
            "organisation_id",
            "is needed",
        ),
        ("/v2/api-keys?ids=1", "ids", "'1' is not allowed: expected ids with commas"),
    ],
)
def test_each_parameter_that_is_wrong_is_named_with_what_is_allowed(admin: Client, path: str, name: str, message: str):
    answer = admin.get(path)
    refused(answer, 400, "AB01")
    assert answer.json()["data"]["errors"] == [{"path": name, "message": message}]


def test_a_word_deep_in_a_body_is_told_with_those_that_are_allowed(admin: Client):
    limit = {"type": "requests", "unit": "rpy", "value": 1}
    body = {"name": "k", "scopes": ["completions.write"], "rate_limits": [limit]}
    answer = admin.post("/v1/api-keys/workspace/service", body)
    refused(answer, 400, "AB01", "rate_limits[0].unit", "expected rps or rpm or rph or rpd or rpw")


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"settings": 5}, "settings", "expected `object`, got `int`"),
        ({"settings": {"colour": 1}}, "settings.colour", "is not known"),
        ({"defaults": {"metadata": {"a": 5}}}, "defaults.metadata[...]", "expected `str`, got `int`"),
    ],
)
def test_a_field_that_is_called_like_a_part_of_the_gateway_is_still_the_callers(
    admin: Client, workspace: dict[str, Any], body: object, path: str, message: str
):
    answer = admin.put(f"/v1/workspaces/{workspace['id']}", body)
    refused(answer, 400, "AB01")
    assert answer.json()["data"]["errors"] == [{"path": path, "message": message}]
