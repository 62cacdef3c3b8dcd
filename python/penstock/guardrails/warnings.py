"""Warnings about saved guardrails that will not work as configured: their actions exclude each other, or their models
belong to providers that do not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from penstock.integrations.missing_providers import MissingProvider, find_missing_providers

if TYPE_CHECKING:
    from penstock.guardrails.saved_guardrails import Content
    from penstock.kit.tenant_session import TenantSession

NEVER_DENIES = "an asynchronous guardrail never denies, so `deny` has no effect; remove one of the two"


async def find_warnings(
    session: TenantSession, workspace_id: str | None, content: Content
) -> list[MissingProvider] | UnsetType:
    """Returns a warning for each part of a guardrail that will not work; UNSET if there is none. Does not look up the
    models of the organisation's guardrails, because each workspace that uses one has its own providers.
    """
    warnings: list[MissingProvider] = []
    if content.actions.get("async") and content.actions.get("deny"):
        warnings.append(MissingProvider("actions.async", NEVER_DENIES))
    models = [
        (index, check["parameters"].get("model"))
        for index, check in enumerate(content.checks.masked)
        if check.get("is_enabled", True)
    ]
    for index, model in models:
        if workspace_id is None or not isinstance(model, str) or not model.startswith("@"):
            continue
        provider = {"provider": model.partition("/")[0]}
        missing = await find_missing_providers(session, workspace_id, provider)
        if missing is not UNSET:
            warnings += [MissingProvider(f"checks[{index}].parameters.model", item.message) for item in missing]
    return warnings or UNSET
