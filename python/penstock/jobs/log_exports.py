"""Runner of log exports. Claims started exports that no node runs, and writes their rows to a file."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import func, insert, or_, select, update

from penstock.batches.files import LOG_EXPORT_PURPOSE, new_file_row
from penstock.errors import PenstockError, UnavailableError
from penstock.ids import new_id
from penstock.job_loop import wait_for_event
from penstock.log_api.exports import (
    BODY_FIELDS,
    FAILED,
    IN_PROGRESS,
    MAX_ROWS,
    SUCCESS,
    export_columns,
    export_filters,
    file_name,
    stored_filters,
)
from penstock.log_api.records import decode_body
from penstock.log_api.visibility import find_email
from penstock.logs.query import MAX_PAGE_SIZE, ListQuery
from penstock.schemas import now
from penstock.store.job_tables import files, log_exports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sqlalchemy import ColumnElement

    from penstock.blobs.store import BlobStore
    from penstock.log_api.service import LogService
    from penstock.settings import Settings
    from penstock.store.database import Database
    from penstock.store.tenant import Row

Content = TypeVar("Content")

log = logging.getLogger("penstock")

POLL_SECONDS = 5.0
# Poll interval for an embedded store. There only this process starts exports, and it calls `notify`.
QUIET_SECONDS = 60.0
# A claim ends after `LEASE_MS`. While bodies are read, it is renewed every `RENEW_SECONDS`.
LEASE_MS, RENEW_SECONDS = 60_000, 15.0
# If the log store is unavailable, for example because it is busy or restarts, a read is repeated after a pause. An
# export fails if it gets no answer for `MAX_UNAVAILABLE_SECONDS`.
RETRY_PAUSE_SECONDS, MAX_UNAVAILABLE_SECONDS = 5.0, 300.0
PAGE_SIZE = 500
# Page size for rows before the first row of the export. These pages are read only to find the page after them.
SKIPPED_PAGE_SIZE = MAX_PAGE_SIZE
# Number of bodies that are read at the same time, and kept in memory. Each is a separate read from a pack.
CONCURRENT_BODIES = 8
# Number of workspaces whose last export is remembered, so that the next one is of another.
MAX_SERVED = 10_000
LOST_MESSAGE = "the export was stopped, or another node runs it"


class ExportStoppedError(PenstockError):
    """The export was stopped, deleted, or claimed by another node."""


class LogExporter:
    """Runs one export after the other."""

    def __init__(self, settings: Settings, database: Database, blobs: BlobStore, log_service: LogService) -> None:
        """Stores the services. `run` starts the work."""
        self._settings = settings
        self._database = database
        self._blobs = blobs
        self._logs = log_service
        self._exporter_id = new_id()
        # Workspaces, in the order in which they had their last export.
        self._served: dict[tuple[str, str], None] = {}
        # Monotonic time at which the claim of the current export was last renewed.
        self._renewed_at = 0.0
        self._wake_event = asyncio.Event()

    def notify(self) -> None:
        """Wakes the runner, because an export was started."""
        self._wake_event.set()

    async def run(self) -> None:
        """Runs exports until cancelled."""
        if self._database.embedded:
            # No other process runs exports of this store, so the claims belong to a previous process.
            with suppress(PenstockError):
                await self._update(log_exports.c.run_by.is_not(None), run_by=None, run_until=None)
        while True:
            try:
                while row := await self._claim_next():
                    await self._run_export(row)
            except PenstockError as error:
                log.warning("log exports wait: %s", error)
            await wait_for_event(self._wake_event, QUIET_SECONDS if self._database.embedded else POLL_SECONDS)
            self._wake_event.clear()

    async def _claim_next(self) -> Row | None:
        is_free = or_(log_exports.c.run_until.is_(None), log_exports.c.run_until < now())
        waiting = (log_exports.c.status == IN_PROGRESS, is_free)
        workspace = log_exports.c.organisation_id, log_exports.c.workspace_id
        first_of_each = select(*workspace, func.min(log_exports.c.id)).where(*waiting).group_by(*workspace)
        turns = {served: turn for turn, served in enumerate(self._served)}
        async with self._database.read_connection() as connection:
            firsts = (await connection.execute(first_of_each)).all()
            if not firsts:
                return None
            *_, export_id = min(firsts, key=lambda first: (turns.get((first[0], first[1]), -1), first[2]))
            row = (
                (await connection.execute(select(log_exports).where(log_exports.c.id == export_id))).mappings().first()
            )
        if row is None:
            # The export was deleted meanwhile.
            return await self._claim_next()
        claimed = await self._update(
            log_exports.c.id == row["id"], *waiting, run_by=self._exporter_id, run_until=now() + LEASE_MS
        )
        if not claimed:
            return await self._claim_next()
        served = (row["organisation_id"], row["workspace_id"])
        self._served.pop(served, None)
        self._served[served] = None
        if len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]
        return dict(row)

    async def _run_export(self, row: Row) -> None:
        file = new_file_row(
            LOG_EXPORT_PURPOSE,
            file_name(row["id"]),
            self._settings.files.retention_seconds,
            organisation_id=row["organisation_id"],
            workspace_id=row["workspace_id"],
            created_by=row["created_by"],
        )
        try:
            counted = [0]
            file["bytes"] = await self._blobs.put(file["id"], self._write_rows(row, counted))
            await self._finish(row, file, counted[0])
        except ExportStoppedError as error:
            log.info("the log export %s ends: %s", row["id"], error)
        except PenstockError as error:
            await self._fail(row, error.message)
        except Exception:
            log.exception("the log export %s failed", row["id"])
            await self._fail(row, "internal error; the log of the gateway has the details")
        else:
            return
        await self._blobs.delete(file["id"])

    async def _finish(self, row: Row, file: dict[str, Any], count: int) -> None:
        values = {"status": SUCCESS, "file_id": file["id"], "total_records": count, "run_by": None, "run_until": None}
        async with self._database.write_transaction() as connection:
            done = await connection.execute(
                update(log_exports).where(*self._claimed(row)).values(**values, last_updated_at=now())
            )
            if done.rowcount != 1:
                raise ExportStoppedError(LOST_MESSAGE)
            await connection.execute(insert(files).values(file))

    async def _fail(self, row: Row, reason: str) -> None:
        log.warning("the log export %s failed: %s", row["id"], reason)
        with suppress(PenstockError):
            await self._update(
                *self._claimed(row), status=FAILED, error=reason, run_by=None, run_until=None, last_updated_at=now()
            )

    def _claimed(self, row: Row) -> tuple[ColumnElement[bool], ...]:
        return (
            log_exports.c.id == row["id"],
            log_exports.c.status == IN_PROGRESS,
            log_exports.c.run_by == self._exporter_id,
        )

    async def _update(self, *conditions: ColumnElement[bool], **values: object) -> bool:
        async with self._database.write_transaction() as connection:
            done = await connection.execute(update(log_exports).where(*conditions).values(**values))
            return done.rowcount > 0

    async def _renew_claim(self, row: Row) -> None:
        """Renews the claim of an export. Raises ExportStoppedError if it was stopped."""
        self._renewed_at = time.monotonic()
        if not await self._update(*self._claimed(row), run_until=now() + LEASE_MS):
            raise ExportStoppedError(LOST_MESSAGE)

    async def _read(self, row: Row, read: Callable[[], Awaitable[Content]]) -> Content:
        """Reads from the log store, and repeats this while the store is unavailable."""
        deadline = time.monotonic() + MAX_UNAVAILABLE_SECONDS
        while True:
            try:
                return await read()
            except UnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                log.debug("the log export %s waits: %s", row["id"], error)
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
            await self._renew_claim(row)

    async def _write_rows(self, row: Row, counted: list[int]) -> AsyncIterator[bytes]:
        """Yields the rows as JSON lines, page by page, and renews the lease before each page."""
        email: str | None = None
        if row["restricted_to"]:
            async with self._database.read_connection() as connection:
                email = await find_email(connection, row["organisation_id"], row["restricted_to"])
        paging, filters = stored_filters(row), export_filters(row, email)
        size = paging.page_size or MAX_ROWS
        skipped, remaining = (paging.current_page or 0) * size if paging.page_size else 0, min(size, MAX_ROWS)
        requested: list[str] = row["requested_data"]
        cursor: str | None = None
        while remaining > 0:
            await self._renew_claim(row)
            columns, limit = export_columns(requested), PAGE_SIZE
            if skipped >= SKIPPED_PAGE_SIZE:
                columns, limit = ["id"], SKIPPED_PAGE_SIZE
            query = ListQuery(filters=filters, columns=columns, cursor=cursor, limit=limit)
            page = await self._read(row, partial(self._logs.run, query))
            records = page["data"][skipped : skipped + remaining]
            skipped = max(0, skipped - len(page["data"]))
            async for lines in self._encode_rows(row, records, requested):
                yield lines
            counted[0] += len(records)
            remaining -= len(records)
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def _encode_rows(self, row: Row, records: list[dict[str, Any]], requested: list[str]) -> AsyncIterator[bytes]:
        """Yields the lines of a page. With bodies, yields few lines at once, because bodies may be large."""
        has_bodies = bool(BODY_FIELDS.intersection(requested))
        size = CONCURRENT_BODIES if has_bodies else PAGE_SIZE
        for start in range(0, len(records), size):
            part = records[start : start + size]
            if has_bodies:
                if time.monotonic() - self._renewed_at > RENEW_SECONDS:
                    await self._renew_claim(row)
                try:
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(self._add_bodies(row, record)) for record in part]
                except ExceptionGroup as errors:
                    raise errors.exceptions[0] from None
                part = [task.result() for task in tasks]
            yield b"".join(
                msgspec.json.encode({name: record.get(name) for name in requested}) + b"\n" for record in part
            )

    async def _add_bodies(self, row: Row, record: dict[str, Any]) -> dict[str, Any]:
        read = partial(self._logs.get_bodies, record["id"], row["organisation_id"], row["workspace_id"])
        bodies = await self._read(row, read)
        response = bodies.get("client_response", bodies.get("upstream_response", b""))
        return {
            **record,
            "request": decode_body(bodies.get("client_request", b"")),
            "response": decode_body(response),
        }
