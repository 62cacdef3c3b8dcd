"""Periods in which usage counts towards a usage limit. The current period is computed from the stored limit, so no job
has to start the next one.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.limit_fields import USAGE_FIELDS
from penstock.schemas import format_timestamp, last_reset, next_reset, to_milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping


class UsagePeriod(NamedTuple):
    """Start and end of a period in Unix milliseconds. The end is `None` if the usage is never reset."""

    start: int
    end: int | None


def current_period(limit: Mapping[str, Any], row: Mapping[str, Any]) -> UsagePeriod:
    """Returns the current period of a usage limit. It begins with the last reset, or else with the creation of `row`,
    which contains the limit.
    """
    due = next_reset(limit)
    end = to_milliseconds(datetime.fromisoformat(due)) if due else None
    reset = last_reset(limit, row.get("last_reset_at"))
    return UsagePeriod(row["created_at"] if reset is None else reset, end)


def to_limit(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the usage limit of a policy in the form in which keys and workspaces store theirs."""
    due = format_timestamp(policy["next_usage_reset_at"])
    return {**{name: policy[name] for name in USAGE_FIELDS}, "next_usage_reset_at": due}
