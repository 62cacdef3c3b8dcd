"""Alerts of usage limits policies: marks groups that reach the threshold or the limit, once in each period."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from sqlalchemy import or_, select, update

from penstock.authorization import Caller
from penstock.kit.audit import RequestInfo
from penstock.kit.limit_rules import to_units
from penstock.kit.limit_usage import ACTIVE, EXHAUSTED, USAGE_COLUMNS
from penstock.schemas import now
from penstock.store.limit_tables import limit_usage, usage_limits_policies

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kit.tenant_session import Services
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

# Groups that are marked in one transaction.
MAX_MARKED = 1000


async def mark_used_groups(services: Services, limit_ids: Collection[str]) -> int:
    """Marks the groups of these policies that reached the threshold or the limit. Writes an audit log entry for each, and
    returns how many there were. Other ids are ignored.
    """
    async with services.database.read_connection() as connection:
        query = select(usage_limits_policies).where(
            usage_limits_policies.c.id.in_(limit_ids), usage_limits_policies.c.status == ACTIVE
        )
        policies = [cast("Row", dict(row)) for row in (await connection.execute(query)).mappings()]
    marked = 0
    for policy in policies:
        marked += await _mark_groups(services, policy)
    return marked


async def _mark_groups(services: Services, policy: Row) -> int:
    used = limit_usage.c[USAGE_COLUMNS[policy["type"]]]
    limit, alert = to_units(policy["type"], policy["credit_limit"]), policy["alert_threshold"]
    threshold = None if alert is None else to_units(policy["type"], alert)
    conditions = [(used >= limit) & (limit_usage.c.status == ACTIVE)]
    if threshold is not None:
        conditions.append((used >= threshold) & ~limit_usage.c.is_threshold_alert_sent)
    query = select(limit_usage).where(limit_usage.c.limit_id == policy["id"], or_(*conditions)).limit(MAX_MARKED)
    async with services.database.read_connection() as connection:
        if not (await connection.execute(query.limit(1))).all():
            return 0
    caller = Caller(id=policy["id"], type="schedule", organisation_id=policy["organisation_id"])
    request_info = RequestInfo("POST", f"/v1/policies/usage-limits/{policy['id']}", "", "", "")
    async with services.write_session_as(caller, request_info) as session:
        rows = [dict(row) for row in (await session.connection.execute(query)).mappings()]
        for row in rows:
            amount = row[USAGE_COLUMNS[policy["type"]]]
            is_exhausted = amount >= limit
            changes = {
                "status": EXHAUSTED if is_exhausted else row["status"],
                "is_exhausted_alert_sent": is_exhausted,
                "is_threshold_alert_sent": threshold is not None and amount >= threshold,
                "updated_at": now(),
            }
            await session.connection.execute(update(limit_usage).where(limit_usage.c.id == row["id"]).values(changes))
            event = {"id": policy["id"], "workspace_id": policy["workspace_id"], "value_key": row["value_key"]}
            usage = {"current_usage": amount, "status": changes["status"]}
            action = "usage_limits_policies.exhaust" if is_exhausted else "usage_limits_policies.alert"
            await session.record_change(action, after={**event, **usage})
            log.warning(
                "the policy %s %s for %r",
                policy["id"],
                "is exhausted" if is_exhausted else "has reached its alert threshold",
                row["value_key"],
            )
    return len(rows)
