"""Alerts of budgets: marks groups that reach the threshold or the limit, once in each period. Each alert is an entry in
the audit log, a line in the log, a metric, and a message to the webhook of the settings.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sqlalchemy import or_, select, update

from penstock.access.audit import RequestInfo
from penstock.authorization import Caller
from penstock.integrations.limits import list_accesses
from penstock.limit_fields import DEFAULT_USAGE_TYPE, list_limits
from penstock.limits.periods import current_period, to_limit
from penstock.limits.rules import MAX_LIMIT, integration_counter_id, to_units
from penstock.limits.token_limits import find_token_budgets
from penstock.limits.usage import ACTIVE, EXHAUSTED, USAGE_COLUMNS, shown_amount
from penstock.schemas import format_timestamp, now
from penstock.store.limit_tables import limit_usage, usage_limits_policies
from penstock.store.tables import api_keys, providers, workspaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping

    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Services
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

# Usage of past periods that changed within this time still sends alerts, because requests end after their period.
LATE_USAGE_MS = 60_000
# Maximum number of groups that are marked in one transaction.
MAX_MARKED = 1000
# Table and API path of each kind of object that has its own limits. The key is the first part of a limit's id.
OWNER_TABLES: Mapping[str, tuple[Table, str]] = {
    "api_key": (api_keys, "/v1/api-keys"),
    "workspace": (workspaces, "/v1/workspaces"),
    "provider": (providers, "/v1/providers"),
}


class AlertedLimit(NamedTuple):
    """A budget with its threshold, in requests, tokens or nano-dollars. `kind` is the kind of its owner, such as
    `api_key`.
    """

    id: str
    kind: str
    owner_id: str
    name: str
    organisation_id: str
    workspace_id: str | None
    type: str
    limit: int
    threshold: int | None
    table: str
    path: str
    # Start of the current period, in Unix milliseconds.
    period_start: int


class Alert(NamedTuple):
    """A group that reached the limit or the threshold of a budget."""

    limit: AlertedLimit
    value_key: str
    used: int
    is_exhausted: bool
    period_start: int

    def to_json(self) -> dict[str, Any]:
        """Returns the alert as the webhook receives it."""
        limit = self.limit
        maximum = None if limit.limit == MAX_LIMIT else shown_amount(limit.type, limit.limit)
        return {
            "event": "limit.exhausted" if self.is_exhausted else "limit.threshold",
            "limit_id": limit.id,
            "kind": limit.kind,
            "owner_id": limit.owner_id,
            "owner_name": limit.name,
            "organisation_id": limit.organisation_id,
            "workspace_id": limit.workspace_id,
            "value_key": self.value_key,
            "type": limit.type,
            "current_usage": shown_amount(limit.type, self.used),
            "credit_limit": maximum,
            "alert_threshold": None if limit.threshold is None else shown_amount(limit.type, limit.threshold),
            "period_start": format_timestamp(self.period_start),
            "created_at": format_timestamp(now()),
        }


async def mark_used_groups(services: Services, limit_ids: Collection[str]) -> AsyncIterator[list[Alert]]:
    """Marks the groups of these budgets that reached the threshold or the limit in the current period. Yields the
    alerts of each transaction, because they are not found again if a later one fails. Ignores ids that are no budgets.
    The id of an owner, such as `api_key:…`, stands for all its budgets.
    """
    for limit in await _load_limits(services, limit_ids):
        has_more = True
        while has_more:
            alerts, has_more = await _mark_groups(services, limit)
            yield alerts


async def _load_limits(services: Services, limit_ids: Collection[str]) -> list[AlertedLimit]:
    alerted_limits: list[AlertedLimit] = []
    async with services.database.read_connection() as connection:
        query = select(usage_limits_policies).where(
            usage_limits_policies.c.id.in_([limit_id for limit_id in limit_ids if ":" not in limit_id]),
            usage_limits_policies.c.status == ACTIVE,
        )
        for row in [cast("Row", row) for row in (await connection.execute(query)).mappings()]:
            path = f"/v1/policies/usage-limits/{row['id']}"
            owner = ("policy", row["id"], row["name"] or row["id"], row["organisation_id"], row["workspace_id"])
            amounts = _to_amounts(row["type"], row)
            place = ("usage_limits_policies", path, current_period(to_limit(row), row).start)
            alerted_limits.append(AlertedLimit(row["id"], *owner, row["type"], *amounts, *place))
        for kind, (table, path) in OWNER_TABLES.items():
            ids = {limit_id.split(":")[1]: limit_id for limit_id in limit_ids if limit_id.startswith(f"{kind}:")}
            if not ids:
                continue
            rows = (await connection.execute(select(table).where(table.c.id.in_(list(ids))))).mappings()
            alerted_limits += [limit for row in rows for limit in _embedded_limits(kind, cast("Row", row), table, path)]
        integration_limits = {limit_id for limit_id in limit_ids if limit_id.startswith("integration:")}
        if integration_limits:
            alerted_limits += [
                limit
                for limit in await _load_access_limits(connection)
                if not integration_limits.isdisjoint([limit.id, f"integration:{limit.owner_id}"])
            ]
        tokens = [limit_id for limit_id in limit_ids if limit_id.startswith("token:")]
        if tokens:
            alerted_limits += [_token_limit(row) for row in await find_token_budgets(connection, tokens)]
    return alerted_limits


def _token_limit(row: Row) -> AlertedLimit:
    owner = ("token", row["id"], row["user_name"], row["organisation_id"], row["workspace_id"])
    place = ("token_limits", f"/v1/limits/tokens/{row['id']}", row["period_start"])
    return AlertedLimit(row["limit_id"], *owner, row["type"], row["amount"], row["alert"], *place)


async def _load_access_limits(connection: AsyncConnection) -> list[AlertedLimit]:
    """Returns the budgets that integrations set for workspaces. A limit's id does not show which budget it is, so all
    of them are read.
    """
    alerted: list[AlertedLimit] = []
    for access in await list_accesses(connection):
        for limit in list_limits(access.limits["usage_limits"]):
            type_ = limit.get("type") or DEFAULT_USAGE_TYPE
            name = f"integration:{integration_counter_id(access.integration_id, access.workspace_id)}:usage:{type_}:"
            owner = ("integration", access.integration_id, access.slug, access.organisation_id, access.workspace_id)
            path = f"/v1/integrations/{access.slug}/workspaces"
            place = ("integrations", path, current_period(limit, access.limits).start)
            alerted.append(AlertedLimit(name, *owner, type_, *_to_amounts(type_, limit), *place))
    return alerted


def _embedded_limits(kind: str, row: Row, table: Table, path: str) -> Iterator[AlertedLimit]:
    for limit in list_limits(row["usage_limits"]):
        type_ = limit.get("type") or DEFAULT_USAGE_TYPE
        place = row["id"] if table is workspaces else row["workspace_id"]
        owner = (kind, row["id"], row.get("slug") or row["name"], row["organisation_id"], place)
        name = f"{kind}:{row['id']}:usage:{type_}:"
        shown_place = (table.name, f"{path}/{row['id']}", current_period(limit, row).start)
        yield AlertedLimit(name, *owner, type_, *_to_amounts(type_, limit), *shown_place)


def _to_amounts(type_: str, limit: Mapping[str, Any]) -> tuple[int, int | None]:
    maximum, alert = limit.get("credit_limit"), limit.get("alert_threshold")
    return MAX_LIMIT if maximum is None else to_units(type_, maximum), None if alert is None else to_units(type_, alert)


async def _mark_groups(services: Services, limit: AlertedLimit) -> tuple[list[Alert], bool]:
    """Marks at most `MAX_MARKED` groups of a budget. Returns their alerts, and whether there may be more groups."""
    used = limit_usage.c[USAGE_COLUMNS[limit.type]]
    conditions = [
        (used >= limit.limit) & (limit_usage.c.status == ACTIVE),
        # The limit was raised, so the group may use it again.
        (used < limit.limit) & (limit_usage.c.status == EXHAUSTED),
    ]
    if limit.threshold is not None:
        conditions.append((used >= limit.threshold) & ~limit_usage.c.is_threshold_alert_sent)
    # A limit that was changed does not apply to past periods.
    is_current = (limit_usage.c.period_start >= limit.period_start) | (
        limit_usage.c.updated_at >= now() - LATE_USAGE_MS
    )
    query = (
        select(limit_usage).where(limit_usage.c.limit_id == limit.id, is_current, or_(*conditions)).limit(MAX_MARKED)
    )
    async with services.database.read_connection() as connection:
        if not (await connection.execute(query.limit(1))).all():
            return [], False
    caller = Caller(id=limit.owner_id, type="schedule", organisation_id=limit.organisation_id)
    alerts: list[Alert] = []
    async with services.write_session_as(caller, RequestInfo("POST", limit.path, "", "", "")) as session:
        rows = [dict(row) for row in (await session.connection.execute(query)).mappings()]
        for row in rows:
            amount = row[USAGE_COLUMNS[limit.type]]
            is_exhausted = amount >= limit.limit
            changes = {
                "status": EXHAUSTED if is_exhausted else ACTIVE,
                "is_exhausted_alert_sent": is_exhausted,
                "is_threshold_alert_sent": limit.threshold is not None and amount >= limit.threshold,
                "updated_at": now(),
            }
            await session.connection.execute(update(limit_usage).where(limit_usage.c.id == row["id"]).values(changes))
            is_threshold = changes["is_threshold_alert_sent"] and not row["is_threshold_alert_sent"]
            if not (is_exhausted and not row["is_exhausted_alert_sent"]) and not is_threshold:
                continue
            event = {"id": limit.owner_id, "workspace_id": limit.workspace_id, "value_key": row["value_key"]}
            usage = {"current_usage": amount, "status": changes["status"]}
            await session.record_change(
                f"{limit.table}.{'exhaust' if is_exhausted else 'alert'}", after={**event, **usage}
            )
            alerts.append(Alert(limit, row["value_key"], amount, is_exhausted, row["period_start"]))
    for alert in alerts:
        subject = "is exhausted" if alert.is_exhausted else "has reached its alert threshold"
        log.warning("the budget of the %s %s %s for %r", limit.kind, limit.name, subject, alert.value_key)
    return alerts, len(rows) == MAX_MARKED
