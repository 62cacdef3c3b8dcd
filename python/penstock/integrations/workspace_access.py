"""Access of workspaces to an integration of the organisation: permission to use it, and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock.limit_fields import RateLimitListField, UsageLimitListField, WorkspaceLimitFields, check_workspace_limits
from penstock.schemas import with_next_reset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

Enabled = Annotated[bool, Meta(description="whether it may be used")]


class GlobalAccess(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Access of all workspaces without their own setting, in requests."""

    enabled: Enabled
    create_default_provider: Annotated[
        bool | None,
        Meta(
            description="create a provider for the integration in each workspace, also in new ones; default: the request's own `create_default_provider`"
        ),
    ] = None


class GlobalAccessResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Access of all workspaces without their own setting, in responses."""

    enabled: Enabled
    usage_limits: UsageLimitListField = None
    rate_limits: RateLimitListField = None
    create_default_provider: Annotated[
        bool, Meta(description="whether each new workspace gets a provider for this integration")
    ] = False


def to_stored_access(fields: GlobalAccess, before: Mapping[str, Any], *, provides: bool) -> dict[str, Any]:
    """Returns the stored form of the access for all workspaces without their own setting. `provides` is true if each
    new workspace gets a provider.
    """
    limited = check_workspace_limits(fields, "global_workspace_access.", rates_at_most=1, before=before, any_alert=True)
    resets = {"last_reset_at": before["last_reset_at"]} if before.get("last_reset_at") else {}
    access = {"usage_limits": None, "rate_limits": None, **resets, **limited}
    return {"enabled": fields.enabled, **access, "create_default_provider": provides}


def to_access_response(row: Row) -> GlobalAccessResponse:
    """Converts the access settings of a row to the API response."""
    fields: dict[str, Any] = {
        **row["global_access"],
        "usage_limits": with_next_reset(row["global_access"].get("usage_limits")),
    }
    return GlobalAccessResponse(
        **{name: fields[name] for name in GlobalAccessResponse.__struct_fields__ if name in fields}
    )
