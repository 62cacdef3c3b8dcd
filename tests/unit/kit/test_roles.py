"""The flags of roles say what the scopes of the roles say, and change them where a workspace chose others."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.authorization import ALL_SCOPES, CALL_SCOPES, Caller, member_scopes
from penstock.errors import ForbiddenError, InvalidError
from penstock.kit import roles


def choosing(**flags: bool) -> dict[str, Any]:
    return {"security_settings": flags}


def force(**flags: bool) -> dict[str, bool]:
    """The flags in force where a workspace chose these, and its organisation nothing."""
    return roles.non_default_flags(choosing(**flags), {})


def test_there_is_a_flag_for_each_that_clients_know_and_it_says_what_the_role_may():
    flags = roles.effective_flags({})
    assert len(flags) == 35
    assert {name for name, may in flags.items() if not may} == {f"membersWrite{what}" for what in roles.WRITE_SCOPES}
    assert roles.effective_flags(choosing(membersWriteConfigs=True, managersUpdateWs=False)) == {
        **flags,
        "membersWriteConfigs": True,
        "managersUpdateWs": False,
    }


def test_each_flag_stands_for_scopes_that_exist():
    for flags in roles.FLAG_SCOPES.values():
        assert frozenset[str]().union(*flags.values()) <= ALL_SCOPES


@pytest.mark.parametrize("role", ["admin", "manager", "member"])
def test_flags_that_say_the_usual_change_nothing(role: str):
    assert roles.role_scopes(role, {}) == member_scopes(role)
    assert roles.role_scopes(role, force(**roles.DEFAULT_FLAGS)) == member_scopes(role)


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, flags in roles.FLAG_SCOPES.items() for name in flags]
)
def test_a_flag_takes_from_its_role_and_gives_to_it_and_never_more_than_an_admin_has(role: str, name: str):
    about = roles.FLAG_SCOPES[role][name]
    assert roles.role_scopes(role, force(**{name: False})) == member_scopes(role) - about
    assert roles.role_scopes(role, force(**{name: True})) == member_scopes(role) | about
    for may in (False, True):
        others = {"member", "manager", "admin"} - {role}
        assert all(roles.role_scopes(other, force(**{name: may})) == member_scopes(other) for other in others)
        assert CALL_SCOPES <= roles.role_scopes(role, force(**{name: may})) <= member_scopes("admin")


def test_a_key_holds_no_more_than_its_scopes_whatever_the_role_is_given():
    apart = roles.role_overrides("member", force(membersWriteConfigs=True, membersViewConfigs=False))
    assert apart
    person = Caller(
        id="k",
        type="workspace-user",
        organisation_id="o",
        workspace_id="w",
        user_id="u",
        scopes=frozenset({"configs.create", "configs.list", "completions.write"}),
        roles={"w": "member"},
        apart={"w": apart},
    )
    assert person.granted_scopes("w") == {"configs.create", "completions.write"}


def test_only_what_is_not_the_usual_is_kept_and_null_is_the_usual():
    before = choosing(membersWriteConfigs=True, managersViewConfigs=False)
    given = {"managersViewConfigs": None, "membersViewLogs": True, "membersViewPrompts": False}
    assert roles.merge_flags(given, before) == {"membersWriteConfigs": True, "membersViewPrompts": False}
    assert roles.merge_flags(None, before) == {}
    with pytest.raises(InvalidError, match=r"security_settings\.membersWriteLogs is not known: use managersUpdateWs"):
        roles.merge_flags({"membersWriteLogs": True}, {})


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({"type": "organisation-service"}, True),
        ({"type": "person", "by": "session", "user_id": "u", "org_role": "owner"}, True),
        ({"type": "person", "by": "session", "user_id": "u", "roles": {"w": "admin"}}, True),
        ({"type": "person", "by": "session", "user_id": "u", "roles": {"w": "manager"}}, False),
        ({"type": "person", "by": "session", "user_id": "u", "roles": {"v": "admin"}}, False),
        ({"type": "workspace-service", "workspace_id": "w"}, False),
        # A manager may have made it for an admin.
        ({"type": "workspace-user", "workspace_id": "w", "user_id": "u", "roles": {"w": "admin"}}, False),
        ({"type": "workspace-user", "workspace_id": "w", "user_id": "u", "org_role": "owner"}, False),
        ({"type": "token", "by": "token", "workspace_id": "w"}, False),
    ],
)
def test_flags_are_for_admins_to_choose(fields: dict[str, Any], may: bool):
    caller = Caller(id="c", organisation_id="o", scopes=ALL_SCOPES, **fields)
    if may:
        roles.check_can_set_flags(caller, "w")
    else:
        with pytest.raises(ForbiddenError, match="security_settings are for admins"):
            roles.check_can_set_flags(caller, "w")


def test_what_a_role_gains_is_told_so_that_nobody_gives_what_is_more_than_their_own():
    gained = roles.gained_scopes(force(managersWriteConfigs=False), force(membersWriteVirtualKeys=True))
    assert gained == roles.WRITE_SCOPES["Configs"] | roles.WRITE_SCOPES["VirtualKeys"]
    assert not roles.gained_scopes({}, force(managersWriteConfigs=False))


def test_each_flag_is_in_a_section_and_each_section_has_flags():
    assert roles.SECTION_BY_FLAG.keys() == roles.DEFAULT_FLAGS.keys()
    assert set(roles.SECTION_BY_FLAG.values()) == set(roles.SECTION_BY_SUBJECT.values())


def test_what_an_organisation_says_holds_where_a_workspace_chose_nothing_and_everywhere_in_what_it_keeps():
    above = choosing(membersWriteConfigs=True, managersWriteConfigs=False, membersViewLogs=False)
    own = choosing(membersWriteConfigs=False, managersWritePrompts=False)
    assert roles.non_default_flags({}, above) == above["security_settings"]
    left = {"managersWriteConfigs": False, "membersViewLogs": False, "managersWritePrompts": False}
    assert roles.non_default_flags(own, above) == left
    kept = {**above, "security_settings_overrides": {"configs": False}}
    assert roles.non_default_flags(own, kept) == {**left, "membersWriteConfigs": True}
    # What is sent back as it was shown is no change.
    assert roles.merge_flags(roles.effective_flags(own, kept), own, kept) == own["security_settings"]
    with pytest.raises(
        ForbiddenError, match=r"security_settings\.membersWriteConfigs is for the organisation to choose"
    ):
        roles.merge_flags({"membersWriteConfigs": False}, own, kept)
    assert roles.merge_flags({"membersViewLogs": True, "membersWriteConfigs": None}, {}, above) == {
        "membersViewLogs": True
    }


def test_what_is_passed_down_is_the_workspaces_own_from_there_on():
    above = choosing(membersWriteConfigs=True)
    own = {**choosing(membersWriteConfigs=False, membersViewLogs=False), "debug_log": 1}
    passed = roles.copy_flags_to_workspace({"configs"}, own, above)
    configs = {name: may for name, may in roles.effective_flags({}, above).items() if name.endswith("Configs")}
    assert passed == {"security_settings": {**configs, "membersViewLogs": False}, "debug_log": 1}
    assert roles.non_default_flags(passed, {}) == {"membersWriteConfigs": True, "membersViewLogs": False}
    assert roles.copy_flags_to_workspace(set(), own, above) == own
