"""Initial usage of a new budget. A budget that moves from another gateway continues with the amount that was spent
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from sqlalchemy import insert

from penstock.ids import new_id
from penstock.kit.limit_rules import LimitOwner, embedded_rules, to_units
from penstock.kit.limit_usage import ACTIVE, NO_ALERTS
from penstock.kit.limits import DEFAULT_USAGE_TYPE, list_limits
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
    # The ledger also counts the amount as a correction, because no request added it to the counters of the data plane.
    amount = to_units("cost", dollars)
    for rule in embedded_rules(LimitOwner(kind, row["id"], ""), {**row, "rate_limits": None}):
        entry = {"limit_id": rule["id"], "value_key": "", "period_start": rule["period"]["start"], "measure": "cost"}
        counts = {"requests": 0, "tokens": 0, "nanodollars": amount, "corrected_nanodollars": amount, "resets": 0}
        await session.connection.execute(
            insert(limit_usage).values(**entry, **counts, **NO_ALERTS, id=new_id(), status=ACTIVE, updated_at=now())
        )
