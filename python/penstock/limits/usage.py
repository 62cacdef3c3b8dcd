"""Ledger of the usage that counts towards limits. Routes read it and reset it; the data plane adds to it.

The ledger has no column for the tenant. The calling code must pass only ids of limits that it found within the
organisation of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec
from msgspec import Meta
from sqlalchemy import delete, func, select, update

from penstock.schemas import now
from penstock.store.limit_tables import limit_usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.tenant import Row

ACTIVE, EXHAUSTED = "active", "exhausted"
NANODOLLARS = 1_000_000_000
# Maximum number of values that a response with `include_usage` contains: those with the highest usage. The entities
# route lists all of them, by page.
MAX_MAPPED_VALUES = 1000
# Ledger column with the usage, by type of the limit.
USAGE_COLUMNS = {"cost": "nanodollars", "tokens": "tokens", "requests": "requests"}
CLEARED = {"requests": 0, "tokens": 0, "nanodollars": 0, "corrected_nanodollars": 0, "status": ACTIVE}
NO_ALERTS = {"is_threshold_alert_sent": False, "is_exhausted_alert_sent": False}

CurrentUsage = Annotated[
    int | float, Meta(description="usage in the current period: US dollars, tokens or requests, by type of the policy")
]
UsageStatus = Annotated[str, Meta(description="`active` or `exhausted`")]


def shown_amount(kind: str, amount: int) -> int | float:
    """Converts an amount in the ledger to US dollars, tokens or requests. `kind` is the type of the limit."""
    if kind != "cost":
        return amount
    return amount // NANODOLLARS if amount % NANODOLLARS == 0 else amount / NANODOLLARS


class ValueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one group of requests in the current period."""

    current_usage: CurrentUsage
    status: UsageStatus
    is_threshold_alerts_sent: Annotated[bool, Meta(description="true if the alert threshold was reached")]
    is_exhausted_alerts_sent: Annotated[bool, Meta(description="true if the limit was reached")]


class UsageEntity(msgspec.Struct, frozen=True, kw_only=True):
    """One group of requests that used a policy in the current period."""

    id: Annotated[str, Meta(description="id of the entity, by which its usage can be reset")]
    value_key: Annotated[str, Meta(description="values of the policy's groups that identify it")]
    current_usage: CurrentUsage
    status: UsageStatus


class PeriodUsageReader(NamedTuple):
    """Reads, resets and updates the ledger entries of one limit in one period."""

    connection: AsyncConnection
    limit_id: str
    # Type of the limit, which is what it counts: `cost`, `tokens` or `requests`.
    type: str
    period_start: int

    def _conditions(self) -> list[ColumnElement[bool]]:
        return [limit_usage.c.limit_id == self.limit_id, limit_usage.c.period_start == self.period_start]

    def _select(self, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
        used = limit_usage.c[USAGE_COLUMNS[self.type]]
        return select(limit_usage).where(*conditions).order_by(used.desc(), limit_usage.c.value_key)

    async def _fetch_rows(self, query: Select[*tuple[Any, ...]]) -> list[Row]:
        return [cast("Row", row) for row in (await self.connection.execute(query)).mappings()]

    def _to_entity(self, row: Row) -> UsageEntity:
        usage = self._shown_usage(row)
        return UsageEntity(id=row["id"], value_key=row["value_key"], current_usage=usage, status=row["status"])

    def _shown_usage(self, row: Row) -> int | float:
        return shown_amount(self.type, row[USAGE_COLUMNS[self.type]])

    async def read_map(self) -> dict[str, ValueUsage]:
        """Returns the usage by value, of the `MAX_MAPPED_VALUES` values with the highest usage."""
        rows = await self._fetch_rows(self._select(*self._conditions()).limit(MAX_MAPPED_VALUES))
        return {
            row["value_key"]: ValueUsage(
                current_usage=self._shown_usage(row),
                status=row["status"],
                is_threshold_alerts_sent=row["is_threshold_alert_sent"],
                is_exhausted_alerts_sent=row["is_exhausted_alert_sent"],
            )
            for row in rows
        }

    async def list_entities(
        self, status: str | None, search: str | None, size: int, page: int
    ) -> tuple[int, list[UsageEntity]]:
        """Returns the total number of entities, and the entities of one page; the highest usage comes first."""
        conditions = self._conditions()
        if status:
            conditions.append(limit_usage.c.status == status)
        if search:
            conditions.append(limit_usage.c.value_key.icontains(search, autoescape=True))
        total = await self.connection.scalar(select(func.count()).select_from(limit_usage).where(*conditions))
        rows = await self._fetch_rows(self._select(*conditions).limit(size).offset(size * page))
        return total or 0, [self._to_entity(row) for row in rows]

    async def reset(self, *, value_key: str | None = None, entity_id: str | None = None) -> UsageEntity | None:
        """Sets the usage of one value to 0. Returns its entity from before the reset, or `None` if it had no usage."""
        condition = limit_usage.c.value_key == value_key if entity_id is None else limit_usage.c.id == entity_id
        conditions = [*self._conditions(), condition]
        rows = await self._fetch_rows(self._select(*conditions))
        if not rows:
            return None
        await self.connection.execute(
            update(limit_usage)
            .where(*conditions)
            .values({**CLEARED, **NO_ALERTS, "resets": limit_usage.c.resets + 1, "updated_at": now()})
        )
        return self._to_entity(rows[0])

    async def reactivate(self) -> None:
        """Makes exhausted values active again and clears all alerts, because the limit was raised."""
        await self._update({"status": ACTIVE, **NO_ALERTS})

    async def clear_threshold_alerts(self) -> None:
        """Clears the alerts of the threshold, because it was raised or removed."""
        await self._update({"is_threshold_alert_sent": False})

    async def _update(self, values: Mapping[str, Any]) -> None:
        query = update(limit_usage).where(*self._conditions())
        await self.connection.execute(query.values({**values, "updated_at": now()}))


async def delete_usage(connection: AsyncConnection, limit_ids: Sequence[str]) -> None:
    """Deletes the usage of limits in all periods."""
    if limit_ids:
        await connection.execute(delete(limit_usage).where(limit_usage.c.limit_id.in_(limit_ids)))
