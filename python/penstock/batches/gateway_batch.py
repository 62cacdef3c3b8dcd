"""One batch that the gateway runs itself: its lines go to the edge, a few at a time, and each answer is kept before it counts."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from sqlalchemy import insert, select, update

from penstock.batches.edge_messages import JSON, Call
from penstock.batches.files import BATCH
from penstock.batches.model import COMPLETED, EXPIRED
from penstock.errors import AwayError, LostError, UnavailableError
from penstock.job_loop import rung
from penstock.store.tables import batch_lines, batches

if TYPE_CHECKING:
    from penstock.batches.edge_client import Edge
    from penstock.batches.edge_messages import Reply
    from penstock.batches.input import Input, Line
    from penstock.metrics import BatchFigures
    from penstock.records import RecordFeed
    from penstock.settings import Settings
    from penstock.store.database import Database
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

# Statuses that another attempt may mend.
AGAIN = frozenset([408, 409, 425, 429, 500, 502, 503, 504, 529])
LONGEST_PAUSE, PAUSE = 60.0, 1.0
GOOD = 300


class Outcome(msgspec.Struct, frozen=True):
    """How one line ended."""

    number: int
    failed: bool
    content: str


class Places(NamedTuple):
    """Where lines go, and answers and records are kept, the same for all batches of a node."""

    edge: Edge
    database: Database
    settings: Settings
    figures: BatchFigures
    records: RecordFeed


class Lines:
    """Sends the lines of one batch."""

    def __init__(self, row: Row, headers: dict[str, str], places: Places) -> None:
        """Begin with nothing under way; `stop` says that no further line is to begin."""
        self.stop = asyncio.Event()
        self._row = row
        self._headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge, self._database, self._settings, self._figures, _ = places
        self._room = asyncio.Semaphore(places.settings.batches.requests)
        self._begun: deque[float] = deque(maxlen=places.settings.batches.requests)
        self._waiting: list[Outcome] = []
        self._writing = asyncio.Lock()
        self._left = False

    async def run(self, given: Input) -> str:
        """Send every line that has no answer yet, until no further one is to begin; say how that ended."""
        done = await self._done()
        async with asyncio.TaskGroup() as under_way:
            async for number, line in given.requests():
                if number in done:
                    continue
                await self._room.acquire()
                if not await self._turn():
                    self._room.release()
                    self._left = True
                    break
                under_way.create_task(self._line(number, line))
        return EXPIRED if self._left else COMPLETED

    async def _done(self) -> set[int]:
        query = select(batch_lines.c.number).where(batch_lines.c.batch_id == self._row["id"])
        async with self._database.reading() as connection:
            return set(await connection.scalars(query))

    async def _turn(self) -> bool:
        """Wait until one more may begin; not, where none is to begin any more."""
        loop = asyncio.get_running_loop()
        if len(self._begun) == self._settings.batches.requests:
            wait = self._begun[0] + self._settings.batches.interval_ms / 1000 - loop.time()
            await self._pause(wait)
        self._begun.append(loop.time())
        return not self.stop.is_set()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await rung(self.stop, seconds)

    async def _line(self, number: int, line: Line) -> None:
        try:
            content, failed = await self._answered(number, line)
            await self._keep(Outcome(number, failed, content))
        except _Unanswered:
            self._left = True
        finally:
            self._room.release()

    async def _answered(self, number: int, line: Line) -> tuple[str, bool]:
        """Send a line until an answer is good, or so often that no other is to be expected."""
        body, attempt = msgspec.json.encode(line.body), 0
        while True:
            reply, lost = None, ""
            try:
                call = Call("POST", line.url, self._headers, body, JSON)
                reply = await self._edge.ask(call, self._settings.batches.answer_bytes)
            except AwayError:
                # It has not been asked. Another process will soon be there, or this one ends.
                if self.stop.is_set():
                    raise _Unanswered from None
                await self._pause(PAUSE)
                continue
            except LostError as error:
                lost = error.message
            attempt += 1
            may_again = attempt <= self._settings.batches.retries and not self.stop.is_set()
            if not may_again or (reply and reply.status not in AGAIN):
                return self._told(number, line, reply, lost)
            await self._pause(_wait(attempt, reply))

    def _told(self, number: int, line: Line, reply: Reply | None, lost: str) -> tuple[str, bool]:
        answer = None
        if reply:
            answer = {"status_code": reply.status, "request_id": reply.request_id, "body": _body(reply.body)}
        error = None if reply else {"code": "no_answer", "message": lost}
        return told(self._row["id"], number, line.custom_id, answer, error), not (reply and reply.status < GOOD)

    async def _keep(self, outcome: Outcome) -> None:
        """Write what came; those that come meanwhile are written together."""
        self._waiting.append(outcome)
        async with self._writing:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                await self._write(taken)

    async def _write(self, taken: list[Outcome]) -> None:
        failed = sum(outcome.failed for outcome in taken)
        counts = {
            "completed": batches.c.completed + len(taken) - failed,
            "failed": batches.c.failed + failed,
        }
        rows = [{"batch_id": self._row["id"], **msgspec.structs.asdict(outcome)} for outcome in taken]
        while True:
            try:
                async with self._database.writing() as connection:
                    await connection.execute(insert(batch_lines), rows)
                    await connection.execute(update(batches).where(batches.c.id == self._row["id"]).values(counts))
            except UnavailableError as error:
                log.warning("answers of the batch %s wait for the store: %s", self._row["id"], error)
                await asyncio.sleep(PAUSE)
            else:
                self._figures.answered += len(taken) - failed
                self._figures.failed += failed
                return


class _Unanswered(Exception):  # noqa: N818 - it is no fault
    """A line was not sent, and is not to be any more."""


def line_id(batch_id: str, number: int) -> UUID:
    """Name a line. The same each time: what is written twice can be told from two answers."""
    return uuid5(NAMESPACE_URL, f"{batch_id} {number}")


def told(batch_id: str, number: int, custom_id: str, response: object, error: object) -> str:
    """Write the line of an output."""
    name = line_id(batch_id, number).hex
    line = {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line).decode()


def _body(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")


def _wait(attempt: int, reply: Reply | None) -> float:
    asked = reply.retry_after if reply else ""
    if asked.isdecimal():
        return min(float(asked), LONGEST_PAUSE)
    return min(2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads, it hides nothing
