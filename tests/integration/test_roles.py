"""Security settings of a workspace, which grant rights to members and managers or revoke them, over HTTP."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

NUMBERS = itertools.count(1)
PASSWORD = "a password of twelve"
CONFIG = {"name": "c", "config": {"provider": "mock"}}
VIRTUAL_KEY = {"name": "v", "provider": "openai", "key": "sk-0123456789"}
INTEGRATION = {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789"}
KEY = {"name": "k", "scopes": ["completions.write"]}


class WorkspaceWithRoles:
    """A workspace with one signed-in user in each role."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self.row = admin.create("/v1/workspaces", {"name": f"scene {next(NUMBERS)}"})
        self.id: str = self.row["id"]
        self.path = f"/v1/workspaces/{self.id}"
        self.ids: dict[str, str] = {}
        self.people = {role: self._sign_up(role) for role in ("member", "manager", "admin")}

    def _sign_up(self, role: str) -> Client:
        email = f"{role}{next(NUMBERS)}@example.test"
        invited = {"email": email, "role": "member", "workspaces": [{"id": self.id, "role": role}]}
        token = self.admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
        no_match = Client(self.admin.gateway, "")
        body = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
        self.ids[role] = expect_ok(no_match.post("/v1/auth/invites", body))["id"]
        response = no_match.post("/v1/auth/sessions", {"email": email, "password": PASSWORD})
        cookie = (response.get_header("set-cookie") or "").split(";")[0]
        return Client(self.admin.gateway, "", {"cookie": cookie, "x-csrf-token": expect_ok(response)["csrf_token"]})

    def set_security_settings(self, **flags: bool | None) -> dict[str, Any]:
        return expect_ok(self.admin.put(self.path, {"security_settings": flags}))["security_settings"]

    def create_as(self, who: Client, path: str, body: dict[str, Any]) -> Response:
        return who.post(path, {**body, "workspace_id": self.id})


@pytest.fixture
def scenario(admin: Client) -> WorkspaceWithRoles:
    return WorkspaceWithRoles(admin)


def test_revoked_manager_right_affects_no_other_role(scenario: WorkspaceWithRoles):
    manager, leader = scenario.people["manager"], scenario.people["admin"]
    slug = expect_ok(scenario.create_as(manager, "/v1/configs", CONFIG))["slug"]
    scenario.set_security_settings(managersWriteConfigs=False)
    # Takes effect at once on the node that served the change.
    expect_error(scenario.create_as(manager, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    expect_error(manager.put(f"/v1/configs/{slug}", {"name": "d"}), 403, "AB03", "configs.update")
    expect_error(manager.delete(f"/v1/configs/{slug}"), 403, "AB03", "configs.delete")
    assert manager.read(f"/v1/configs/{slug}")["name"] == "c"
    expect_ok(scenario.create_as(manager, "/v1/virtual-keys", VIRTUAL_KEY))
    expect_ok(leader.put(f"/v1/configs/{slug}", {"name": "d"}))
    scenario.set_security_settings(managersWriteConfigs=True)
    expect_ok(manager.put(f"/v1/configs/{slug}", {"name": "e"}))


@pytest.mark.parametrize(
    ("flag", "path", "body"),
    [
        ("membersWriteConfigs", "/v1/configs", CONFIG),
        ("membersWriteVirtualKeys", "/v1/virtual-keys", VIRTUAL_KEY),
        ("membersWriteApiKeys", "/v1/api-keys/workspace/service", KEY),
    ],
)
def test_granted_member_right_covers_only_its_resource(
    scenario: WorkspaceWithRoles, flag: str, path: str, body: dict[str, Any]
):
    member = scenario.people["member"]
    everything = {"/v1/configs": CONFIG, "/v1/virtual-keys": VIRTUAL_KEY, "/v1/api-keys/workspace/service": KEY}
    expect_error(scenario.create_as(member, path, body), 403, "AB03")
    scenario.set_security_settings(**{flag: True})
    created = expect_ok(scenario.create_as(member, path, body))
    parent_path = path.removesuffix("/workspace/service")
    expect_ok(member.delete(f"{parent_path}/{created['id']}?workspace_id={scenario.id}"))
    for other in everything.keys() - {path}:
        expect_error(scenario.create_as(member, other, everything[other]), 403, "AB03")
    expect_error(scenario.create_as(member, "/v1/integrations", INTEGRATION), 403, "AB03")
    expect_error(member.put(scenario.path, {"name": "mine"}), 403, "AB03")
    scenario.set_security_settings(**{flag: None})
    expect_error(scenario.create_as(member, path, body), 403, "AB03")


@pytest.mark.parametrize(
    ("what", "paths"),
    [
        ("Configs", ["/v1/configs"]),
        ("VirtualKeys", ["/v1/virtual-keys", "/v1/providers"]),
        ("ApiKeys", ["/v1/api-keys"]),
    ],
)
def test_revoked_view_right_hides_lists_and_rows(scenario: WorkspaceWithRoles, what: str, paths: list[str]):
    body = {
        "/v1/configs": scenario.admin.create("/v1/configs", {**CONFIG, "workspace_id": scenario.id})["id"],
        "/v1/virtual-keys": (
            key := scenario.admin.create("/v1/virtual-keys", {**VIRTUAL_KEY, "workspace_id": scenario.id})
        )["id"],
        "/v1/providers": key["id"],
        "/v1/api-keys": scenario.admin.create("/v1/api-keys/workspace/service", {**KEY, "workspace_id": scenario.id})[
            "id"
        ],
    }
    for role, plural in (("member", "members"), ("manager", "managers")):
        who = scenario.people[role]
        for path in paths:
            assert who.get(f"{path}?workspace_id={scenario.id}").status == 200
        scenario.set_security_settings(**{f"{plural}View{what}": False})
        for path, row_id in body.items():
            expected = 403 if path in paths else 200
            for looked_at in (path, f"{path}/{row_id}"):
                assert who.get(f"{looked_at}?workspace_id={scenario.id}").status == expected, (role, looked_at)
        # The list is forbidden without a workspace in the query too.
        assert who.get(paths[0]).status == 403
        (own,) = who.read("/v1/auth/self")["workspaces"]
        assert ("configs.list" in own["scopes"]) is (what != "Configs")


def test_managers_can_lose_rights_on_users_and_integrations(scenario: WorkspaceWithRoles):
    manager = scenario.people["manager"]
    other = scenario.ids["member"]
    expect_ok(manager.put(scenario.path, {"description": "by a manager"}))
    expect_ok(scenario.create_as(manager, "/v1/integrations", INTEGRATION))
    scenario.set_security_settings(
        managersWriteWsUsers=False, managersWriteWsIntegrations=False, managersUpdateWs=False
    )
    expect_error(manager.put(scenario.path, {"description": "x"}), 403, "AB03", "workspaces.update")
    expect_error(scenario.create_as(manager, "/v1/integrations", INTEGRATION), 403, "AB03")
    for response in (
        manager.put(f"{scenario.path}/users/{other}", {"role": "admin"}),
        manager.delete(f"{scenario.path}/users/{other}"),
        manager.post(f"{scenario.path}/users", {"users": [{"id": other, "role": "member"}]}),
    ):
        expect_error(response, 403, "AB03", "workspace_users")
    assert manager.read(f"{scenario.path}/users")["total"] == 3


def test_managers_cannot_lift_settings_chosen_by_admins(scenario: WorkspaceWithRoles):
    manager, leader = scenario.people["manager"], scenario.people["admin"]
    scenario.set_security_settings(managersWriteConfigs=False)
    expect_error(
        manager.put(scenario.path, {"security_settings": {"managersWriteConfigs": True}}), 403, "AB03", "admins"
    )
    expect_error(manager.put(scenario.path, {"security_settings": None}), 403, "AB03", "security_settings")
    # A manager cannot gain rights by changing roles either, because an admin has more rights than a manager.
    for who in ("manager", "member"):
        expect_error(manager.put(f"{scenario.path}/users/{scenario.ids[who]}", {"role": "admin"}), 403, "AB03", "admin")
    expect_ok(manager.put(f"{scenario.path}/users/{scenario.ids['member']}", {"role": "manager"}))
    # An API key does not allow it either, regardless of its owner.
    scopes = ["workspaces.update", "completions.write"]
    keys = [expect_ok(scenario.create_as(manager, "/v1/api-keys/workspace/service", {"name": "k", "scopes": scopes}))]
    for_admin = {"name": "k", "scopes": scopes, "user_id": scenario.ids["admin"]}
    keys.append(expect_ok(scenario.create_as(manager, "/v1/api-keys/workspace/user", for_admin)))
    for key in keys:
        with_key = Client(scenario.admin.gateway, key["key"])
        expect_ok(with_key.put(scenario.path, {"description": "by a key"}))
        expect_error(with_key.put(scenario.path, {"security_settings": {"managersWriteConfigs": True}}), 403, "AB03")
    expect_error(
        scenario.create_as(manager, "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["configs.create"]}),
        403,
        "AB03",
    )
    expect_ok(leader.put(scenario.path, {"security_settings": {"managersWriteConfigs": True}}))
    expect_ok(scenario.create_as(manager, "/v1/configs", CONFIG))


def test_organisation_key_cannot_grant_rights_it_lacks(scenario: WorkspaceWithRoles):
    narrow = scenario.admin.with_new_key(kind="organisation/service", scopes=["workspaces.update", "workspaces.read"])
    expect_error(
        narrow.put(scenario.path, {"security_settings": {"membersWriteConfigs": True}}), 403, "AB03", "configs"
    )
    expect_ok(narrow.put(scenario.path, {"security_settings": {"managersWriteConfigs": False}}))
    wider = scenario.admin.with_new_key(
        kind="organisation/service", scopes=["workspace_users.update", "workspace_users.read"]
    )
    expect_error(wider.put(f"{scenario.path}/users/{scenario.ids['member']}", {"role": "manager"}), 403, "AB03")


def test_user_key_follows_the_workspace_settings(scenario: WorkspaceWithRoles):
    scopes = ["configs.list", "configs.create", "completions.write"]
    body = {"name": "k", "scopes": scopes, "user_id": scenario.ids["manager"]}
    key = Client(
        scenario.admin.gateway,
        scenario.admin.create("/v1/api-keys/workspace/user", {**body, "workspace_id": scenario.id})["key"],
    )
    expect_ok(key.post("/v1/configs", CONFIG))
    scenario.set_security_settings(managersWriteConfigs=False)
    expect_error(key.post("/v1/configs", CONFIG), 403, "AB03", "configs.create")
    assert key.read("/v1/configs")["total"] == 1


def test_settings_are_merged_reset_and_audited(scenario: WorkspaceWithRoles):
    usual = scenario.row["security_settings"]
    assert len(usual) == 35
    scenario.set_security_settings(membersWritePrompts=True)
    security_settings = scenario.set_security_settings(managersViewLogs=False)
    assert security_settings == {**usual, "membersWritePrompts": True, "managersViewLogs": False}
    expect_ok(scenario.admin.put(scenario.path, {"settings": {"block_inline_config": False}}))
    row = scenario.admin.read(scenario.path)
    assert (row["security_settings"], row["settings"]) == (security_settings, {"block_inline_config": False})
    assert scenario.set_security_settings(membersWritePrompts=None) == {**usual, "managersViewLogs": False}
    assert expect_ok(scenario.admin.put(scenario.path, {"security_settings": None}))["security_settings"] == usual
    for body, words in (
        ({"membersWriteLogs": True}, "security_settings.membersWriteLogs"),
        ({"membersWriteConfigs": "yes"}, "security_settings"),
    ):
        expect_error(scenario.admin.put(scenario.path, {"security_settings": body}), 400, "AB01", words)
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    request_body = (
        f"{span}&organisation_id={row['organisation_id']}&workspace_id={scenario.id}&resource_type=workspaces"
    )
    records = scenario.admin.read(f"/v1/audit-logs?{request_body}")["records"]
    assert any("managersViewLogs" in str(record) for record in records)


def test_workspace_is_created_with_its_security_settings(admin: Client):
    workspace = admin.create("/v2/workspaces", {"name": "strict", "security_settings": {"membersViewConfigs": False}})
    assert not workspace["security_settings"]["membersViewConfigs"]
    assert (
        admin.read(f"/v1/admin/workspaces/{workspace['slug']}")["security_settings"] == workspace["security_settings"]
    )


ORGANISATION_SETTINGS_PATH = "/v1/admin/organisation/settings"


@pytest.fixture
def put_organisation_rules(admin: Client) -> Iterator[Callable[..., dict[str, Any]]]:
    """Returns a function that sets rules of the organisation. The rules are reset afterwards, because other tests share
    the organisation.
    """

    def put_rules(**rules: object) -> dict[str, Any]:
        return expect_ok(admin.put(ORGANISATION_SETTINGS_PATH, rules))

    yield put_rules
    put_rules(security_settings=None, security_settings_overrides=None, block_inline_config=None)
    put_rules(user_api_key_auto_create=None, default_workspace_user_api_key_auto_create=None)


def test_organisation_settings_are_defaults_for_workspaces(
    scenario: WorkspaceWithRoles, put_organisation_rules: Callable[..., dict[str, Any]]
):
    member, manager = scenario.people["member"], scenario.people["manager"]
    usual = scenario.row["security_settings"]
    content = put_organisation_rules(security_settings={"membersWriteConfigs": True, "managersWriteConfigs": False})
    assert content["security_settings"] == {**usual, "membersWriteConfigs": True, "managersWriteConfigs": False}
    assert scenario.admin.read(scenario.path)["security_settings"] == content["security_settings"]
    listed = scenario.admin.read("/v1/workspaces?page_size=1000")["data"]
    assert all(row["security_settings"]["membersWriteConfigs"] for row in listed if row["id"] == scenario.id)
    expect_ok(scenario.create_as(member, "/v1/configs", CONFIG))
    expect_error(scenario.create_as(manager, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    # A setting of the workspace takes precedence.
    scenario.set_security_settings(membersWriteConfigs=False, managersWriteConfigs=True)
    expect_error(scenario.create_as(member, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    expect_ok(scenario.create_as(manager, "/v1/configs", CONFIG))
    for body, words in (
        ({"security_settings": {"membersWriteLogs": True}}, "security_settings.membersWriteLogs"),
        ({"security_settings_overrides": {"stars": True}}, "security_settings_overrides"),
    ):
        expect_error(scenario.admin.put(ORGANISATION_SETTINGS_PATH, body), 400, "AB01", words)


def test_organisation_locks_and_reopens_a_settings_section(
    scenario: WorkspaceWithRoles, put_organisation_rules: Callable[..., dict[str, Any]]
):
    member, leader = scenario.people["member"], scenario.people["admin"]
    scenario.set_security_settings(membersWriteConfigs=True, membersWriteVirtualKeys=True)
    put_organisation_rules(security_settings_overrides={"configs": False})
    expect_error(scenario.create_as(member, "/v1/configs", CONFIG), 403, "AB03", "configs.create")
    expect_ok(scenario.create_as(member, "/v1/virtual-keys", VIRTUAL_KEY))
    fetched = scenario.admin.read(scenario.path)["security_settings"]
    assert (fetched["membersWriteConfigs"], fetched["membersWriteVirtualKeys"]) == (False, True)
    for who in (scenario.admin, leader):
        path = "security_settings.membersWriteConfigs"
        expect_error(
            who.put(scenario.path, {"security_settings": {"membersWriteConfigs": True}}), 403, "AB03", path, "configs"
        )
        # Sending the settings back as they were shown changes nothing.
        expect_ok(who.put(scenario.path, {"security_settings": fetched}))
    expect_error(
        scenario.admin.post("/v1/workspaces", {"name": "w", "security_settings": {"membersWriteConfigs": True}}),
        *(403, "AB03", "for the organisation"),
    )
    put_organisation_rules(security_settings={"managersWriteConfigs": False})
    content = put_organisation_rules(security_settings_overrides={"configs": True})
    assert content["security_settings_overrides"] == {"configs": True}
    fetched = scenario.admin.read(scenario.path)["security_settings"]
    assert (fetched["membersWriteConfigs"], fetched["managersWriteConfigs"]) == (False, False)
    # From here on the workspace has its own setting.
    put_organisation_rules(security_settings={"managersWriteConfigs": None})
    assert scenario.admin.read(scenario.path)["security_settings"] == fetched
    assert scenario.set_security_settings(membersWriteConfigs=True)["membersWriteConfigs"]
    expect_ok(scenario.create_as(member, "/v1/configs", CONFIG))


def test_organisation_settings_cannot_grant_rights_the_key_lacks(scenario: WorkspaceWithRoles):
    narrow = scenario.admin.with_new_key(
        kind="organisation/service", scopes=["organisation_settings.update", "organisation_settings.read"]
    )
    expect_error(
        narrow.put(ORGANISATION_SETTINGS_PATH, {"security_settings": {"membersWriteConfigs": True}}),
        403,
        "AB03",
        "configs",
    )
    scenario.set_security_settings(managersWriteConfigs=False)
    # Locking the section would return a right to managers that the workspace had revoked.
    expect_error(
        narrow.put(ORGANISATION_SETTINGS_PATH, {"security_settings_overrides": {"configs": False}}),
        403,
        "AB03",
        "configs",
    )


def test_organisation_can_lock_block_inline_config(
    scenario: WorkspaceWithRoles, put_organisation_rules: Callable[..., dict[str, Any]]
):
    key = scenario.admin.with_new_key(workspace_id=scenario.id, scopes=["completions.write"])
    caller = {"x-gateway-api-key": key.key, "content-type": "application/json", "x-gateway-provider": "mock"}

    def is_blocked() -> bool:
        response = send_raw_request(scenario.admin.gateway.base_url, CHAT_PATH, chat_body(), caller)
        assert response.status in {200, 400}, response.body
        return response.status != 200

    def wait_until(*, blocked: bool) -> None:
        wait_for("the rule", lambda: is_blocked() == blocked or None, 5)

    def set_block_inline_config(says: bool | None) -> Response:
        return scenario.admin.put(scenario.path, {"settings": {"block_inline_config": says}})

    wait_until(blocked=False)
    name = "data_plane_security_settings"
    put_organisation_rules(block_inline_config=True, security_settings_overrides={name: True})
    # Inherited from the organisation, then set by the workspace itself.
    wait_until(blocked=True)
    assert scenario.admin.read(scenario.path)["settings"]["block_inline_config"] is True
    expect_ok(set_block_inline_config(False))
    wait_until(blocked=False)
    put_organisation_rules(security_settings_overrides={name: False})
    wait_until(blocked=True)
    put_organisation_rules(block_inline_config=False)
    wait_until(blocked=False)
    expect_error(set_block_inline_config(True), 403, "AB03", "settings.block_inline_config", name)


def test_new_workspace_members_get_a_key_if_the_rule_is_set(
    scenario: WorkspaceWithRoles, put_organisation_rules: Callable[..., dict[str, Any]]
):
    admin = scenario.admin
    other = WorkspaceWithRoles(admin)
    path, newcomer = f"{scenario.path}/users", other.ids["member"]

    def list_user_keys(user: str) -> list[dict[str, Any]]:
        listed = admin.read(f"/v1/api-keys?workspace_id={scenario.id}&page_size=100")["data"]
        return [key for key in listed if key["user_id"] == user]

    expect_ok(admin.post(path, {"users": [{"id": newcomer}]}))
    assert not list_user_keys(newcomer)
    expect_ok(admin.delete(f"{path}/{newcomer}"))
    put_organisation_rules(user_api_key_auto_create=True)
    expect_ok(admin.post(path, {"users": [{"id": newcomer}]}))
    (key,) = list_user_keys(newcomer)
    assert (key["type"], key["creation_mode"], key["status"]) == ("workspace-user", "auto", "active")
    assert ("completions.write" in key["scopes"], "configs.create" in key["scopes"]) == (True, False)
    # The secret of the key is available only by rotating it.
    text = expect_ok(admin.post(f"/v1/api-keys/{key['id']}/rotate", {}))["key"]
    assert Client(admin.gateway, text).get("/v1/configs").status == 200
    # Accepting an invitation returns the new key.
    email = f"auto{next(NUMBERS)}@example.test"
    invited = {"email": email, "role": "member", "workspaces": [{"id": scenario.id, "role": "manager"}]}
    token = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    body = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
    (invite,) = expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", body))["api_keys"]
    assert Client(admin.gateway, invite["key"]).post("/v1/configs", CONFIG).status == 200
    # The workspace's rule takes precedence over the organisation's.
    expect_ok(admin.put(scenario.path, {"settings": {"user_api_key_auto_create": False}}))
    expect_ok(admin.delete(f"{path}/{newcomer}"))
    expect_ok(admin.post(path, {"users": [{"id": newcomer}]}))
    assert not list_user_keys(newcomer)
    # The default workspace has a separate rule.
    default = next(row for row in admin.read("/v1/workspaces?page_size=1000")["data"] if row["is_default"])
    for rule, number in ((False, 0), (True, 1)):
        put_organisation_rules(default_workspace_user_api_key_auto_create=rule)
        expect_ok(admin.post(f"/v1/workspaces/{default['id']}/users", {"users": [{"id": newcomer}]}))
        listed = admin.read(f"/v1/api-keys?workspace_id={default['id']}&page_size=100")["data"]
        assert len([key for key in listed if key["user_id"] == newcomer]) == number
        expect_ok(admin.delete(f"/v1/workspaces/{default['id']}/users/{newcomer}"))
