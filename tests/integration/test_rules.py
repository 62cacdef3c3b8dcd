"""Rules for the keys of people, as a workspace and its organisation set them, over HTTP on both databases."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, good, refused
from tests.integration.wire import CHAT, JSON, MOCK, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = "/v1/admin/organisation/settings"
KEYS = "/v1/api-keys/workspace/user"
NUMBERS = itertools.count(1)
RULES = {
    "user_api_key_ttl": 3600,
    "user_api_key_max_ttl": 7200,
    "user_api_key_count": 3,
    "user_key_metadata": {"team": "a"},
    "user_key_metadata_override": 0,
    "debug_log": 1,
}


class Place:
    """A workspace with rules, and keys of its organisation's owner in it."""

    def __init__(self, admin: Client, **rules: object) -> None:
        self.admin = admin
        self.user: str = admin.shown("/v1/admin/users?role=owner")["data"][0]["id"]
        made = admin.made("/v1/workspaces", {"name": f"ruled {next(NUMBERS)}", "settings": rules})
        assert made["settings"] == rules
        self.id: str = made["id"]
        self.path = f"/v1/workspaces/{self.id}"

    def key(self, kind: str = "user", **fields: object) -> dict[str, Any]:
        path, body = f"/v1/api-keys/workspace/{kind}", self.body(**fields)
        if kind != "user":
            del body["user_id"]
        return self.admin.shown(f"/v1/api-keys/{self.admin.made(path, body)['id']}")

    def body(self, **fields: object) -> dict[str, Any]:
        who = {"workspace_id": self.id, "user_id": self.user}
        return {"name": "k", "scopes": ["completions.write"], **who, **fields}


@pytest.fixture
def cleared(admin: Client) -> Iterator[Client]:
    yield admin
    admin.put(SETTINGS, {"user_api_key_ttl": None})


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def left(key: dict[str, Any]) -> float:
    return (datetime.fromisoformat(key["expires_at"]) - datetime.now(UTC)).total_seconds()


def test_records_of_a_workspace_keep_figures_alone_where_it_says_so(admin: Client):
    place = Place(admin, debug_log=0)
    made = admin.made("/v1/api-keys/workspace/service", {**place.body(), "user_id": None})

    def record(**more: str) -> dict[str, Any]:
        model = f"noted-{next(NUMBERS)}"
        sent = {**MOCK, "x-gateway-api-key": made["key"], **more}
        assert ask(admin.gateway.base_url, CHAT, asked(model), sent).status == 200

        def look() -> dict[str, Any] | None:
            return next((one for one in admin.gateway.records(0) if one.get("ai_model") == model), None)

        return wait("the record", look)

    def is_plain(record: dict[str, Any]) -> bool:
        return (record.get("debug"), "request_headers" in record) == (False, False)

    # It is used by every worker of this node when the change is answered.
    assert is_plain(record())
    assert is_plain(record(**{"x-gateway-debug": "true"}))
    for value in (1, None):
        good(admin.put(place.path, {"settings": {"debug_log": value}}))
        noted = record()
        assert ("debug" in noted, "request_headers" in noted) == (False, True)
        assert is_plain(record(**{"x-gateway-debug": "false"}))


def test_rules_are_kept_shown_and_taken_away_one_by_one(admin: Client):
    place = Place(admin, **RULES)
    assert admin.shown(place.path)["settings"] == RULES
    changed = good(admin.put(place.path, {"settings": {"debug_log": 0, "user_api_key_ttl": None}}))["settings"]
    assert changed == {name: value for name, value in {**RULES, "debug_log": 0}.items() if name != "user_api_key_ttl"}


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
        # Of the organisation alone.
        ({"default_workspace_user_api_key_auto_create": True}, "default_workspace_user_api_key_auto_create"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_name(admin: Client, rules: dict[str, Any], words: str):
    refused(admin.post("/v1/workspaces", {"name": "x", "settings": rules}), 400, "AB01", words)


def test_a_rule_that_cannot_be_beside_one_that_is_there_is_refused(admin: Client):
    place = Place(admin, user_api_key_max_ttl=60)
    refused(admin.put(place.path, {"settings": {"user_api_key_ttl": 61}}), 400, "AB01", "user_api_key_ttl")


def test_a_persons_key_that_is_made_without_an_end_has_that_of_the_rule_and_a_services_has_none(admin: Client):
    place = Place(admin, user_api_key_ttl=3600)
    assert 3590 < left(place.key()) <= 3600
    assert 3590 < left(place.key(expires_at=None)) <= 3600
    assert 7100 < left(place.key(expires_at=later(7200))) <= 7200
    assert place.key("service")["expires_at"] is None
    assert Place(admin).key()["expires_at"] is None


def test_a_key_that_the_rule_ends_is_over_on_the_data_plane(admin: Client):
    place = Place(admin, user_api_key_ttl=2)
    key = admin.made(KEYS, place.body())["key"]
    base, fields = admin.gateway.base_url, {**JSON, **MOCK, "x-gateway-api-key": key}
    assert ask(base, CHAT, asked(), fields).status == 200
    time.sleep(2)
    wait("the end", lambda: ask(base, CHAT, asked(), fields).status == 401 or None, 2)


def test_a_later_end_than_the_longest_is_refused_and_none_at_all_is_the_longest(admin: Client):
    place = Place(admin, user_api_key_max_ttl=3600)
    key = place.key()
    assert 3590 < left(key) <= 3600
    refused(admin.post(KEYS, place.body(expires_at=later(3660))), 400, "AB01", "expires_at", "3600 s")
    path = f"/v1/api-keys/{key['id']}"
    for end in (None, later(3660)):
        refused(admin.put(path, {"expires_at": end}), 400, "AB01", "expires_at")
    # As it is shown it may come back, and a key may end sooner.
    good(admin.put(path, {"expires_at": key["expires_at"], "name": "l"}))
    good(admin.put(path, {"expires_at": later(60)}))
    good(admin.put(path, {"expires_at": key["expires_at"]}))
    # What was there before the rule stays as it is.
    old = Place(admin)
    before = old.key()
    good(admin.put(old.path, {"settings": {"user_api_key_max_ttl": 60}}))
    good(admin.put(f"/v1/api-keys/{before['id']}", {"name": "m"}))
    assert admin.shown(f"/v1/api-keys/{before['id']}")["expires_at"] is None


def test_the_organisations_rule_holds_where_the_workspace_has_none(cleared: Client):
    good(cleared.put(SETTINGS, {"user_api_key_ttl": 1000}))
    assert 990 < left(Place(cleared).key()) <= 1000
    assert 490 < left(Place(cleared, user_api_key_ttl=500).key()) <= 500
    assert 90 < left(Place(cleared, user_api_key_max_ttl=100).key()) <= 100


def test_a_person_has_so_many_keys_that_are_good_and_no_more(admin: Client):
    place = Place(admin, user_api_key_count=2)
    first = place.key()
    place.key(expires_at=later(1))
    refused(admin.post(KEYS, place.body()), 403, "AB03", "user_id", "user_api_key_count")
    place.key("service")
    # What is over counts no more, nor what is gone.
    time.sleep(1.1)
    place.key()
    refused(admin.post(KEYS, place.body()), 403, "AB03")
    good(admin.delete(f"/v1/api-keys/{first['id']}"))
    place.key()
    good(admin.put(place.path, {"settings": {"user_api_key_count": -1}}))
    place.key()
    good(admin.put(place.path, {"settings": {"user_api_key_count": 0}}))
    refused(admin.post(KEYS, place.body()), 403, "AB03")


@pytest.mark.parametrize(("override", "team"), [(None, "own"), (1, "own"), (0, "a")])
def test_metadata_of_the_rule_is_on_every_key_of_a_person(admin: Client, override: int | None, team: str):
    rules = {"user_key_metadata": {"team": "a", "floor": "3"}}
    place = Place(admin, **rules, **({} if override is None else {"user_key_metadata_override": override}))
    assert place.key()["defaults"]["metadata"] == {"team": "a", "floor": "3"}
    key = place.key(defaults={"metadata": {"team": "own", "mine": "x"}})
    assert key["defaults"]["metadata"] == {"team": team, "floor": "3", "mine": "x"}
    path = f"/v1/api-keys/{key['id']}"
    good(admin.put(path, {"defaults": {"metadata": {"team": "own"}}}))
    assert admin.shown(path)["defaults"]["metadata"] == {"team": team, "floor": "3"}
    good(admin.put(path, {"defaults": None}))
    assert admin.shown(path)["defaults"]["metadata"] == {"team": "a", "floor": "3"}
    good(admin.put(path, {"name": "renamed"}))
    assert place.key("service")["defaults"]["metadata"] is None


def test_a_key_that_comes_with_an_invitation_is_held_to_the_rules_too(admin: Client):
    ruled, full = Place(admin, **RULES), Place(admin, user_api_key_count=0)
    places = [{"id": place.id, "role": "member"} for place in (ruled, full)]
    details = {"name": "k", "scopes": ["completions.write"]}
    invited = {
        "email": f"guest{next(NUMBERS)}@example.test",
        "role": "member",
        "workspaces": places,
        "workspace_api_key_details": {name: details[name] for name in ("scopes",)},
    }
    token = admin.made("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    given = {"token": token, "first_name": "A", "last_name": "B", "password": "a password of twelve"}
    (made,) = good(Client(admin.gateway, "").post("/v1/auth/invites", given))["api_keys"]
    key = admin.shown(f"/v1/api-keys/{made['id']}")
    assert key["workspace_id"] == ruled.id
    assert 3590 < left(key) <= 3600
    assert key["defaults"]["metadata"] == {"team": "a"}


def test_who_is_inside_a_workspace_loosens_none_of_its_bounds(admin: Client):
    place = Place(admin, user_api_key_max_ttl=3600, user_api_key_count=2)
    inside = admin.with_key(workspace_id=place.id, scopes=["workspaces.update", "workspaces.read"])
    for rules in (
        {"user_api_key_max_ttl": None},
        {"user_api_key_max_ttl": 3601},
        {"user_api_key_count": None},
        {"user_api_key_count": -1},
        {"user_api_key_count": 3},
    ):
        refused(inside.put(place.path, {"settings": rules}), 403, "AB03", "would loosen")
    good(inside.put(place.path, {"settings": {"user_api_key_max_ttl": 3599, "user_api_key_count": 1}}))
    good(admin.put(place.path, {"settings": {"user_api_key_max_ttl": None, "user_api_key_count": -1}}))
