"""What a key may do."""

from __future__ import annotations

import pytest

from penstock.authorization import CALL_SCOPES, SCOPES_BY_KEY_TYPE, Caller, require_scopes


def caller(**fields: object) -> Caller:
    given = {
        "id": "k",
        "type": "workspace-user",
        "organisation_id": "o",
        "user_id": "u",
        "scopes": SCOPES_BY_KEY_TYPE["workspace-user"],
    }
    return Caller(**{**given, **fields})  # pyright: ignore[reportArgumentType]


def test_models_are_called_with_keys_of_workspaces_alone():
    assert not CALL_SCOPES & (SCOPES_BY_KEY_TYPE["organisation-service"] | SCOPES_BY_KEY_TYPE["organisation-user"])
    assert SCOPES_BY_KEY_TYPE["workspace-user"] >= CALL_SCOPES
    assert "workspaces.delete" in SCOPES_BY_KEY_TYPE["organisation-service"]
    assert not [
        kind
        for kind, scopes in SCOPES_BY_KEY_TYPE.items()
        if "workspaces.delete" in scopes and kind != "organisation-service"
    ]
    assert "workspace_service_api_keys.create" not in SCOPES_BY_KEY_TYPE["workspace-user"]


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("admin", {"configs.create", "configs.read", "completions.write"}),
        ("manager", {"configs.create", "configs.read", "completions.write"}),
        ("member", {"configs.read", "completions.write"}),
        (None, set()),
    ],
)
def test_a_person_may_what_the_role_in_the_workspace_allows(role: str | None, may: set[str]):
    person = caller(org_role="member", roles={"w": role} if role else {})
    assert person.granted_scopes("w") & {"configs.create", "configs.read", "completions.write"} == may
    assert person.granted_scopes("elsewhere") == person.granted_scopes(None) == frozenset()
    assert not person.is_organisation_admin


@pytest.mark.parametrize("role", ["owner", "admin"])
def test_who_leads_the_organisation_leads_every_workspace(role: str):
    person = caller(org_role=role)
    assert person.is_organisation_admin
    assert "configs.delete" in person.granted_scopes("anywhere")


def test_a_guard_for_a_scope_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no scope fly\.high"):
        require_scopes("configs.list", "fly.high")
