"""Limits that tokens carry in their claims. The data plane reports those that it has seen; the store keeps them, so that
they can be listed and reset, and send alerts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from penstock.errors import ConflictError, NotFoundError
from penstock.ids import new_id
from penstock.limits.usage import PeriodUsageReader
from penstock.schemas import now
from penstock.store.limit_tables import token_limits
from penstock.store.tables import workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import TenantSession
    from penstock.metrics import SeenToken, TokenLimit
    from penstock.store.tenant import Row

USAGE, RATE = "usage", "rate"
# Maximum number of limits that a list shows: those of the tokens that were seen last.
MAX_LISTED = 10_000
# Maximum number of limits in one statement.
MAX_BATCH = 500
# A limit that did not change is written again after `REFRESH_MS`, so that its row shows when it was seen. Rows are
# deleted when no token had the limit for `FORGET_MS`.
REFRESH_MS, FORGET_MS = 3600 * 1000, 90 * 24 * 3600 * 1000
# Maximum number of limits of which this process remembers what it has written.
MAX_KNOWN = 100_000
_CHANGING = ("type", "amount", "alert", "unit", "period_start", "period_end", "seen_at")


class TokenLimitWriter:
    """Writes the limits of tokens to the store, if they are new, have changed, or were written a while ago."""

    def __init__(self) -> None:
        """Starts without knowledge of the store."""
        self._known: dict[tuple[str, str], tuple[TokenLimit, int]] = {}

    async def write(self, connection: AsyncConnection, tokens: Iterable[SeenToken]) -> set[str]:
        """Writes limits. Returns the ids of the budgets that are new or have changed."""
        seen_at, changed = now(), set[str]()
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for token in tokens:
            for limit in token.limits:
                key = limit.limit_id, token.workspace_id
                known, written_at = self._known.get(key, (None, 0))
                if known == limit and seen_at < written_at + REFRESH_MS:
                    continue
                if known != limit and limit.unit is None:
                    changed.add(limit.limit_id)
                rows[key] = _to_row(token, limit, seen_at)
                self._known[key] = limit, seen_at
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        existing = await _existing_workspaces(connection, {row["workspace_id"] for row in rows.values()})
        written = [
            row for _, row in sorted(rows.items()) if existing.get(row["workspace_id"]) == row["organisation_id"]
        ]
        for at in range(0, len(written), MAX_BATCH):
            await _upsert(connection, written[at : at + MAX_BATCH])
        return changed

    def forget(self) -> None:
        """Forgets what was written, because it may not be in the store."""
        self._known.clear()


async def delete_unseen(connection: AsyncConnection) -> None:
    """Deletes limits that no token had for a long time."""
    await connection.execute(delete(token_limits).where(token_limits.c.seen_at < now() - FORGET_MS))


async def list_token_limits(session: TenantSession) -> list[Row]:
    """Returns the limits in the workspaces of a session, each once. Budgets whose period has ended are omitted: no
    request has used the next one yet.
    """
    query = select(token_limits).order_by(token_limits.c.seen_at.desc(), token_limits.c.id).limit(MAX_LISTED)
    by_limit: dict[str, Row] = {}
    for row in await session.fetch_rows(query, token_limits):
        if row["period_end"] is None or row["period_end"] > now():
            by_limit.setdefault(row["limit_id"], row)
    return list(by_limit.values())


def to_rule(row: Row) -> dict[str, Any]:
    """Returns the rule of a limit, in the form that `limits.rules` gives to other limits."""
    owner = {"kind": "token", "id": row["id"], "slug": row["user_name"]}
    rule = {"id": row["limit_id"], "owner": owner, "kind": row["kind"], "type": row["type"], "limit": row["amount"]}
    if row["kind"] == RATE:
        return {**rule, "window": {"unit": row["unit"], "sliding": False}, "dry_run": False}
    period = {"start": row["period_start"], "end": row["period_end"]}
    return {**rule, "period": period, "alert": row["alert"], "enforcement": "soft", "dry_run": False}


async def reset_token_usage(session: TenantSession, key: str) -> Row:
    """Sets the usage of a budget of a token to 0. Returns the row of the limit; `key` is its id."""
    row = await session.find(token_limits, key)
    if row is None or row["kind"] != USAGE:
        message = f"no token has a budget with the id {key!r}; hint: it is the owner_id in GET /v1/limits/usage"
        raise NotFoundError(message)
    same_limit = [token_limits.c.limit_id == row["limit_id"]]
    if await session.count(token_limits, same_limit) < await session.organisation().count(token_limits, same_limit):
        message = "the user has this budget in other workspaces, too; use a key of the organisation"
        raise ConflictError(message)
    usage = PeriodUsageReader(session.connection, row["limit_id"], row["type"], row["period_start"])
    entity = await usage.reset(value_key="")
    if entity is not None:
        fields = {"id": row["id"], "workspace_id": row["workspace_id"], "user_name": row["user_name"]}
        before = {**fields, "current_usage": entity.current_usage, "usage_status": entity.status}
        after = {**fields, "current_usage": 0, "usage_status": "active"}
        await session.record_change("token_limits.reset", before=before, after=after)
    return row


async def find_token_budgets(connection: AsyncConnection, limit_ids: Iterable[str]) -> Iterator[Row]:
    """Returns the budgets of tokens with these ids, each once: as the token had it that was seen last."""
    query = select(token_limits).where(token_limits.c.limit_id.in_(list(limit_ids)), token_limits.c.kind == USAGE)
    by_limit = {
        row["limit_id"]: row for row in (await connection.execute(query.order_by(token_limits.c.seen_at))).mappings()
    }
    return (dict(row) for row in by_limit.values())


def _to_row(token: SeenToken, limit: TokenLimit, seen_at: int) -> dict[str, Any]:
    return {
        "id": new_id(),
        "organisation_id": token.organisation_id,
        "workspace_id": token.workspace_id,
        "limit_id": limit.limit_id,
        # PostgreSQL cannot store U+0000.
        "user_name": token.user.replace("\0", "\N{REPLACEMENT CHARACTER}")[:255],
        "kind": USAGE if limit.unit is None else RATE,
        "type": limit.type,
        "amount": limit.limit,
        "alert": limit.alert,
        "unit": limit.unit,
        "period_start": limit.period_start,
        "period_end": limit.period_end,
        "seen_at": seen_at,
    }


async def _existing_workspaces(connection: AsyncConnection, ids: set[str]) -> dict[str, str]:
    """Returns the organisations of workspaces by id. A workspace may have been deleted since a token was used there."""
    query = select(workspaces.c.id, workspaces.c.organisation_id).where(workspaces.c.id.in_(sorted(ids)))
    return {row.id: row.organisation_id for row in await connection.execute(query)} if ids else {}


async def _upsert(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as upsert  # noqa: PLC0415 - SQLite does not need its 2 MB
    else:
        from sqlalchemy.dialects.sqlite import insert as upsert  # noqa: PLC0415 - loads slowly
    query = upsert(token_limits)
    changes = {name: query.excluded[name] for name in _CHANGING}
    # Another node may have seen a newer token.
    is_newer = query.excluded.seen_at >= token_limits.c.seen_at
    unique = ("limit_id", "workspace_id")
    await connection.execute(query.on_conflict_do_update(index_elements=unique, set_=changes, where=is_newer), rows)
