"""Usage ledger: sums the usage of budgets in the store. The data plane corrects its own counters with these sums.

The job reads the spool with its own position. One file has the position and the sums that are not in the store yet. So
nothing is lost or counted twice if a process is killed or the store is unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import case, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from penstock.engine import BudgetSums, set_recorded_usage
from penstock.errors import InvalidError, UnavailableError
from penstock.ids import new_id
from penstock.jobs.alert_webhook import AlertWebhook
from penstock.jobs.usage_alerts import mark_used_groups
from penstock.limits.token_limits import TokenLimitWriter, delete_unseen
from penstock.limits.usage import ACTIVE, NO_ALERTS, USAGE_COLUMNS
from penstock.logs.ledger_state import (
    MAX_AMOUNT,
    STATE_FILE,
    KnownMembers,
    LedgerState,
    UsageKey,
    UsageSum,
    clamp_amount,
)
from penstock.logs.spool_reader import BudgetReader, SpoolFollower
from penstock.metrics import JobMetrics, MetricsStore
from penstock.schemas import now
from penstock.store.database import is_value_error
from penstock.store.limit_tables import limit_usage, usage_ledger_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Services
    from penstock.logs.batch import Position
    from penstock.settings import Settings

log = logging.getLogger("penstock")

FOLD_SECONDS = 0.5
READ_EVENTS = 5000
# Maximum number of sums that are not in the store yet. At this number, the job stops reading, and further records stay
# in the spool.
MAX_PENDING = 100_000
# Maximum number of budgets and groups per transaction.
MAX_BATCH = 1000
# Interval at which the usage of other nodes is read from the store.
SYNC_SECONDS = 1.0
# Every `REPORT_SECONDS` a node reports to the store that it is alive. After `NODE_EXPIRY_MS` without a report, the
# others no longer count it. It stops using its shares of limits before that.
REPORT_SECONDS, NODE_EXPIRY_MS = 5.0, 3 * 60 * 1000
# `JOIN_MS` after a node registers, all other nodes have read that it exists and leave it a share of limits. `NEVER_MS`
# is the start for a node that has no share yet.
JOIN_MS, NEVER_MS = 15_000, 2**63 - 1
# Rows are read again if they changed this long before the last read. Clocks of nodes differ, and transactions take
# time.
SYNC_OVERLAP_MS = 10_000
# Every `PRUNE_SECONDS`, entries of past periods are deleted that did not change for `PRUNE_AGE_MS`, up to `MAX_PRUNED`
# at once.
PRUNE_SECONDS, PRUNE_AGE_MS, MAX_PRUNED = 3600.0, 90 * 24 * 3600 * 1000, 10_000
# After a start, budgets that changed in this time are checked for alerts. The last process may have been killed before
# it sent them.
UNMARKED_AGE_MS = 24 * 3600 * 1000


class UsageLedger:
    """Adds the usage of this node to the store, and passes the usage of all nodes to the data plane."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        figures: JobMetrics | None = None,
        workers: MetricsStore | None = None,
    ) -> None:
        """Restores the state that the last process saved."""
        self._services, self._database = services, services.database
        self._folder = settings.limits_folder
        self._state = LedgerState.load(self._folder)
        # True if the file does not have the state in memory.
        self._is_unsaved = False
        self._pending = dict(self._state.pending)
        self._sums = BudgetSums()
        make_reader: Callable[[Path, Position | None], BudgetReader] = partial(BudgetReader, sums=self._sums)
        self._follower: SpoolFollower[BudgetReader] = SpoolFollower(
            settings.spool_folder, self._state.positions, make_reader
        )
        self._synced_until = now() - SYNC_OVERLAP_MS
        self._worker_count = settings.server.workers
        self._report_due = 0.0
        # Time of the first report of this node, if the other nodes did not know it before.
        self._registered_at: int | None = None
        # Start of the first windows in which the other nodes leave a share for this node; `None` until it is known.
        self._share_start: int | None = None
        # What fails at the moment, and is logged once.
        self._failing: set[str] = set()
        self._unmarked: set[str] | None = None
        self._figures = figures or JobMetrics()
        self._workers = workers or MetricsStore()
        self._token_limits = TokenLimitWriter()
        self.webhook = AlertWebhook(settings)

    async def run(self) -> None:
        """Runs the ledger until cancelled."""
        synced_at, pruned_at = 0.0, time.monotonic()
        webhook = asyncio.create_task(self.webhook.run())
        try:
            while True:
                has_more = False
                with self._logged_failure("usage is not read for now"):
                    has_more = await asyncio.to_thread(self.read_spool) or len(self._pending) > MAX_BATCH
                if self.has_unstored_usage:
                    with self._logged_failure("usage is not stored for now"):
                        await self.store_batch()
                if time.monotonic() - synced_at > SYNC_SECONDS:
                    synced_at = time.monotonic()
                    with self._logged_failure("limits of tokens are not stored for now"):
                        await self.store_token_limits()
                    with suppress(UnavailableError):
                        await self._sync_counters()
                        await self.mark_groups()
                    if time.monotonic() >= self._report_due:
                        with self._logged_failure("this node is not reported for now"), suppress(UnavailableError):
                            await self.report_workers()
                else:
                    with suppress(UnavailableError):
                        await self._sync_counters(resets_only=True)
                if time.monotonic() - pruned_at > PRUNE_SECONDS:
                    pruned_at = time.monotonic()
                    with suppress(UnavailableError):
                        await self.prune()
                if not has_more or self._failing:
                    await asyncio.sleep(FOLD_SECONDS)
        finally:
            webhook.cancel()
            self._follower.close()

    def read_spool(self) -> bool:
        """Reads the next records and saves the sums. Returns true if there is more to read now."""
        if len(self._pending) >= MAX_PENDING:
            return False
        count = 0
        positions: dict[str, Position] = {}
        for reader in self._follower.find_writers():
            for killed in reader.read(READ_EVENTS):
                self._sums.add_record(killed.payload, killed.flags)
            count += reader.read_count
            positions[reader.name] = reader.position
        self._add_sums()
        if positions != self._state.positions or self._is_unsaved:
            self._state.positions = positions
            self._save_state()
        return count >= READ_EVENTS

    def _add_sums(self) -> None:
        """Moves the sums of the records that were read to those that are not in the store yet."""
        for limit_id, group, period_start, measure, *added in self._sums.take():
            total = self._pending.setdefault(UsageKey(limit_id, group, period_start, measure), UsageSum())
            total.add(UsageSum(*added))

    @contextmanager
    def _logged_failure(self, name: str) -> Generator[None]:
        """Catches a failure of the store or of the disk, which ends by itself, and logs it when it begins."""
        try:
            yield
        except (UnavailableError, OSError) as error:
            if name not in self._failing:
                log.warning("%s: %s", name, error)
            self._failing.add(name)
        else:
            self._failing.discard(name)

    @property
    def has_unstored_usage(self) -> bool:
        """True if there is usage that the store does not have yet."""
        return bool(self._pending or self._state.batch)

    async def seal_batch(self) -> None:
        """Chooses the sums that are stored next. From then on they do not change, so that writing them again has no
        effect.
        """
        if not self._state.batch:
            # All nodes lock rows in the same order, so that their transactions do not wait for each other.
            keys = sorted(list(self._pending)[:MAX_BATCH], key=_batch_order)
            self._state.batch = [(key, self._pending.pop(key)) for key in keys]
            self._is_unsaved = True
        if self._is_unsaved:
            # Otherwise another process would build a different batch with the number of this one.
            await asyncio.to_thread(self._save_state)

    async def store_batch(self) -> None:
        """Adds the next sums to the store. If it is unknown whether a batch was stored, it is written again."""
        state = self._state
        await self.seal_batch()
        try:
            async with self._database.write_transaction() as connection:
                if await self._claim_sequence(connection):
                    await _add_batch(connection, state.batch)
        except (InvalidError, UnavailableError) as error:
            if not is_value_error(error) and not is_value_error(error.__cause__):
                raise
            await self._store_each()
        changed = {key.limit_id for key, _ in state.batch}
        state.batch = []
        state.sequence += 1
        if self._unmarked is not None:
            self._unmarked |= changed
        await asyncio.to_thread(self._save_state)
        with suppress(UnavailableError):
            await self.mark_groups()

    async def _store_each(self) -> None:
        """Adds the sums of the batch one by one, and drops those that the database rejects. Otherwise one of them would
        stop the ledger for all budgets.
        """
        dropped: list[UsageKey] = []
        async with self._database.write_transaction() as connection:
            if not await self._claim_sequence(connection):
                return
            for key, total in self._state.batch:
                try:
                    async with connection.begin_nested():
                        await _add_batch(connection, [(key, total)])
                except (InvalidError, DBAPIError) as error:
                    if not is_value_error(error):
                        raise
                    dropped.append(key)
        self._figures.dropped_limit_usage += len(dropped)
        for key in dropped:
            log.error("usage of the budget %r is lost: the database rejects it for %r", key.limit_id, key.group)

    async def mark_groups(self) -> None:
        """Sends alerts for the budgets whose usage, limit or threshold changed. If the store fails, the same budgets are checked again at the next
        call.
        """
        if self._unmarked is None:
            query = select(limit_usage.c.limit_id).where(limit_usage.c.updated_at >= now() - UNMARKED_AGE_MS)
            async with self._database.read_connection() as connection:
                self._unmarked = set((await connection.execute(query.distinct())).scalars())
        changed, self._services.changed_budgets = self._services.changed_budgets, set()
        self._unmarked |= changed
        if not self._unmarked:
            return
        marked, self._unmarked = self._unmarked, set[str]()
        try:
            async for alerts in mark_used_groups(self._services, marked):
                self.webhook.add(alerts)
                self._figures.limit_alerts += len(alerts)
                self._figures.dropped_limit_alerts = self.webhook.dropped
        except UnavailableError:
            self._unmarked |= marked
            raise

    async def store_token_limits(self) -> None:
        """Stores the limits of tokens that this node's workers have seen, and checks changed budgets for alerts."""
        if not (tokens := self._workers.take_seen_tokens()):
            return
        try:
            async with self._database.write_transaction() as connection:
                changed = await self._token_limits.write(connection, tokens)
        except (InvalidError, UnavailableError):
            # Workers report these tokens again.
            self._token_limits.forget()
            raise
        self._services.changed_budgets |= changed

    async def prune(self) -> None:
        """Deletes entries that did not change for `PRUNE_AGE_MS`, and whose limit has an entry of a later period."""
        later = limit_usage.alias()
        has_later = select(later.c.id).where(
            later.c.limit_id == limit_usage.c.limit_id, later.c.period_start > limit_usage.c.period_start
        )
        old = select(limit_usage.c.id).where(limit_usage.c.updated_at < now() - PRUNE_AGE_MS, has_later.exists())
        async with self._database.write_transaction() as connection:
            rows = list((await connection.execute(old.limit(MAX_PRUNED))).scalars())
            for at in range(0, len(rows), MAX_BATCH):
                await connection.execute(delete(limit_usage).where(limit_usage.c.id.in_(rows[at : at + MAX_BATCH])))
            await delete_unseen(connection)

    async def _claim_sequence(self, connection: AsyncConnection) -> bool:
        """Stores the number of this batch as the last one of this node. Returns false if the store already has the
        batch.
        """
        node, sequence = self._state.node, self._state.sequence
        column = usage_ledger_nodes.c
        later = update(usage_ledger_nodes).where(column.node == node, column.sequence < sequence)
        if (await connection.execute(later.values(sequence=sequence))).rowcount:
            return True
        if await connection.scalar(select(column.sequence).where(column.node == node)) is not None:
            return False
        await connection.execute(insert(usage_ledger_nodes).values(node=node, sequence=sequence))
        return True

    async def _sync_counters(self, *, resets_only: bool = False) -> None:
        """Passes usage that any node has stored since the last call to this node's data plane. With `resets_only`,
        passes only groups whose usage was reset, because clients may wait for the reset.
        """
        since = self._synced_until - SYNC_OVERLAP_MS
        query = select(limit_usage).where(limit_usage.c.updated_at >= since)
        if resets_only:
            query = query.where(limit_usage.c.resets > 0)
        else:
            self._synced_until = now()
        async with self._database.read_connection() as connection:
            rows = [dict(row) for row in (await connection.execute(query)).mappings()]
        # Usage that no request caused, such as that of a new key, is in no batch, but may reach a threshold.
        if self._unmarked is not None:
            self._unmarked |= {row["limit_id"] for row in rows if row["corrected_nanodollars"]}
        usages = [
            (
                row["limit_id"],
                row["value_key"],
                row["period_start"],
                max(row[USAGE_COLUMNS[row["measure"]]], 0),
                row["resets"],
                row["corrected_nanodollars"] if row["measure"] == "cost" else 0,
            )
            for row in rows
        ]
        if usages:
            await asyncio.to_thread(set_recorded_usage, self._folder, usages)

    async def report_workers(self) -> None:
        """Reports to the store that this node is alive, and to the data plane how many workers all nodes have. While
        Redis is unavailable, the workers divide limits among themselves.
        """
        self._report_due = time.monotonic() + REPORT_SECONDS
        column, workers = usage_ledger_nodes.c, self._worker_count
        await asyncio.to_thread(self._save_new_state)
        async with self._database.write_transaction() as connection:
            is_shared, seen_at = connection.dialect.name == "postgresql", now()
            alive, is_alive = {"workers": workers, "seen_at": seen_at}, column.seen_at > seen_at - NODE_EXPIRY_MS
            own = column.node == self._state.node
            before = await connection.scalar(select(column.node).where(own, is_alive))
            if (await connection.execute(update(usage_ledger_nodes).where(own).values(alive))).rowcount == 0:
                new = {"node": self._state.node, "sequence": self._state.sequence - 1}
                await connection.execute(insert(usage_ledger_nodes).values({**new, **alive}))
            total, nodes = (
                await connection.execute(select(func.sum(column.workers), func.count()).where(is_alive))
            ).one()
        members = KnownMembers(int(total or workers))
        if is_shared:
            share_start = self._find_share_start(is_known=before is not None, is_alone=nodes <= 1)
            members = KnownMembers(members.workers, seen_at, share_start)
        await asyncio.to_thread(members.save, self._folder)

    def _find_share_start(self, *, is_known: bool, is_alone: bool) -> int:
        """Returns the start of the first windows in which the other nodes reserve a share for this one. A node that
        has just registered gets shares only of windows that begin later, unless it is the only node.
        """
        if self._share_start is None and self._registered_at is None:
            if is_known:
                self._share_start = 0
            else:
                self._registered_at = now()
        elif self._share_start is None and self._registered_at is not None:
            # `is_alone` is only reliable at the second report: nodes that start at the same time see each other by
            # then.
            self._share_start = 0 if is_alone else self._registered_at + JOIN_MS
        return NEVER_MS if self._share_start is None else self._share_start

    def _save_new_state(self) -> None:
        """Saves the state if there is no file yet, so that the node has the same id after a restart."""
        if not os.path.exists(os.path.join(self._folder, STATE_FILE)):
            self._save_state()

    def _save_state(self) -> None:
        self._is_unsaved = True
        self._state.pending = list(self._pending.items())
        self._state.save(self._folder)
        self._is_unsaved = False


def _batch_order(key: UsageKey) -> tuple[str, str, int]:
    return key.limit_id, key.group, key.period_start


def _clamped(amount: ColumnElement[int]) -> ColumnElement[int]:
    """Limits an amount to `MAX_AMOUNT`, because a larger sum would be an error of the database."""
    return case((amount > MAX_AMOUNT, MAX_AMOUNT), (amount < -MAX_AMOUNT, -MAX_AMOUNT), else_=amount)


async def _add_batch(connection: AsyncConnection, batch: list[tuple[UsageKey, UsageSum]]) -> None:
    """Adds usage to the entries of budgets and groups, and creates those that do not exist. One statement for all takes a
    third of the time of one for each.
    """
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as upsert  # noqa: PLC0415 - SQLite does not need its 2 MB
    else:
        from sqlalchemy.dialects.sqlite import insert as upsert  # noqa: PLC0415 - loads slowly
    changed_at = now()
    rows = [
        {
            "id": new_id(),
            "limit_id": key.limit_id,
            "value_key": key.group,
            "period_start": key.period_start,
            "measure": key.measure,
            "requests": clamp_amount(total.requests),
            "tokens": clamp_amount(total.tokens),
            "nanodollars": clamp_amount(total.nanodollars),
            "corrected_nanodollars": clamp_amount(total.corrected),
            "updated_at": changed_at,
            "status": ACTIVE,
            "resets": 0,
            **NO_ALERTS,
        }
        for key, total in batch
    ]
    query = upsert(limit_usage)
    sums = ("requests", "tokens", "nanodollars", "corrected_nanodollars")
    changed = {name: _clamped(_clamped(limit_usage.c[name]) + query.excluded[name]) for name in sums}
    unique = ("limit_id", "value_key", "period_start")
    await connection.execute(
        query.on_conflict_do_update(index_elements=unique, set_={**changed, "updated_at": changed_at}), rows
    )
