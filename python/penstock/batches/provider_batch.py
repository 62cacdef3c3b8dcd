"""One batch that a provider runs: handed over once, asked after until it is over, its answers taken back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update

from penstock.batches.gateway_batch import format_output_line
from penstock.batches.model import CANCELLED, COMPLETED, EXPIRED, FAILED
from penstock.batches.providers import batch_provider_for
from penstock.batches.providers.batch_provider import LineResult
from penstock.batches.providers.client import ProviderBusyError, RequestRejectedError
from penstock.batches.records import AnsweredLine, BatchBilling, BatchInfo
from penstock.errors import EdgeUnavailableError, IncompleteResponseError, ResultsNotFoundError, UnavailableError
from penstock.job_loop import wait_for_event
from penstock.schemas import now
from penstock.store.tables import batch_lines, batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.gateway_batch import BatchDependencies
    from penstock.batches.input import BatchInput, BatchLine
    from penstock.batches.providers.batch_provider import BatchStatus
    from penstock.batches.providers.client import BatchClient
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

PAGE_LINES = 200
# Of an answer that is not in the caller's words yet.
RAW_PREFIX = "raw:"
# So often a provider is asked after a batch that should be over by now.
MAX_FINAL_POLLS = 60
# So often it is handed over anew where the answer to that was lost.
MAX_LOST_SUBMISSIONS = 3
RETRY_DELAY_SECONDS = 1.0


class ProviderBatch:
    """Sees one batch through at its provider."""

    def __init__(self, row: Row, talk: BatchClient, places: BatchDependencies) -> None:
        """Begin where the last run ended; `stop` says that its end is to be asked for."""
        self.stop = asyncio.Event()
        self._row_id: str = row["id"]
        self._job: dict[str, Any] = dict(row["job"])
        _, self._database, self._settings, self._figures, _ = self._places = places
        self._provider = batch_provider_for(self._job["provider"])(talk)
        self._metadata = talk.headers.get("x-gateway-metadata")
        # Records of lines that were told before the last run ended may be written already.
        self._again = "collected" in self._job

    async def run(self, given: BatchInput) -> str:
        """Say how it ended, once its answers are here."""
        if "id" not in self._job:
            name = await self._submit(given)
            if name is None:
                return CANCELLED
            await self._save_progress(id=name)
        if "ended" not in self._job:
            seen = await self._wait_until_ended()
            if seen.status == FAILED:
                raise RequestRejectedError(seen.failure_reason or "the provider failed to run this batch")
            await self._save_progress(ended=seen.status, ended_at=now(), paths=list(seen.result_paths))
        if "collected" not in self._job:
            await self._collect_with_retries()
            await self._save_progress(collected=True)
        await self._translate_results(given)
        return self._job["ended"]

    async def _save_progress(self, **facts: Any) -> None:  # noqa: ANN401 - what is known differs
        """Write what is known now: a next run begins there."""
        self._job.update(facts)
        await self._update_row({"job": self._job})

    async def _update_row(self, values: dict[str, Any]) -> None:
        while True:
            try:
                async with self._database.write_transaction() as connection:
                    await connection.execute(update(batches).where(batches.c.id == self._row_id).values(values))
            except UnavailableError as error:
                # What it is called there must not be forgotten: it would be handed over again.
                log.warning("what is known of the batch %s waits for the store: %s", self._row_id, error)
                await asyncio.sleep(RETRY_DELAY_SECONDS)
            else:
                return

    async def _submit(self, given: BatchInput) -> str | None:
        """Hand it over, and give what it is called there; nothing where its end was asked for before."""
        is_again = "tried" in self._job
        losses = 0
        if not is_again:
            await self._save_progress(tried=True)
        while not self.stop.is_set():
            try:
                # The last run may have ended between the provider's yes and its being written.
                name = await self._provider.find_submitted() if is_again else None
                return name or await self._provider.submit(given)
            except (EdgeUnavailableError, ProviderBusyError):
                # Nothing was done.
                await self._wait_poll_interval()
            except RequestRejectedError:
                raise
            except IncompleteResponseError as error:
                # Nobody knows what was done: a worker may have died in the middle, or an answer broke.
                losses += 1
                if losses > MAX_LOST_SUBMISSIONS or not self._provider.CAN_RESUBMIT:
                    raise RequestRejectedError(f"it could not be handed over: {error.message}") from None
                log.warning("whether the batch %s was handed over is asked: %s", self._row_id, error.message)
                is_again = True
                await self._wait_poll_interval()
        return None

    async def _wait_until_ended(self) -> BatchStatus:
        questions = 0
        while True:
            if self.stop.is_set():
                await self._cancel()
                questions += 1
            try:
                seen = await self._provider.fetch_status(self._job["id"])
            except RequestRejectedError:
                raise
            except (EdgeUnavailableError, IncompleteResponseError) as error:
                log.warning("the batch %s cannot be asked after for now: %s", self._row_id, error.message)
            else:
                await self._update_row({"completed": seen.completed, "failed": seen.failed})
                if seen.status in {COMPLETED, CANCELLED, EXPIRED, FAILED}:
                    return seen
            if questions > MAX_FINAL_POLLS:
                raise RequestRejectedError("its provider does not end it")
            await self._wait_poll_interval()

    async def _cancel(self) -> None:
        if "cancelled" in self._job:
            return
        with suppress(EdgeUnavailableError):
            # One that is refused is over already.
            with suppress(IncompleteResponseError):
                await self._provider.cancel(self._job["id"])
            await self._save_progress(cancelled=True)

    async def _wait_poll_interval(self) -> None:
        seconds = self._settings.batches.poll_ms / 1000
        if self.stop.is_set():
            await asyncio.sleep(seconds)
            return
        await wait_for_event(self.stop, seconds)

    async def _collect_with_retries(self) -> None:
        """Take the answers, from the beginning each time that they break off."""
        why = ""
        for _ in range(MAX_FINAL_POLLS):
            try:
                return await self._collect_results()
            except RequestRejectedError:
                raise
            except (EdgeUnavailableError, IncompleteResponseError) as error:
                why = error.message
                log.warning("the answers of the batch %s are not here yet: %s", self._row_id, why)
            await self._wait_poll_interval()
        raise RequestRejectedError(f"its answers cannot be had from its provider: {why}")

    async def _collect_results(self) -> None:
        """Take the answers as they are."""
        async with self._database.write_transaction() as connection:
            await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == self._row_id))
        rows: list[dict[str, Any]] = []
        seen: set[int] = set()
        async for number, text in self._read_results():
            if number in seen:
                continue
            seen.add(number)
            content = RAW_PREFIX + text.decode("utf-8", "replace")
            rows.append({"batch_id": self._row_id, "number": number, "failed": True, "content": content})
            if len(rows) >= PAGE_LINES:
                await self._insert_lines(rows)
                rows = []
        await self._insert_lines(rows)

    async def _read_results(self) -> AsyncIterator[tuple[int, bytes]]:
        for path in self._job["paths"]:
            try:
                async for result in self._provider.fetch_results(path):
                    yield result
            except ResultsNotFoundError:
                # Who ended a batch early may have answered nothing.
                if self._job["ended"] == COMPLETED:
                    raise

    async def _insert_lines(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            async with self._database.write_transaction() as connection:
                await connection.execute(insert(batch_lines), rows)

    async def _translate_results(self, given: BatchInput) -> None:
        """Put the answers into the caller's words, a page at a time; what was told before stays."""
        page: dict[int, BatchLine] = {}
        ended_at: int = self._job.get("ended_at") or now()
        book = BatchBilling(BatchInfo(self._row_id, self._job, self._metadata, ended_at), self._places)
        async for number, line in given.requests():
            page[number] = line
            if len(page) >= PAGE_LINES:
                await self._translate_page(page, book)
                page = {}
        await self._translate_page(page, book)
        async with self._database.write_transaction() as connection:
            # Answers to lines that nobody asked.
            own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.content.startswith(RAW_PREFIX))
            await connection.execute(delete(batch_lines).where(*own))
        counts = {"completed": await self._count_lines(failed=False), "failed": await self._count_lines(failed=True)}
        await self._update_row(counts)
        self._figures.succeeded_lines += counts["completed"]
        self._figures.failed_lines += counts["failed"]

    async def _translate_page(self, page: dict[int, BatchLine], book: BatchBilling) -> None:
        own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number.in_(list(page)))
        query = select(batch_lines.c.number, batch_lines.c.content).where(*own).order_by(batch_lines.c.number)
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(query)).all()
        read = {
            row.number: self._parse_result(page[row.number], row.content)
            for row in rows
            if row.content.startswith(RAW_PREFIX)
        }
        answers = [
            AnsweredLine(number, page[number], found.response) for number, found in read.items() if found.response
        ]
        # Before they count: an answer that was told has its record.
        await book.write_records(answers, again=self._again)
        changes = [self._to_output_row(number, page[number], found) for number, found in read.items()]
        if self._job["ended"] == COMPLETED:
            await self._insert_lines(
                [
                    self._missing_result_row(number, page[number])
                    for number in page.keys() - {row.number for row in rows}
                ]
            )
        if changes:
            here = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number == bindparam("line"))
            async with self._database.write_transaction() as connection:
                await connection.execute(update(batch_lines).where(*here), changes)

    def _parse_result(self, line: BatchLine, raw: str) -> LineResult:
        try:
            return self._provider.parse_result(line, raw.removeprefix(RAW_PREFIX).encode())
        except msgspec.MsgspecError as error:
            return LineResult(None, {"code": "answer_unreadable", "message": str(error)})

    def _to_output_row(self, number: int, line: BatchLine, outcome: LineResult) -> dict[str, Any]:
        content = format_output_line(self._row_id, number, line.custom_id, outcome.response, outcome.error)
        return {"line": number, "failed": outcome.is_failed, "content": content}

    def _missing_result_row(self, number: int, line: BatchLine) -> dict[str, Any]:
        error = {"code": "no_answer", "message": "its provider gave no answer to this line"}
        content = format_output_line(self._row_id, number, line.custom_id, None, error)
        return {"batch_id": self._row_id, "number": number, "failed": True, "content": content}

    async def _count_lines(self, *, failed: bool) -> int:
        own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.failed == failed)
        async with self._database.read_connection() as connection:
            return await connection.scalar(select(func.count()).select_from(batch_lines).where(*own)) or 0
