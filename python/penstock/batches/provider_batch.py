"""One batch that a provider runs: handed over once, asked after until it is over, its answers taken back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update

from penstock.batches.gateway_batch import told
from penstock.batches.model import CANCELLED, COMPLETED, EXPIRED, FAILED
from penstock.batches.providers import way_of
from penstock.batches.providers.batch_provider import Told
from penstock.batches.providers.client import BusyError, RefusedError
from penstock.batches.records import Answer, Batch, Book
from penstock.errors import AbsentError, AwayError, LostError, UnavailableError
from penstock.job_loop import rung
from penstock.schemas import now
from penstock.store.tables import batch_lines, batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.gateway_batch import Places
    from penstock.batches.input import Input, Line
    from penstock.batches.providers.batch_provider import Seen
    from penstock.batches.providers.client import Talk
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

PAGE = 200
# Of an answer that is not in the caller's words yet.
RAW = "raw:"
# So often a provider is asked after a batch that should be over by now.
LAST_QUESTIONS = 60
# So often it is handed over anew where the answer to that was lost.
MOST_LOSSES = 3
PAUSE = 1.0


class HandedOver:
    """Sees one batch through at its provider."""

    def __init__(self, row: Row, talk: Talk, places: Places) -> None:
        """Begin where the last run ended; `stop` says that its end is to be asked for."""
        self.stop = asyncio.Event()
        self._row_id: str = row["id"]
        self._job: dict[str, Any] = dict(row["job"])
        _, self._database, self._settings, self._figures, _ = self._places = places
        self._provider = way_of(self._job["provider"])(talk)
        self._metadata = talk.headers.get("x-gateway-metadata")
        # Records of lines that were told before the last run ended may be written already.
        self._again = "collected" in self._job

    async def run(self, given: Input) -> str:
        """Say how it ended, once its answers are here."""
        if "id" not in self._job:
            name = await self._submit(given)
            if name is None:
                return CANCELLED
            await self._note(id=name)
        if "ended" not in self._job:
            seen = await self._ended()
            if seen.status == FAILED:
                raise RefusedError(seen.why or "the provider failed to run this batch")
            await self._note(ended=seen.status, ended_at=now(), paths=list(seen.paths))
        if "collected" not in self._job:
            await self._fetch()
            await self._note(collected=True)
        await self._tell(given)
        return self._job["ended"]

    async def _note(self, **facts: Any) -> None:  # noqa: ANN401 - what is known differs
        """Write what is known now: a next run begins there."""
        self._job.update(facts)
        await self._write({"job": self._job})

    async def _write(self, values: dict[str, Any]) -> None:
        while True:
            try:
                async with self._database.writing() as connection:
                    await connection.execute(update(batches).where(batches.c.id == self._row_id).values(values))
            except UnavailableError as error:
                # What it is called there must not be forgotten: it would be handed over again.
                log.warning("what is known of the batch %s waits for the store: %s", self._row_id, error)
                await asyncio.sleep(PAUSE)
            else:
                return

    async def _submit(self, given: Input) -> str | None:
        """Hand it over, and give what it is called there; nothing where its end was asked for before."""
        is_again = "tried" in self._job
        losses = 0
        if not is_again:
            await self._note(tried=True)
        while not self.stop.is_set():
            try:
                # The last run may have ended between the provider's yes and its being written.
                name = await self._provider.found() if is_again else None
                return name or await self._provider.submit(given)
            except (AwayError, BusyError):
                # Nothing was done.
                await self._wait()
            except RefusedError:
                raise
            except LostError as error:
                # Nobody knows what was done: a worker may have died in the middle, or an answer broke.
                losses += 1
                if losses > MOST_LOSSES or not self._provider.KNOWS_AGAIN:
                    raise RefusedError(f"it could not be handed over: {error.message}") from None
                log.warning("whether the batch %s was handed over is asked: %s", self._row_id, error.message)
                is_again = True
                await self._wait()
        return None

    async def _ended(self) -> Seen:
        questions = 0
        while True:
            if self.stop.is_set():
                await self._cancel()
                questions += 1
            try:
                seen = await self._provider.look(self._job["id"])
            except RefusedError:
                raise
            except (AwayError, LostError) as error:
                log.warning("the batch %s cannot be asked after for now: %s", self._row_id, error.message)
            else:
                await self._write({"completed": seen.completed, "failed": seen.failed})
                if seen.status in {COMPLETED, CANCELLED, EXPIRED, FAILED}:
                    return seen
            if questions > LAST_QUESTIONS:
                raise RefusedError("its provider does not end it")
            await self._wait()

    async def _cancel(self) -> None:
        if "cancelled" in self._job:
            return
        with suppress(AwayError):
            # One that is refused is over already.
            with suppress(LostError):
                await self._provider.cancel(self._job["id"])
            await self._note(cancelled=True)

    async def _wait(self) -> None:
        seconds = self._settings.batches.poll_ms / 1000
        if self.stop.is_set():
            await asyncio.sleep(seconds)
            return
        await rung(self.stop, seconds)

    async def _fetch(self) -> None:
        """Take the answers, from the beginning each time that they break off."""
        why = ""
        for _ in range(LAST_QUESTIONS):
            try:
                return await self._collect()
            except RefusedError:
                raise
            except (AwayError, LostError) as error:
                why = error.message
                log.warning("the answers of the batch %s are not here yet: %s", self._row_id, why)
            await self._wait()
        raise RefusedError(f"its answers cannot be had from its provider: {why}")

    async def _collect(self) -> None:
        """Take the answers as they are."""
        async with self._database.writing() as connection:
            await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == self._row_id))
        rows: list[dict[str, Any]] = []
        seen: set[int] = set()
        async for number, text in self._results():
            if number in seen:
                continue
            seen.add(number)
            content = RAW + text.decode("utf-8", "replace")
            rows.append({"batch_id": self._row_id, "number": number, "failed": True, "content": content})
            if len(rows) >= PAGE:
                await self._keep(rows)
                rows = []
        await self._keep(rows)

    async def _results(self) -> AsyncIterator[tuple[int, bytes]]:
        for path in self._job["paths"]:
            try:
                async for result in self._provider.results(path):
                    yield result
            except AbsentError:
                # Who ended a batch early may have answered nothing.
                if self._job["ended"] == COMPLETED:
                    raise

    async def _keep(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            async with self._database.writing() as connection:
                await connection.execute(insert(batch_lines), rows)

    async def _tell(self, given: Input) -> None:
        """Put the answers into the caller's words, a page at a time; what was told before stays."""
        page: dict[int, Line] = {}
        ended_at: int = self._job.get("ended_at") or now()
        book = Book(Batch(self._row_id, self._job, self._metadata, ended_at), self._places)
        async for number, line in given.requests():
            page[number] = line
            if len(page) >= PAGE:
                await self._tell_page(page, book)
                page = {}
        await self._tell_page(page, book)
        async with self._database.writing() as connection:
            # Answers to lines that nobody asked.
            own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.content.startswith(RAW))
            await connection.execute(delete(batch_lines).where(*own))
        counts = {"completed": await self._count(failed=False), "failed": await self._count(failed=True)}
        await self._write(counts)
        self._figures.answered += counts["completed"]
        self._figures.failed += counts["failed"]

    async def _tell_page(self, page: dict[int, Line], book: Book) -> None:
        own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number.in_(list(page)))
        query = select(batch_lines.c.number, batch_lines.c.content).where(*own).order_by(batch_lines.c.number)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        read = {row.number: self._read(page[row.number], row.content) for row in rows if row.content.startswith(RAW)}
        answers = [Answer(number, page[number], found.response) for number, found in read.items() if found.response]
        # Before they count: an answer that was told has its record.
        await book.write(answers, again=self._again)
        changes = [self._told(number, page[number], found) for number, found in read.items()]
        if self._job["ended"] == COMPLETED:
            await self._keep(
                [self._unanswered(number, page[number]) for number in page.keys() - {row.number for row in rows}]
            )
        if changes:
            here = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number == bindparam("line"))
            async with self._database.writing() as connection:
                await connection.execute(update(batch_lines).where(*here), changes)

    def _read(self, line: Line, raw: str) -> Told:
        try:
            return self._provider.told(line, raw.removeprefix(RAW).encode())
        except msgspec.MsgspecError as error:
            return Told(None, {"code": "answer_unreadable", "message": str(error)})

    def _told(self, number: int, line: Line, outcome: Told) -> dict[str, Any]:
        content = told(self._row_id, number, line.custom_id, outcome.response, outcome.error)
        return {"line": number, "failed": outcome.failed, "content": content}

    def _unanswered(self, number: int, line: Line) -> dict[str, Any]:
        error = {"code": "no_answer", "message": "its provider gave no answer to this line"}
        content = told(self._row_id, number, line.custom_id, None, error)
        return {"batch_id": self._row_id, "number": number, "failed": True, "content": content}

    async def _count(self, *, failed: bool) -> int:
        own = (batch_lines.c.batch_id == self._row_id, batch_lines.c.failed == failed)
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(batch_lines).where(*own)) or 0
