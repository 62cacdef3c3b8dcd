"""What a workspace gives to its members and managers and takes from them, over HTTP, on both databases."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, good, refused

if TYPE_CHECKING:
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
            for asked in (path, f"{path}/{row_id}"):
                assert who.get(f"{asked}?workspace_id={place.id}").status == expected, (role, asked)
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
