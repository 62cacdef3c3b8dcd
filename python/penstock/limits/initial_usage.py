"""Initial usage of a new budget. A budget that moves from another gateway continues with the amount that was spent
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from sqlalchemy import insert

from penstock.errors import Problem, shorten
from penstock.ids import new_id
from penstock.limit_fields import DEFAULT_USAGE_TYPE, list_limits
from penstock.limits.periods import current_period, to_limit
from penstock.limits.rules import LimitOwner, embedded_rules, to_units
from penstock.limits.usage import ACTIVE, NO_ALERTS
from penstock.schemas import field_error, now
from penstock.store.limit_tables import limit_usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kit.tenant_session import TenantSession

# Maximum initial usage. The usage ledger counts nano-dollars in 64-bit integers.
MAX_DOLLARS = 9_000_000_000
Dollars = Annotated[int, Meta(ge=0, le=MAX_DOLLARS)] | Annotated[float, Meta(ge=0, le=MAX_DOLLARS)]
InitialUsageField = Annotated[
    Dollars | None,
    Meta(
        description="US dollars, from 0 to 9 billion, that count as used in the first period of `usage_limits`, such as the spending at another gateway; only with limits of cost"
    ),
]
# The data plane replaces longer values of groups by a digest.
MAX_GROUPS, MAX_GROUP_BYTES = 1000, 256
GroupUsageField = Annotated[
    Annotated[dict[str, Dollars], Meta(max_length=MAX_GROUPS)] | None,
    Meta(
        description="US dollars, from 0 to 9 billion, that count as used in the first period, by the `value_key` of each group; only for the type cost",
    ),
]


def check_initial_usage(dollars: float | None, usage_limits: Any) -> None:  # noqa: ANN401 - one limit, several, or none
    """Raises `InvalidError` if there is initial usage, but no usage limit or one that does not count cost."""
    kinds = {limit.get("type") or DEFAULT_USAGE_TYPE for limit in list_limits(usage_limits)}
    if dollars and kinds != {"cost"}:
        raise field_error("initial_usage", "needs usage_limits of the type cost; add them, or leave initial_usage out")


async def store_initial_usage(session: TenantSession, kind: str, row: Mapping[str, Any], dollars: float | None) -> None:
    """Adds the initial usage of a new row with usage limits to the usage ledger. `kind` is the `LimitOwner.kind` of the
    row.
    """
    if not dollars:
        return
    for rule in embedded_rules(LimitOwner(kind, row["id"], ""), {**row, "rate_limits": None}):
        await _insert_usage(session, rule["id"], rule["period"]["start"], {"": dollars})


def find_group_problems(amounts: Mapping[str, float] | None, usage_type: str) -> list[Problem]:
    """Returns the problems of the initial usage of a policy: its type, and names of groups that no request has."""
    if not amounts:
        return []
    if usage_type != "cost":
        return [Problem("initial_usage", f"is not allowed for {usage_type}; only policies of the type cost have it")]
    return [
        Problem("initial_usage", f"{shorten(name)!r} is too long; at most {MAX_GROUP_BYTES} bytes")
        for name in amounts
        if len(name.encode()) > MAX_GROUP_BYTES
    ]


async def store_group_usage(session: TenantSession, policy: Mapping[str, Any], amounts: Mapping[str, float]) -> None:
    """Adds the initial usage of a new usage limits policy to the usage ledger, by the value of the group."""
    await _insert_usage(session, policy["id"], current_period(to_limit(policy), policy).start, amounts)


async def _insert_usage(session: TenantSession, limit_id: str, start: int, amounts: Mapping[str, float]) -> None:
    rows: list[dict[str, Any]] = []
    for value_key, dollars in amounts.items():
        # The ledger also counts the amount as a correction, because no request added it to the counters of the data
        # plane.
        amount = to_units("cost", dollars)
        if amount:
            entry = {"limit_id": limit_id, "value_key": value_key, "period_start": start, "measure": "cost"}
            counts = {"requests": 0, "tokens": 0, "nanodollars": amount, "corrected_nanodollars": amount, "resets": 0}
            rows.append({**entry, **counts, **NO_ALERTS, "id": new_id(), "status": ACTIVE, "updated_at": now()})
    if rows:
        await session.connection.execute(insert(limit_usage), rows)
