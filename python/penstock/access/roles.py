"""Permission flags of workspace roles. Each flag grants or revokes scopes of members or managers; organisations and
workspaces can change them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.access.tenant_rules import OVERRIDES
from penstock.authorization import WORKSPACE_SCOPES, RoleOverrides, member_scopes, role_rank
from penstock.errors import ForbiddenError, Problem
from penstock.schemas import field_error
from penstock.similar_names import describe_unknown

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
    # No scope decides if a caller sees the logs of other users; `penstock.log_api.visibility` reads this flag.
    "AllData": frozenset[str](),
    "ApiKeys": _scopes(API_KEYS, "read list"),
    "Configs": _scopes("configs", "read list"),
    "Prompts": _scopes("prompts", "read list render"),
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
# Scopes that a flag controls, by role and flag.
FLAG_SCOPES: dict[str, dict[str, frozenset[str]]] = {
    "member": {
        **{f"membersView{subject}": scopes for subject, scopes in VIEW_SCOPES.items()},
        **{f"membersWrite{subject}": scopes for subject, scopes in WRITE_SCOPES.items()},
    },
    "manager": {
        **{f"managersView{subject}": scopes for subject, scopes in VIEW_SCOPES.items()},
        **{f"managersWrite{subject}": scopes for subject, scopes in MANAGER_WRITE_SCOPES.items()},
        "managersUpdateWs": frozenset({"workspaces.update"}),
    },
}
# Default values of all flags.
DEFAULT_FLAGS: dict[str, bool] = {
    **{name: scopes <= member_scopes(role) for role, flags in FLAG_SCOPES.items() for name, scopes in flags.items()},
    # No scope decides what admins of the organisation see in a workspace; `penstock.log_api.visibility` reads these flags.
    **{f"organisationAdminsView{subject}": True for subject in ("Logs", "LogMetadata")},
}
# Settings section by subject of a flag. The organisation decides per section if workspaces may change the flags.
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
# Settings field of the organisation with the flags that decide whose logs a role sees.
VISIBILITY_FIELD = "data_visibility"
NO_SETTINGS: Mapping[str, Any] = {}


def non_default_flags(settings: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the flags that differ from their defaults, from the settings of a workspace and those of its
    organisation, `above`.

    The workspace's value wins if the organisation lets workspaces change that section.
    """
    organisation_flags: dict[str, bool] = {**above.get(VISIBILITY_FIELD, {}), **above.get(SETTINGS_FIELD, {})}
    workspace_flags: dict[str, bool] = settings.get(SETTINGS_FIELD, {})
    flags = {
        **organisation_flags,
        **{
            name: is_allowed
            for name, is_allowed in workspace_flags.items()
            if not is_organisation_controlled(above, name)
        },
    }
    return {name: is_allowed for name, is_allowed in flags.items() if is_allowed is not DEFAULT_FLAGS[name]}


def is_organisation_controlled(above: Mapping[str, Any], name: str) -> bool:
    """Returns true if the organisation does not let workspaces change a flag."""
    return above.get(OVERRIDES, {}).get(SECTION_BY_FLAG[name]) is False


def effective_flags(settings: Mapping[str, Any], above: Mapping[str, Any] = NO_SETTINGS) -> dict[str, bool]:
    """Returns the values of all flags, from the settings of a workspace and its organisation."""
    return {**DEFAULT_FLAGS, **non_default_flags(settings, above)}


def role_overrides(role: str, flags: Mapping[str, bool]) -> RoleOverrides | None:
    """Returns the scopes that the flags grant to a role or revoke from it; `None` if all flags have their defaults."""
    about = FLAG_SCOPES.get(role, {})
    allowed = [about[name] for name, is_allowed in flags.items() if name in about and is_allowed]
    used = [about[name] for name, is_allowed in flags.items() if name in about and not is_allowed]
    return RoleOverrides(frozenset[str]().union(*allowed), frozenset[str]().union(*used)) if flags else None


def role_scopes(role: str, flags: Mapping[str, bool]) -> frozenset[str]:
    """Returns the scopes of a role in a workspace with these flags."""
    return member_scopes(role, role_overrides(role, flags))


def merge_flags(
    configured: Mapping[str, bool | None] | None, settings: Mapping[str, Any], above: Mapping[str, Any] = NO_SETTINGS
) -> dict[str, bool]:
    """Merges the sent flags into the stored ones. Omitted flags stay, null resets a flag, and values that equal the
    inherited one are not stored.
    """
    flags = dict[str, bool](settings.get(SETTINGS_FIELD, {}))
    holds, without = effective_flags(settings, above), effective_flags(NO_SETTINGS, above)
    for name, is_allowed in (dict.fromkeys(flags) if configured is None else configured).items():
        if name not in DEFAULT_FLAGS:
            raise field_error(f"{SETTINGS_FIELD}.{name}", describe_unknown(name, sorted(DEFAULT_FLAGS)))
        if is_organisation_controlled(above, name):
            if is_allowed not in {None, holds[name]}:
                raise organisation_controlled_error(f"{SETTINGS_FIELD}.{name}", SECTION_BY_FLAG[name])
        elif is_allowed is None:
            flags.pop(name, None)
        elif name in flags or is_allowed is not without[name]:
            flags[name] = is_allowed
    return flags


def organisation_controlled_error(path: str, section: str) -> ForbiddenError:
    """Returns the error for a setting that workspaces may not change."""
    reason = f"is for the organisation to choose: it does not let workspaces change {section!r} ({OVERRIDES})"
    return ForbiddenError(f"{path} {reason}", [Problem(path, reason)])


def copy_flags_to_workspace(
    sections: Iterable[str], settings: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    """Copies the organisation's flags of some sections into a workspace's settings, which the workspace can change from
    then on.
    """
    organisation_flags = effective_flags(NO_SETTINGS, above)
    copied = {name: is_allowed for name, is_allowed in organisation_flags.items() if SECTION_BY_FLAG[name] in sections}
    return {**settings, SETTINGS_FIELD: {**settings.get(SETTINGS_FIELD, {}), **copied}} if copied else dict(settings)


def check_can_set_flags(caller: Caller, workspace_id: str | None) -> None:
    """Rejects callers who are not admins of the workspace or the organisation. A manager could otherwise lift their own
    restrictions.
    """
    if caller.rank(workspace_id) < role_rank("admin"):
        reason = "are for admins of the workspace and of the organisation to choose"
        raise ForbiddenError(f"{SETTINGS_FIELD} {reason}", [Problem(SETTINGS_FIELD, reason)])


def gained_scopes(before: Mapping[str, bool], after: Mapping[str, bool]) -> frozenset[str]:
    """Returns the scopes that members or managers of a workspace gain when its flags change from `before` to `after`."""
    roles = [(role_scopes(role, before), role_scopes(role, after)) for role in FLAG_SCOPES]
    return frozenset[str]().union(*(now - allowed_before for allowed_before, now in roles))
