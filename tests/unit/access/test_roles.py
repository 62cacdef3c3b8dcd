"""Role flags. They mirror the scopes of the roles, and change them in workspaces that set other flags."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access import roles
from penstock.authorization import ALL_SCOPES, CALL_SCOPES, Caller, member_scopes
from penstock.errors import ForbiddenError, InvalidError


def make_security_settings(**flags: bool) -> dict[str, Any]:
    return {"security_settings": flags}


def effective_flags(**flags: bool) -> dict[str, bool]:
    """Returns the effective flags of a workspace with these settings, in an organisation without any."""
    return roles.non_default_flags(make_security_settings(**flags), {})


def test_every_flag_of_clients_exists_and_shows_the_role():
    flags = roles.effective_flags({})
    assert len(flags) == 35
    assert {name for name, is_allowed in flags.items() if not is_allowed} == {
        f"membersWrite{label}" for label in roles.WRITE_SCOPES
    }
    assert roles.effective_flags(make_security_settings(membersWriteConfigs=True, managersUpdateWs=False)) == {
        **flags,
        "membersWriteConfigs": True,
        "managersUpdateWs": False,
    }


def test_each_flag_maps_to_existing_scopes():
    for flags in roles.FLAG_SCOPES.values():
        assert frozenset[str]().union(*flags.values()) <= ALL_SCOPES


@pytest.mark.parametrize("role", ["admin", "manager", "member"])
def test_default_flags_change_nothing(role: str):
    assert roles.role_scopes(role, {}) == member_scopes(role)
    assert roles.role_scopes(role, effective_flags(**roles.DEFAULT_FLAGS)) == member_scopes(role)


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, flags in roles.FLAG_SCOPES.items() for name in flags]
)
def test_flag_changes_only_its_role_and_never_exceeds_admin(role: str, name: str):
    about = roles.FLAG_SCOPES[role][name]
    assert roles.role_scopes(role, effective_flags(**{name: False})) == member_scopes(role) - about
    assert roles.role_scopes(role, effective_flags(**{name: True})) == member_scopes(role) | about
    for is_allowed in (False, True):
        others = {"member", "manager", "admin"} - {role}
        assert all(
            roles.role_scopes(other, effective_flags(**{name: is_allowed})) == member_scopes(other) for other in others
        )
        # Rendering shows the text of a prompt, so the flag for prompts includes it.
        needed = CALL_SCOPES if is_allowed else CALL_SCOPES - about
        assert needed <= roles.role_scopes(role, effective_flags(**{name: is_allowed})) <= member_scopes("admin")


def test_key_is_limited_to_its_scopes_whatever_the_role_gains():
    overrides = roles.role_overrides("member", effective_flags(membersWriteConfigs=True, membersViewConfigs=False))
    assert overrides
    person = Caller(
        id="k",
        type="workspace-user",
        organisation_id="o",
        workspace_id="w",
        user_id="u",
        scopes=frozenset({"configs.create", "configs.list", "completions.write"}),
        roles={"w": "member"},
        overrides_by_workspace={"w": overrides},
    )
    assert person.granted_scopes("w") == {"configs.create", "completions.write"}


def test_only_non_default_flags_are_stored_and_null_resets():
    before = make_security_settings(membersWriteConfigs=True, managersViewConfigs=False)
    body = {"managersViewConfigs": None, "membersViewLogs": True, "membersViewPrompts": False}
    assert roles.merge_flags(body, before) == {"membersWriteConfigs": True, "membersViewPrompts": False}
    assert roles.merge_flags(None, before) == {}
    with pytest.raises(
        InvalidError, match=r"security_settings\.membersWriteLogs is not known; .*allowed: managersUpdateWs"
    ):
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
        # A manager may have created the key for an admin.
        ({"type": "workspace-user", "workspace_id": "w", "user_id": "u", "roles": {"w": "admin"}}, False),
        ({"type": "workspace-user", "workspace_id": "w", "user_id": "u", "org_role": "owner"}, False),
        ({"type": "token", "by": "token", "workspace_id": "w"}, False),
    ],
)
def test_only_admins_may_set_flags(fields: dict[str, Any], may: bool):
    caller = Caller(id="c", organisation_id="o", scopes=ALL_SCOPES, **fields)
    if may:
        roles.check_can_set_flags(caller, "w")
    else:
        with pytest.raises(ForbiddenError, match="security_settings are for admins"):
            roles.check_can_set_flags(caller, "w")


def test_reports_scopes_gained_so_that_nobody_grants_more():
    gained = roles.gained_scopes(
        effective_flags(managersWriteConfigs=False), effective_flags(membersWriteVirtualKeys=True)
    )
    assert gained == roles.WRITE_SCOPES["Configs"] | roles.WRITE_SCOPES["VirtualKeys"]
    assert not roles.gained_scopes({}, effective_flags(managersWriteConfigs=False))


def test_each_flag_has_a_section_and_each_section_has_flags():
    assert roles.SECTION_BY_FLAG.keys() == roles.DEFAULT_FLAGS.keys()
    assert set(roles.SECTION_BY_FLAG.values()) == set(roles.SECTION_BY_SUBJECT.values())


def test_organisation_flags_are_defaults_unless_locked():
    above = make_security_settings(membersWriteConfigs=True, managersWriteConfigs=False, membersViewLogs=False)
    own = make_security_settings(membersWriteConfigs=False, managersWritePrompts=False)
    assert roles.non_default_flags({}, above) == above["security_settings"]
    remaining_items = {"managersWriteConfigs": False, "membersViewLogs": False, "managersWritePrompts": False}
    assert roles.non_default_flags(own, above) == remaining_items
    remaining = {**above, "security_settings_overrides": {"configs": False}}
    assert roles.non_default_flags(own, remaining) == {**remaining_items, "membersWriteConfigs": True}
    # Flags that are sent back unchanged are not a change.
    assert roles.merge_flags(roles.effective_flags(own, remaining), own, remaining) == own["security_settings"]
    with pytest.raises(
        ForbiddenError, match=r"security_settings\.membersWriteConfigs is for the organisation to choose"
    ):
        roles.merge_flags({"membersWriteConfigs": False}, own, remaining)
    assert roles.merge_flags({"membersViewLogs": True, "membersWriteConfigs": None}, {}, above) == {
        "membersViewLogs": True
    }


def test_delegated_flags_become_the_workspaces_own():
    above = make_security_settings(membersWriteConfigs=True)
    own = {**make_security_settings(membersWriteConfigs=False, membersViewLogs=False), "debug_log": 1}
    passed = roles.copy_flags_to_workspace({"configs"}, own, above)
    configs = {
        name: is_allowed for name, is_allowed in roles.effective_flags({}, above).items() if name.endswith("Configs")
    }
    assert passed == {"security_settings": {**configs, "membersViewLogs": False}, "debug_log": 1}
    assert roles.non_default_flags(passed, {}) == {"membersWriteConfigs": True, "membersViewLogs": False}
    assert roles.copy_flags_to_workspace(set(), own, above) == own
