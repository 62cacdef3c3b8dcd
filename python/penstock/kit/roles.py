"""What roles may see and change in a workspace, as the flags by which clients know it; organisation and workspace may choose them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.authorization import WORKSPACE, Apart, of_member
from penstock.errors import ForbiddenError, Problem
from penstock.kit.rules import OVERRIDES
from penstock.schemas import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.authorization import Caller

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
# By what a flag is about, the section in which the organisation lets workspaces choose it, or does not.
SECTIONS = {
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
SUBJECT = re.compile("^(?:members|managers|organisationAdmins)(?:View|Write|Update)")
SECTION = {name: SECTIONS[SUBJECT.sub("", name)] for name in USUAL}
NOTHING: Mapping[str, Any] = {}


def in_force(settings: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, bool]:
    """Give the flags that are not the usual ones, for the settings of a workspace and those of its organisation.

    What a workspace chose goes first, where the organisation leaves the section to workspaces.
    """
    theirs: dict[str, bool] = above.get(FIELD, {})
    own: dict[str, bool] = settings.get(FIELD, {})
    flags = {**theirs, **{name: may for name, may in own.items() if not is_kept(above, name)}}
    return {name: may for name, may in flags.items() if may is not USUAL[name]}


def is_kept(above: Mapping[str, Any], name: str) -> bool:
    """Whether an organisation keeps a flag for itself."""
    return above.get(OVERRIDES, {}).get(SECTION[name]) is False


def shown(settings: Mapping[str, Any], above: Mapping[str, Any] = NOTHING) -> dict[str, bool]:
    """Give all flags, for the settings of a workspace and its organisation."""
    return {**USUAL, **in_force(settings, above)}


def apart(role: str, flags: Mapping[str, bool]) -> Apart | None:
    """Say what the flags in force give to a role and take from it; nothing where they are the usual ones."""
    about = FLAGS.get(role, {})
    given = [about[name] for name, may in flags.items() if name in about and may]
    taken = [about[name] for name, may in flags.items() if name in about and not may]
    return Apart(frozenset[str]().union(*given), frozenset[str]().union(*taken)) if flags else None


def of_role(role: str, flags: Mapping[str, bool]) -> frozenset[str]:
    """Give what a role lets a person do in the workspace where these flags are in force."""
    return of_member(role, apart(role, flags))


def chosen(
    given: Mapping[str, bool | None] | None, settings: Mapping[str, Any], above: Mapping[str, Any] = NOTHING
) -> dict[str, bool]:
    """Write flags over those of before: what was left out stays, null is what holds without them; what holds anyway is not kept."""
    flags = dict[str, bool](settings.get(FIELD, {}))
    holds, without = shown(settings, above), shown(NOTHING, above)
    for name, may in (dict.fromkeys(flags) if given is None else given).items():
        if name not in USUAL:
            raise refuse(f"{FIELD}.{name}", f"is not known: use {', '.join(sorted(USUAL))}")
        if is_kept(above, name):
            if may not in {None, holds[name]}:
                raise forbidden(f"{FIELD}.{name}", SECTION[name])
        elif may is None:
            flags.pop(name, None)
        elif name in flags or may is not without[name]:
            flags[name] = may
    return flags


def forbidden(path: str, section: str) -> ForbiddenError:
    """Make the error for what the organisation does not leave to workspaces."""
    why = f"is for the organisation to choose: it leaves {section!r} to no workspace ({OVERRIDES})"
    return ForbiddenError(f"{path} {why}", [Problem(path, why)])


def passed_down(sections: Iterable[str], settings: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Give a workspace the organisation's flags of some sections as its own, from where it may choose others."""
    theirs = shown(NOTHING, above)
    copied = {name: may for name, may in theirs.items() if SECTION[name] in sections}
    return {**settings, FIELD: {**settings.get(FIELD, {}), **copied}} if copied else dict(settings)


def refuse_choosing(caller: Caller, workspace_id: str | None) -> None:
    """Refuse to have flags chosen by who is no admin of the workspace or the organisation: a manager would lift their own."""
    # A key of a workspace may have been made by somebody who holds less than whom it is for.
    is_workspaces = caller.by == "key" and caller.workspace_id is not None
    if is_workspaces or not (caller.leads or caller.roles.get(workspace_id or "") == "admin"):
        why = "are for admins of the workspace and of the organisation to choose"
        raise ForbiddenError(f"{FIELD} {why}", [Problem(FIELD, why)])


def gained(before: Mapping[str, bool], after: Mapping[str, bool]) -> frozenset[str]:
    """Give what members or managers of a workspace may do with other flags in force that they might not before."""
    roles = [(of_role(role, before), of_role(role, after)) for role in FLAGS]
    return frozenset[str]().union(*(now - then for then, now in roles))
