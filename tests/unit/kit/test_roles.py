"""The flags of roles say what the scopes of the roles say, and change them where a workspace chose others."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.authorization import CALLS, EVERYTHING, Caller, of_member
from penstock.errors import ForbiddenError, InvalidError
from penstock.kit import roles


def choosing(**flags: bool) -> dict[str, Any]:
    return {"security_settings": flags}


def force(**flags: bool) -> dict[str, bool]:
    """The flags in force where a workspace chose these, and its organisation nothing."""
    return roles.in_force(choosing(**flags), {})


def test_there_is_a_flag_for_each_that_clients_know_and_it_says_what_the_role_may():
    flags = roles.shown({})
    assert len(flags) == 35
    assert {name for name, may in flags.items() if not may} == {f"membersWrite{what}" for what in roles.WRITES}
    assert roles.shown(choosing(membersWriteConfigs=True, managersUpdateWs=False)) == {
        **flags,
        "membersWriteConfigs": True,
        "managersUpdateWs": False,
    }


def test_each_flag_stands_for_scopes_that_exist():
    for flags in roles.FLAGS.values():
        assert frozenset[str]().union(*flags.values()) <= EVERYTHING


@pytest.mark.parametrize("role", ["admin", "manager", "member"])
def test_flags_that_say_the_usual_change_nothing(role: str):
    assert roles.of_role(role, {}) == of_member(role)
    assert roles.of_role(role, force(**roles.USUAL)) == of_member(role)


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, flags in roles.FLAGS.items() for name in flags])
def test_a_flag_takes_from_its_role_and_gives_to_it_and_never_more_than_an_admin_has(role: str, name: str):
    about = roles.FLAGS[role][name]
    assert roles.of_role(role, force(**{name: False})) == of_member(role) - about
    assert roles.of_role(role, force(**{name: True})) == of_member(role) | about
    for may in (False, True):
        others = {"member", "manager", "admin"} - {role}
        assert all(roles.of_role(other, force(**{name: may})) == of_member(other) for other in others)
        assert CALLS <= roles.of_role(role, force(**{name: may})) <= of_member("admin")


def test_a_key_holds_no_more_than_its_scopes_whatever_the_role_is_given():
    apart = roles.apart("member", force(membersWriteConfigs=True, membersViewConfigs=False))
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
    assert person.grants("w") == {"configs.create", "completions.write"}


def test_only_what_is_not_the_usual_is_kept_and_null_is_the_usual():
    before = choosing(membersWriteConfigs=True, managersViewConfigs=False)
    given = {"managersViewConfigs": None, "membersViewLogs": True, "membersViewPrompts": False}
    assert roles.chosen(given, before) == {"membersWriteConfigs": True, "membersViewPrompts": False}
    assert roles.chosen(None, before) == {}
    with pytest.raises(InvalidError, match=r"security_settings\.membersWriteLogs is not known: use managersUpdateWs"):
        roles.chosen({"membersWriteLogs": True}, {})


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
    caller = Caller(id="c", organisation_id="o", scopes=EVERYTHING, **fields)
    if may:
        roles.refuse_choosing(caller, "w")
    else:
        with pytest.raises(ForbiddenError, match="security_settings are for admins"):
            roles.refuse_choosing(caller, "w")


def test_what_a_role_gains_is_told_so_that_nobody_gives_what_is_more_than_their_own():
    gained = roles.gained(force(managersWriteConfigs=False), force(membersWriteVirtualKeys=True))
    assert gained == roles.WRITES["Configs"] | roles.WRITES["VirtualKeys"]
    assert not roles.gained({}, force(managersWriteConfigs=False))


def test_each_flag_is_in_a_section_and_each_section_has_flags():
    assert roles.SECTION.keys() == roles.USUAL.keys()
    assert set(roles.SECTION.values()) == set(roles.SECTIONS.values())


def test_what_an_organisation_says_holds_where_a_workspace_chose_nothing_and_everywhere_in_what_it_keeps():
    above = choosing(membersWriteConfigs=True, managersWriteConfigs=False, membersViewLogs=False)
    own = choosing(membersWriteConfigs=False, managersWritePrompts=False)
    assert roles.in_force({}, above) == above["security_settings"]
    left = {"managersWriteConfigs": False, "membersViewLogs": False, "managersWritePrompts": False}
    assert roles.in_force(own, above) == left
    kept = {**above, "security_settings_overrides": {"configs": False}}
    assert roles.in_force(own, kept) == {**left, "membersWriteConfigs": True}
    # What is sent back as it was shown is no change.
    assert roles.chosen(roles.shown(own, kept), own, kept) == own["security_settings"]
    with pytest.raises(
        ForbiddenError, match=r"security_settings\.membersWriteConfigs is for the organisation to choose"
    ):
        roles.chosen({"membersWriteConfigs": False}, own, kept)
    assert roles.chosen({"membersViewLogs": True, "membersWriteConfigs": None}, {}, above) == {"membersViewLogs": True}


def test_what_is_passed_down_is_the_workspaces_own_from_there_on():
    above = choosing(membersWriteConfigs=True)
    own = {**choosing(membersWriteConfigs=False, membersViewLogs=False), "debug_log": 1}
    passed = roles.passed_down({"configs"}, own, above)
    configs = {name: may for name, may in roles.shown({}, above).items() if name.endswith("Configs")}
    assert passed == {"security_settings": {**configs, "membersViewLogs": False}, "debug_log": 1}
    assert roles.in_force(passed, {}) == {"membersWriteConfigs": True, "membersViewLogs": False}
    assert roles.passed_down(set(), own, above) == own
