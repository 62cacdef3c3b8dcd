"""Guardrails in the form that the engine reads, and the selection of default guardrails. Does not import the web
framework, so that the start of the gateway does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JsonObject = dict[str, Any]
ACTIVE, ARCHIVED = "active", "archived"
# Keys of `defaults` of API keys, and in the settings of workspaces and organisations: default guardrails of requests,
# and of responses.
DEFAULT_FIELDS = ("input_guardrails", "output_guardrails")
# Settings field of an organisation: for each of `DEFAULT_FIELDS`, the workspaces that its default guardrails do not
# apply to.
EXCLUSIONS = "guardrail_exclusions"


def to_engine_document(checks: Sequence[JsonObject], actions: JsonObject) -> JsonObject:
    """Returns a guardrail in the form that the engine reads. `checks` must contain their credentials in clear text."""
    return {"checks": [_to_engine_check(check) for check in checks], "actions": actions}


def _to_engine_check(check: JsonObject) -> JsonObject:
    names = ("id", "parameters", "is_enabled", *(["soft_deny_200"] if check.get("soft_deny_200") else []))
    return {name: check[name] for name in names}


def effective_defaults(workspace: Mapping[str, Any], above: Mapping[str, Any], name: str) -> list[str]:
    """Returns the ids of a workspace's default guardrails of the kind `name`, one of `DEFAULT_FIELDS`. The
    organisation's come first, unless it excludes the workspace; then the workspace's own. `above` has the settings of
    the organisation.
    """
    is_excluded = workspace["id"] in above.get(EXCLUSIONS, {}).get(name, ())
    inherited: list[str] = [] if is_excluded else above.get("defaults", {}).get(name) or []
    workspace_guardrails: list[str] = workspace["defaults"].get(name) or []
    return list(dict.fromkeys([*inherited, *workspace_guardrails]))
