"""What roles may see and change in a workspace, as the flags by which clients know it; organisation and workspace may choose them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.authorization import WORKSPACE_SCOPES, RoleOverrides, member_scopes
from penstock.errors import ForbiddenError, Problem
from penstock.kit.rules import OVERRIDES
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.authorization import Caller

SETTINGS_FIELD = "security_settings"


def _scopes(names: str, verbs: str) -> frozenset[str]:
    return frozenset(f"{name}.{verb}" for name in names.split() for verb in verbs.split())


API_KEYS, VIRTUAL_KEYS = "workspace_user_api_keys workspace_service_api_keys", "virtual_keys providers"
VIEW_SCOPES = {
    "Logs": frozenset({"logs.view", "logs.read"}),
    "LogMetadata": frozenset({"logs.list"}),
    # Whose logs somebody sees is no matter of scopes.
    "AllData": frozenset[str](),
    "ApiKeys": _scopes(API_KEYS, "read list"),
    "Configs": _scopes("configs", "read list"),
    "Prompts": _scopes("prompts", "read list"),
    "Analytics": frozenset({"analytics.view"}),
    "Guardrails": _scopes("guardrails", "read list"),
    "VirtualKeys": _scopes(VIRTUAL_KEYS, "read list"),
}
CHANGE_VERBS = "create update delete"
WRITE_SCOPES = {
    "ApiKeys": _scopes(API_KEYS, f"{CHANGE_VERBS} rotate"),
    "Configs": _scopes("configs", CHANGE_VERBS),
    "Prompts": _scopes("prompts", f"{CHANGE_VERBS} publish"),
    "Guardrails": _scopes("guardrails", CHANGE_VERBS),
    "VirtualKeys": _scopes(VIRTUAL_KEYS, f"{CHANGE_VERBS} duplicate copy") & WORKSPACE_SCOPES,
}
MANAGER_WRITE_SCOPES = {
    **WRITE_SCOPES,
    "WsUsers": _scopes("workspace_users", CHANGE_VERBS),
    "WsIntegrations": _scopes("workspace_integrations", CHANGE_VERBS),
    "McpServers": _scopes("mcp_servers", CHANGE_VERBS),
    "WsMcpIntegrations": _scopes("workspace_mcp_integrations", CHANGE_VERBS),
}
# By role, what each flag is about.
FLAG_SCOPES: dict[str, dict[str, frozenset[str]]] = {
    "member": {
        **{f"membersView{what}": scopes for what, scopes in VIEW_SCOPES.items()},
        **{f"membersWrite{what}": scopes for what, scopes in WRITE_SCOPES.items()},
    },
    "manager": {
        **{f"managersView{what}": scopes for what, scopes in VIEW_SCOPES.items()},
        **{f"managersWrite{what}": scopes for what, scopes in MANAGER_WRITE_SCOPES.items()},
        "managersUpdateWs": frozenset({"workspaces.update"}),
    },
}
# What holds where a workspace chose nothing.
DEFAULT_FLAGS: dict[str, bool] = {
    **{name: scopes <= member_scopes(role) for role, flags in FLAG_SCOPES.items() for name, scopes in flags.items()},
    # Of logs, which are not kept yet.
    **{f"organisationAdminsView{what}": True for what in ("Logs", "LogMetadata")},
}
# By what a flag is about, the section in which the organisation lets workspaces choose it, or does not.
SECTION_BY_SUBJECT = {
    **dict.fromkeys(("Logs", "LogMetadata", "AllData"), "logs"),
    "ApiKeys": "api_keys",
    "Configs": "configs",
    "Prompts": "prompts",
    "Analytics": "analytics",
    "Guardrails": "guardrails",
    "VirtualKeys": "virtual_keys",
    **dict.fromkeys(("Ws", "WsUsers"), "workspaces"),
    "WsIntegrations": "integrations",
    **dict.fromkeys(("McpServers", "WsMcpIntegrations"), "mcp"),
}
FLAG_PREFIX = re.compile("^(?:members|managers|organisationAdmins)(?:View|Write|Update)")
SECTION_BY_FLAG = {name: SECTION_BY_SUBJECT[FLAG_PREFIX.sub("", name)] for name in DEFAULT_FLAGS}
NO_SETTINGS: Mapping[str, Any] = {}


def non_default_flags(settings: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, bool]:
    """Give the flags that are not the usual ones, for the settings of a workspace and those of its organisation.

    What a workspace chose goes first, where the organisation leaves the section to workspaces.
    """
    theirs: dict[str, bool] = above.get(SETTINGS_FIELD, {})
    own: dict[str, bool] = settings.get(SETTINGS_FIELD, {})
    flags = {**theirs, **{name: may for name, may in own.items() if not is_organisation_controlled(above, name)}}
    return {name: may for name, may in flags.items() if may is not DEFAULT_FLAGS[name]}


def is_organisation_controlled(above: Mapping[str, Any], name: str) -> bool:
    """Whether an organisation keeps a flag for itself."""
    return above.get(OVERRIDES, {}).get(SECTION_BY_FLAG[name]) is False


def effective_flags(settings: Mapping[str, Any], above: Mapping[str, Any] = NO_SETTINGS) -> dict[str, bool]:
    """Give all flags, for the settings of a workspace and its organisation."""
    return {**DEFAULT_FLAGS, **non_default_flags(settings, above)}


def role_overrides(role: str, flags: Mapping[str, bool]) -> RoleOverrides | None:
    """Say what the flags in force give to a role and take from it; nothing where they are the usual ones."""
    about = FLAG_SCOPES.get(role, {})
    given = [about[name] for name, may in flags.items() if name in about and may]
    taken = [about[name] for name, may in flags.items() if name in about and not may]
    return RoleOverrides(frozenset[str]().union(*given), frozenset[str]().union(*taken)) if flags else None


def role_scopes(role: str, flags: Mapping[str, bool]) -> frozenset[str]:
    """Give what a role lets a person do in the workspace where these flags are in force."""
    return member_scopes(role, role_overrides(role, flags))


def merge_flags(
    given: Mapping[str, bool | None] | None, settings: Mapping[str, Any], above: Mapping[str, Any] = NO_SETTINGS
) -> dict[str, bool]:
    """Write flags over those of before: what was left out stays, null is what holds without them; what holds anyway is not kept."""
    flags = dict[str, bool](settings.get(SETTINGS_FIELD, {}))
    holds, without = effective_flags(settings, above), effective_flags(NO_SETTINGS, above)
    for name, may in (dict.fromkeys(flags) if given is None else given).items():
        if name not in DEFAULT_FLAGS:
            raise field_error(f"{SETTINGS_FIELD}.{name}", f"is not known: use {', '.join(sorted(DEFAULT_FLAGS))}")
        if is_organisation_controlled(above, name):
            if may not in {None, holds[name]}:
                raise organisation_controlled_error(f"{SETTINGS_FIELD}.{name}", SECTION_BY_FLAG[name])
        elif may is None:
            flags.pop(name, None)
        elif name in flags or may is not without[name]:
            flags[name] = may
    return flags


def organisation_controlled_error(path: str, section: str) -> ForbiddenError:
    """Make the error for what the organisation does not leave to workspaces."""
    why = f"is for the organisation to choose: it leaves {section!r} to no workspace ({OVERRIDES})"
    return ForbiddenError(f"{path} {why}", [Problem(path, why)])


def copy_flags_to_workspace(
    sections: Iterable[str], settings: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    """Give a workspace the organisation's flags of some sections as its own, from where it may choose others."""
    theirs = effective_flags(NO_SETTINGS, above)
    copied = {name: may for name, may in theirs.items() if SECTION_BY_FLAG[name] in sections}
    return {**settings, SETTINGS_FIELD: {**settings.get(SETTINGS_FIELD, {}), **copied}} if copied else dict(settings)


def check_can_set_flags(caller: Caller, workspace_id: str | None) -> None:
    """Refuse to have flags chosen by who is no admin of the workspace or the organisation: a manager would lift their own."""
    # A key of a workspace may have been made by somebody who holds less than whom it is for.
    is_workspaces = caller.by == "key" and caller.workspace_id is not None
    if is_workspaces or not (caller.is_organisation_admin or caller.roles.get(workspace_id or "") == "admin"):
        why = "are for admins of the workspace and of the organisation to choose"
        raise ForbiddenError(f"{SETTINGS_FIELD} {why}", [Problem(SETTINGS_FIELD, why)])


def gained_scopes(before: Mapping[str, bool], after: Mapping[str, bool]) -> frozenset[str]:
    """Give what members or managers of a workspace may do with other flags in force that they might not before."""
    roles = [(role_scopes(role, before), role_scopes(role, after)) for role in FLAG_SCOPES]
    return frozenset[str]().union(*(now - then for then, now in roles))
