"""What workspaces may do with an integration of the organisation: whether they may use it, and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock.kit.limits import ManyUsageLimits, RateLimits, listed_usage, rates

if TYPE_CHECKING:
    from penstock.store.tenant import Row

Enabled = Annotated[bool, Meta(description="whether it may be used")]
UsageGiven = Annotated[ManyUsageLimits | None, Meta(description="usage limits, at most one")]
RatesGiven = Annotated[RateLimits | None, Meta(description="rate limits, at most one")]
UsageShown = Annotated[list[dict[str, Any]] | None, Meta(description="usage limits")]
RatesShown = Annotated[list[dict[str, Any]] | None, Meta(description="rate limits")]


class GlobalAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all workspaces may do of which nothing else is said."""

    enabled: Enabled
    usage_limits: UsageGiven = None
    rate_limits: RatesGiven = None


class GlobalAccessShown(msgspec.Struct, frozen=True, kw_only=True):
    """What all workspaces may do of which nothing else is said."""

    enabled: Enabled
    usage_limits: UsageShown = None
    rate_limits: RatesShown = None
    create_default_provider: Annotated[bool, Meta(description="whether a new workspace is given a provider of it")] = (
        False
    )


def _limits(path: str, usage_limits: ManyUsageLimits | None, rate_limits: RateLimits | None) -> dict[str, Any]:
    """Check limits, and write them down."""
    return {
        "usage_limits": listed_usage(f"{path}usage_limits", usage_limits),
        "rate_limits": rates(f"{path}rate_limits", rate_limits, most=1) or None,
    }


def written(path: str, given: GlobalAccess, *, provides: bool) -> dict[str, Any]:
    """Write down what all workspaces may do, and whether a new one is given a provider."""
    found = _limits(f"{path}.", given.usage_limits, given.rate_limits)
    return {"enabled": given.enabled, **found, "create_default_provider": provides}


def shown(row: Row) -> GlobalAccessShown:
    """Show what all workspaces may do."""
    said = row["global_access"]
    return GlobalAccessShown(**{name: said.get(name) for name in GlobalAccessShown.__struct_fields__ if name in said})
