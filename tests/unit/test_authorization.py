"""Scopes of callers: what a key or a user may do."""

from __future__ import annotations

import pytest

from penstock.authorization import CALL_SCOPES, SCOPES_BY_KEY_TYPE, Caller, require_scopes


def make_caller(**fields: object) -> Caller:
    body = {
        "id": "k",
        "type": "workspace-user",
        "organisation_id": "o",
        "user_id": "u",
        "scopes": SCOPES_BY_KEY_TYPE["workspace-user"],
    }
    return Caller(**{**body, **fields})  # pyright: ignore[reportArgumentType]


def test_only_workspace_keys_may_call_models():
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
def test_user_has_the_scopes_of_the_workspace_role(role: str | None, may: set[str]):
    person = make_caller(org_role="member", roles={"w": role} if role else {})
    assert person.granted_scopes("w") & {"configs.create", "configs.read", "completions.write"} == may
    assert person.granted_scopes("elsewhere") == person.granted_scopes(None) == frozenset()
    assert not person.is_organisation_admin


@pytest.mark.parametrize("role", ["owner", "admin"])
def test_org_admins_administer_every_workspace(role: str):
    person = make_caller(org_role=role)
    assert person.is_organisation_admin
    assert "configs.delete" in person.granted_scopes("anywhere")


def test_rejects_a_guard_for_an_unknown_scope():
    with pytest.raises(ValueError, match=r"no scope fly\.high"):
        require_scopes("configs.list", "fly.high")
