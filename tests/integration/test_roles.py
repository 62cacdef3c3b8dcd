"""What a workspace gives to its members and managers and takes from them, over HTTP, on both databases."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, good, refused
from tests.integration.wire import CHAT, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.wire import Answer

NUMBERS = itertools.count(1)
PASSWORD = "a password of twelve"
CONFIG = {"name": "c", "config": {"provider": "mock"}}
VIRTUAL_KEY = {"name": "v", "provider": "openai", "key": "sk-0123456789"}
INTEGRATION = {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789"}
KEY = {"name": "k", "scopes": ["completions.write"]}


class Place:
    """A workspace with one person in each role, who signed in."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self.row = admin.made("/v1/workspaces", {"name": f"place {next(NUMBERS)}"})
        self.id: str = self.row["id"]
        self.path = f"/v1/workspaces/{self.id}"
        self.ids: dict[str, str] = {}
        self.people = {role: self._person(role) for role in ("member", "manager", "admin")}

    def _person(self, role: str) -> Client:
        email = f"{role}{next(NUMBERS)}@example.test"
        invited = {"email": email, "role": "member", "workspaces": [{"id": self.id, "role": role}]}
        token = self.admin.made("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
        nobody = Client(self.admin.gateway, "")
        given = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
        self.ids[role] = good(nobody.post("/v1/auth/invites", given))["id"]
        answer = nobody.post("/v1/auth/sessions", {"email": email, "password": PASSWORD})
        cookie = (answer.get("set-cookie") or "").split(";")[0]
        return Client(self.admin.gateway, "", {"cookie": cookie, "x-csrf-token": good(answer)["csrf_token"]})

    def choose(self, **flags: bool | None) -> dict[str, Any]:
        return good(self.admin.put(self.path, {"security_settings": flags}))["security_settings"]

    def make(self, who: Client, path: str, body: dict[str, Any]) -> Answer:
        return who.post(path, {**body, "workspace_id": self.id})


@pytest.fixture
def place(admin: Client) -> Place:
    return Place(admin)


def test_a_manager_from_whom_the_right_was_taken_changes_no_configs_and_the_others_may_what_they_might(place: Place):
    manager, leader = place.people["manager"], place.people["admin"]
    slug = good(place.make(manager, "/v1/configs", CONFIG))["slug"]
    place.choose(managersWriteConfigs=False)
    # At once, on the node that was told.
    refused(place.make(manager, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    refused(manager.put(f"/v1/configs/{slug}", {"name": "d"}), 403, "AB03", "configs.update")
    refused(manager.delete(f"/v1/configs/{slug}"), 403, "AB03", "configs.delete")
    assert manager.shown(f"/v1/configs/{slug}")["name"] == "c"
    good(place.make(manager, "/v1/virtual-keys", VIRTUAL_KEY))
    good(leader.put(f"/v1/configs/{slug}", {"name": "d"}))
    place.choose(managersWriteConfigs=True)
    good(manager.put(f"/v1/configs/{slug}", {"name": "e"}))


@pytest.mark.parametrize(
    ("flag", "path", "body"),
    [
        ("membersWriteConfigs", "/v1/configs", CONFIG),
        ("membersWriteVirtualKeys", "/v1/virtual-keys", VIRTUAL_KEY),
        ("membersWriteApiKeys", "/v1/api-keys/workspace/service", KEY),
    ],
)
def test_a_member_who_was_given_a_right_makes_and_takes_away_that_and_nothing_else(
    place: Place, flag: str, path: str, body: dict[str, Any]
):
    member = place.people["member"]
    everything = {"/v1/configs": CONFIG, "/v1/virtual-keys": VIRTUAL_KEY, "/v1/api-keys/workspace/service": KEY}
    refused(place.make(member, path, body), 403, "AB03")
    place.choose(**{flag: True})
    made = good(place.make(member, path, body))
    above = path.removesuffix("/workspace/service")
    good(member.delete(f"{above}/{made['id']}?workspace_id={place.id}"))
    for other in everything.keys() - {path}:
        refused(place.make(member, other, everything[other]), 403, "AB03")
    refused(place.make(member, "/v1/integrations", INTEGRATION), 403, "AB03")
    refused(member.put(place.path, {"name": "mine"}), 403, "AB03")
    place.choose(**{flag: None})
    refused(place.make(member, path, body), 403, "AB03")


@pytest.mark.parametrize(
    ("what", "paths"),
    [
        ("Configs", ["/v1/configs"]),
        ("VirtualKeys", ["/v1/virtual-keys", "/v1/providers"]),
        ("ApiKeys", ["/v1/api-keys"]),
    ],
)
def test_a_view_that_was_taken_shows_neither_lists_nor_rows(place: Place, what: str, paths: list[str]):
    made = {
        "/v1/configs": place.admin.made("/v1/configs", {**CONFIG, "workspace_id": place.id})["id"],
        "/v1/virtual-keys": (key := place.admin.made("/v1/virtual-keys", {**VIRTUAL_KEY, "workspace_id": place.id}))[
            "id"
        ],
        "/v1/providers": key["id"],
        "/v1/api-keys": place.admin.made("/v1/api-keys/workspace/service", {**KEY, "workspace_id": place.id})["id"],
    }
    for role, plural in (("member", "members"), ("manager", "managers")):
        who = place.people[role]
        for path in paths:
            assert who.get(f"{path}?workspace_id={place.id}").status == 200
        place.choose(**{f"{plural}View{what}": False})
        for path, row_id in made.items():
            expected = 403 if path in paths else 200
            for looked_at in (path, f"{path}/{row_id}"):
                assert who.get(f"{looked_at}?workspace_id={place.id}").status == expected, (role, looked_at)
        # Where no workspace is named neither.
        assert who.get(paths[0]).status == 403
        (own,) = who.shown("/v1/auth/self")["workspaces"]
        assert ("configs.list" in own["scopes"]) is (what != "Configs")


def test_managers_may_lose_members_integrations_and_the_workspace_itself(place: Place):
    manager = place.people["manager"]
    other = place.ids["member"]
    good(manager.put(place.path, {"description": "by a manager"}))
    good(place.make(manager, "/v1/integrations", INTEGRATION))
    place.choose(managersWriteWsUsers=False, managersWriteWsIntegrations=False, managersUpdateWs=False)
    refused(manager.put(place.path, {"description": "x"}), 403, "AB03", "workspaces.update")
    refused(place.make(manager, "/v1/integrations", INTEGRATION), 403, "AB03")
    for answer in (
        manager.put(f"{place.path}/users/{other}", {"role": "admin"}),
        manager.delete(f"{place.path}/users/{other}"),
        manager.post(f"{place.path}/users", {"users": [{"id": other, "role": "member"}]}),
    ):
        refused(answer, 403, "AB03", "workspace_users")
    assert manager.shown(f"{place.path}/users")["total"] == 3


def test_flags_are_chosen_by_admins_and_a_manager_lifts_none_of_them(place: Place):
    manager, leader = place.people["manager"], place.people["admin"]
    place.choose(managersWriteConfigs=False)
    refused(manager.put(place.path, {"security_settings": {"managersWriteConfigs": True}}), 403, "AB03", "admins")
    refused(manager.put(place.path, {"security_settings": None}), 403, "AB03", "security_settings")
    # Nor by making somebody what they are not: an admin may more than they.
    for who in ("manager", "member"):
        refused(manager.put(f"{place.path}/users/{place.ids[who]}", {"role": "admin"}), 403, "AB03", "configs")
    good(manager.put(f"{place.path}/users/{place.ids['member']}", {"role": "manager"}))
    # Nor with a key, whomever it is for.
    scopes = ["workspaces.update", "completions.write"]
    keys = [good(place.make(manager, "/v1/api-keys/workspace/service", {"name": "k", "scopes": scopes}))]
    for_admin = {"name": "k", "scopes": scopes, "user_id": place.ids["admin"]}
    keys.append(good(place.make(manager, "/v1/api-keys/workspace/user", for_admin)))
    for made in keys:
        with_key = Client(place.admin.gateway, made["key"])
        good(with_key.put(place.path, {"description": "by a key"}))
        refused(with_key.put(place.path, {"security_settings": {"managersWriteConfigs": True}}), 403, "AB03")
    refused(
        place.make(manager, "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["configs.create"]}), 403, "AB03"
    )
    good(leader.put(place.path, {"security_settings": {"managersWriteConfigs": True}}))
    good(place.make(manager, "/v1/configs", CONFIG))


def test_a_key_of_the_organisation_gives_members_nothing_that_it_does_not_hold(place: Place):
    narrow = place.admin.with_key(kind="organisation/service", scopes=["workspaces.update", "workspaces.read"])
    refused(narrow.put(place.path, {"security_settings": {"membersWriteConfigs": True}}), 403, "AB03", "configs")
    good(narrow.put(place.path, {"security_settings": {"managersWriteConfigs": False}}))
    wider = place.admin.with_key(kind="organisation/service", scopes=["workspace_users.update", "workspace_users.read"])
    refused(wider.put(f"{place.path}/users/{place.ids['member']}", {"role": "manager"}), 403, "AB03")


def test_a_key_of_a_person_follows_the_flags_of_its_workspace(place: Place):
    scopes = ["configs.list", "configs.create", "completions.write"]
    body = {"name": "k", "scopes": scopes, "user_id": place.ids["manager"]}
    key = Client(
        place.admin.gateway, place.admin.made("/v1/api-keys/workspace/user", {**body, "workspace_id": place.id})["key"]
    )
    good(key.post("/v1/configs", CONFIG))
    place.choose(managersWriteConfigs=False)
    refused(key.post("/v1/configs", CONFIG), 403, "AB03", "configs.create")
    assert key.shown("/v1/configs")["total"] == 1


def test_flags_are_shown_kept_where_others_are_chosen_and_noted(place: Place):
    usual = place.row["security_settings"]
    assert len(usual) == 35
    place.choose(membersWritePrompts=True)
    shown = place.choose(managersViewLogs=False)
    assert shown == {**usual, "membersWritePrompts": True, "managersViewLogs": False}
    good(place.admin.put(place.path, {"settings": {"block_inline_config": False}}))
    row = place.admin.shown(place.path)
    assert (row["security_settings"], row["settings"]) == (shown, {"block_inline_config": False})
    assert place.choose(membersWritePrompts=None) == {**usual, "managersViewLogs": False}
    assert good(place.admin.put(place.path, {"security_settings": None}))["security_settings"] == usual
    for body, words in (
        ({"membersWriteLogs": True}, "security_settings.membersWriteLogs"),
        ({"membersWriteConfigs": "yes"}, "security_settings"),
    ):
        refused(place.admin.put(place.path, {"security_settings": body}), 400, "AB01", words)
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    asked = f"{span}&organisation_id={row['organisation_id']}&workspace_id={place.id}&resource_type=workspaces"
    records = place.admin.shown(f"/v1/audit-logs?{asked}")["records"]
    assert any("managersViewLogs" in str(record) for record in records)


def test_a_workspace_is_made_with_its_flags(admin: Client):
    made = admin.made("/v2/workspaces", {"name": "strict", "security_settings": {"membersViewConfigs": False}})
    assert not made["security_settings"]["membersViewConfigs"]
    assert admin.shown(f"/v1/admin/workspaces/{made['slug']}")["security_settings"] == made["security_settings"]


ORGANISATION = "/v1/admin/organisation/settings"


@pytest.fixture
def above(admin: Client) -> Iterator[Callable[..., dict[str, Any]]]:
    """Says what the organisation chooses; taken back at the end: others share it."""

    def say(**rules: object) -> dict[str, Any]:
        return good(admin.put(ORGANISATION, rules))

    yield say
    say(security_settings=None, security_settings_overrides=None, block_inline_config=None)
    say(user_api_key_auto_create=None, default_workspace_user_api_key_auto_create=None)


def test_what_the_organisation_chooses_holds_in_workspaces_that_choose_nothing(
    place: Place, above: Callable[..., dict[str, Any]]
):
    member, manager = place.people["member"], place.people["manager"]
    usual = place.row["security_settings"]
    said = above(security_settings={"membersWriteConfigs": True, "managersWriteConfigs": False})
    assert said["security_settings"] == {**usual, "membersWriteConfigs": True, "managersWriteConfigs": False}
    assert place.admin.shown(place.path)["security_settings"] == said["security_settings"]
    listed = place.admin.shown("/v1/workspaces?page_size=1000")["data"]
    assert all(row["security_settings"]["membersWriteConfigs"] for row in listed if row["id"] == place.id)
    good(place.make(member, "/v1/configs", CONFIG))
    refused(place.make(manager, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    # Until the workspace chooses otherwise.
    place.choose(membersWriteConfigs=False, managersWriteConfigs=True)
    refused(place.make(member, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    good(place.make(manager, "/v1/configs", CONFIG))
    for body, words in (
        ({"security_settings": {"membersWriteLogs": True}}, "security_settings.membersWriteLogs"),
        ({"security_settings_overrides": {"stars": True}}, "security_settings_overrides"),
    ):
        refused(place.admin.put(ORGANISATION, body), 400, "AB01", words)


def test_a_section_that_is_left_to_no_workspace_is_refused_there_and_one_that_is_opened_is_passed_down(
    place: Place, above: Callable[..., dict[str, Any]]
):
    member, leader = place.people["member"], place.people["admin"]
    place.choose(membersWriteConfigs=True, membersWriteVirtualKeys=True)
    above(security_settings_overrides={"configs": False})
    refused(place.make(member, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    good(place.make(member, "/v1/virtual-keys", VIRTUAL_KEY))
    shown = place.admin.shown(place.path)["security_settings"]
    assert (shown["membersWriteConfigs"], shown["membersWriteVirtualKeys"]) == (False, True)
    for who in (place.admin, leader):
        path = "security_settings.membersWriteConfigs"
        refused(who.put(place.path, {"security_settings": {"membersWriteConfigs": True}}), 403, "AB03", path, "configs")
        # What comes back as it was shown is no change.
        good(who.put(place.path, {"security_settings": shown}))
    refused(
        place.admin.post("/v1/workspaces", {"name": "w", "security_settings": {"membersWriteConfigs": True}}),
        *(403, "AB03", "for the organisation"),
    )
    above(security_settings={"managersWriteConfigs": False})
    said = above(security_settings_overrides={"configs": True})
    assert said["security_settings_overrides"] == {"configs": True}
    shown = place.admin.shown(place.path)["security_settings"]
    assert (shown["membersWriteConfigs"], shown["managersWriteConfigs"]) == (False, False)
    # From there on it is the workspace's own.
    above(security_settings={"managersWriteConfigs": None})
    assert place.admin.shown(place.path)["security_settings"] == shown
    assert place.choose(membersWriteConfigs=True)["membersWriteConfigs"]
    good(place.make(member, "/v1/configs", CONFIG))


def test_who_sets_the_organisations_flags_gives_nothing_that_they_do_not_hold(place: Place):
    narrow = place.admin.with_key(
        kind="organisation/service", scopes=["organisation_settings.update", "organisation_settings.read"]
    )
    refused(narrow.put(ORGANISATION, {"security_settings": {"membersWriteConfigs": True}}), 403, "AB03", "configs")
    place.choose(managersWriteConfigs=False)
    # To keep what a workspace took from its managers gives it back.
    refused(narrow.put(ORGANISATION, {"security_settings_overrides": {"configs": False}}), 403, "AB03", "configs")


def test_blocking_what_is_inline_is_left_to_workspaces_or_not(place: Place, above: Callable[..., dict[str, Any]]):
    key = place.admin.with_key(workspace_id=place.id, scopes=["completions.write"])
    caller = {"x-gateway-api-key": key.key, "content-type": "application/json", "x-gateway-provider": "mock"}

    def blocked() -> bool:
        answer = ask(place.admin.gateway.base_url, CHAT, asked(), caller)
        assert answer.status in {200, 400}, answer.body
        return answer.status != 200

    def choose(says: bool | None) -> Answer:
        return place.admin.put(place.path, {"settings": {"block_inline_config": says}})

    wait("the key", lambda: not blocked() or None, 5)
    name = "data_plane_security_settings"
    above(block_inline_config=True, security_settings_overrides={name: True})
    # Passed down, and then the workspace's own.
    assert (blocked(), place.admin.shown(place.path)["settings"]["block_inline_config"]) == (True, True)
    good(choose(False))
    assert not blocked()
    above(security_settings_overrides={name: False})
    assert blocked()
    above(block_inline_config=False)
    assert not blocked()
    refused(choose(True), 403, "AB03", "settings.block_inline_config", name)


def test_who_comes_into_a_workspace_is_given_a_key_where_that_is_the_rule(
    place: Place, above: Callable[..., dict[str, Any]]
):
    admin = place.admin
    other = Place(admin)
    path, newcomer = f"{place.path}/users", other.ids["member"]

    def keys(user: str) -> list[dict[str, Any]]:
        listed = admin.shown(f"/v1/api-keys?workspace_id={place.id}&page_size=100")["data"]
        return [key for key in listed if key["user_id"] == user]

    good(admin.post(path, {"users": [{"id": newcomer}]}))
    assert not keys(newcomer)
    good(admin.delete(f"{path}/{newcomer}"))
    above(user_api_key_auto_create=True)
    good(admin.post(path, {"users": [{"id": newcomer}]}))
    (key,) = keys(newcomer)
    assert (key["type"], key["creation_mode"], key["status"]) == ("workspace-user", "auto", "active")
    assert ("completions.write" in key["scopes"], "configs.create" in key["scopes"]) == (True, False)
    # Its text waits for who rotates it.
    text = good(admin.post(f"/v1/api-keys/{key['id']}/rotate", {}))["key"]
    assert Client(admin.gateway, text).get("/v1/configs").status == 200
    # Who accepts an invitation is shown it.
    email = f"auto{next(NUMBERS)}@example.test"
    invited = {"email": email, "role": "member", "workspaces": [{"id": place.id, "role": "manager"}]}
    token = admin.made("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    given = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
    (made,) = good(Client(admin.gateway, "").post("/v1/auth/invites", given))["api_keys"]
    assert Client(admin.gateway, made["key"]).post("/v1/configs", CONFIG).status == 200
    # The workspace goes first.
    good(admin.put(place.path, {"settings": {"user_api_key_auto_create": False}}))
    good(admin.delete(f"{path}/{newcomer}"))
    good(admin.post(path, {"users": [{"id": newcomer}]}))
    assert not keys(newcomer)
    # The default workspace has a rule of its own.
    default = next(row for row in admin.shown("/v1/workspaces?page_size=1000")["data"] if row["is_default"])
    for rule, number in ((False, 0), (True, 1)):
        above(default_workspace_user_api_key_auto_create=rule)
        good(admin.post(f"/v1/workspaces/{default['id']}/users", {"users": [{"id": newcomer}]}))
        listed = admin.shown(f"/v1/api-keys?workspace_id={default['id']}&page_size=100")["data"]
        assert len([key for key in listed if key["user_id"] == newcomer]) == number
        good(admin.delete(f"/v1/workspaces/{default['id']}/users/{newcomer}"))
