"""Guardrails as the engine reads them, and which apply by default. The start of the gateway imports this without the
framework of the routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JsonObject = dict[str, Any]
ACTIVE, ARCHIVED = "active", "archived"
# Keys of `defaults`, in settings of workspaces and the organisation, that list guardrails of all requests or responses.
DEFAULT_FIELDS = ("input_guardrails", "output_guardrails")
# Settings field of the organisation with the workspaces that each kind of its defaults does not apply to.
EXCLUSIONS = "guardrail_exclusions"


def to_engine_document(checks: Sequence[JsonObject], actions: JsonObject) -> JsonObject:
    """Returns checks and actions as the engine reads them. `checks` have their credentials."""
    return {"checks": [_to_engine_check(check) for check in checks], "actions": actions}


def _to_engine_check(check: JsonObject) -> JsonObject:
    names = ("id", "parameters", "is_enabled", *(["soft_deny_200"] if check.get("soft_deny_200") else []))
    return {name: check[name] for name in names}


def effective_defaults(workspace: Mapping[str, Any], above: Mapping[str, Any], name: str) -> list[str]:
    """Returns the ids of the guardrails that apply to all requests of a workspace: those of the organisation, unless
    the workspace is excluded from them, and then its own. `above` has the settings of the organisation.
    """
    is_excluded = workspace["id"] in above.get(EXCLUSIONS, {}).get(name, ())
    inherited: list[str] = [] if is_excluded else above.get("defaults", {}).get(name) or []
    own: list[str] = workspace["defaults"].get(name) or []
    return list(dict.fromkeys([*inherited, *own]))
