"""What roles may see and change in a workspace, as the flags by which clients know it; a workspace may choose some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.caller import WORKSPACE, Apart, of_member
from penstock.errors import ForbiddenError, Problem
from penstock.kit.record import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.caller import Caller

FIELD = "security_settings"


def _of(names: str, verbs: str) -> frozenset[str]:
    return frozenset(f"{name}.{verb}" for name in names.split() for verb in verbs.split())


API_KEYS, VIRTUAL_KEYS = "workspace_user_api_keys workspace_service_api_keys", "virtual_keys providers"
VIEWS = {
    "Logs": frozenset({"logs.view", "logs.read"}),
    "LogMetadata": frozenset({"logs.list"}),
    # Whose logs somebody sees is no matter of scopes.
    "AllData": frozenset[str](),
    "ApiKeys": _of(API_KEYS, "read list"),
    "Configs": _of("configs", "read list"),
    "Prompts": _of("prompts", "read list"),
    "Analytics": frozenset({"analytics.view"}),
    "Guardrails": _of("guardrails", "read list"),
    "VirtualKeys": _of(VIRTUAL_KEYS, "read list"),
}
CHANGES = "create update delete"
WRITES = {
    "ApiKeys": _of(API_KEYS, f"{CHANGES} rotate"),
    "Configs": _of("configs", CHANGES),
    "Prompts": _of("prompts", f"{CHANGES} publish"),
    "Guardrails": _of("guardrails", CHANGES),
    "VirtualKeys": _of(VIRTUAL_KEYS, f"{CHANGES} duplicate copy") & WORKSPACE,
}
MANAGERS_WRITES = {
    **WRITES,
    "WsUsers": _of("workspace_users", CHANGES),
    "WsIntegrations": _of("workspace_integrations", CHANGES),
    "McpServers": _of("mcp_servers", CHANGES),
    "WsMcpIntegrations": _of("workspace_mcp_integrations", CHANGES),
}
# By role, what each flag is about.
FLAGS: dict[str, dict[str, frozenset[str]]] = {
    "member": {
        **{f"membersView{what}": scopes for what, scopes in VIEWS.items()},
        **{f"membersWrite{what}": scopes for what, scopes in WRITES.items()},
    },
    "manager": {
        **{f"managersView{what}": scopes for what, scopes in VIEWS.items()},
        **{f"managersWrite{what}": scopes for what, scopes in MANAGERS_WRITES.items()},
        "managersUpdateWs": frozenset({"workspaces.update"}),
    },
}
# What holds where a workspace chose nothing.
USUAL: dict[str, bool] = {
    **{name: scopes <= of_member(role) for role, flags in FLAGS.items() for name, scopes in flags.items()},
    # Of logs, which are not kept yet.
    **{f"organisationAdminsView{what}": True for what in ("Logs", "LogMetadata")},
}


def shown(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Give all flags, for the settings of a workspace."""
    return {**USUAL, **settings.get(FIELD, {})}


def apart(role: str, settings: Mapping[str, Any]) -> Apart | None:
    """Say what the flags of a workspace give to a role and take from it; nothing where they are the usual ones."""
    chosen: dict[str, bool] = settings.get(FIELD, {})
    about = FLAGS.get(role, {})
    given = [about[name] for name, may in chosen.items() if name in about and may]
    taken = [about[name] for name, may in chosen.items() if name in about and not may]
    return Apart(frozenset[str]().union(*given), frozenset[str]().union(*taken)) if chosen else None


def of_role(role: str, settings: Mapping[str, Any]) -> frozenset[str]:
    """Give what a role lets a person do in the workspace with these settings."""
    return of_member(role, apart(role, settings))


def chosen(given: Mapping[str, bool | None] | None, settings: Mapping[str, Any]) -> dict[str, bool]:
    """Write flags over those of before: what was left out stays, null makes one the usual one; only others are kept."""
    flags = dict[str, bool | None](settings.get(FIELD, {})) if given is not None else {}
    for name, may in (given or {}).items():
        if name not in USUAL:
            raise refuse(f"{FIELD}.{name}", f"is not known: use {', '.join(sorted(USUAL))}")
        flags[name] = may
    return {name: may for name, may in flags.items() if may is not None and may is not USUAL[name]}


def refuse_choosing(caller: Caller, workspace_id: str | None) -> None:
    """Refuse to have flags chosen by who is no admin of the workspace or the organisation: a manager would lift their own."""
    # A key of a workspace may have been made by somebody who holds less than whom it is for.
    is_workspaces = caller.by == "key" and caller.workspace_id is not None
    if is_workspaces or not (caller.leads or caller.roles.get(workspace_id or "") == "admin"):
        why = "are for admins of the workspace and of the organisation to choose"
        raise ForbiddenError(f"{FIELD} {why}", [Problem(FIELD, why)])


def gained(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Give what members or managers of a workspace may do with other settings that they might not before."""
    roles = [(of_role(role, before), of_role(role, after)) for role in FLAGS]
    return frozenset[str]().union(*(now - then for then, now in roles))
