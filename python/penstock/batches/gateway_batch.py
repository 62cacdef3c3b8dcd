"""A batch that the gateway runs itself. Sends its lines to the edge with bounded concurrency and saves each result
before it is counted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from sqlalchemy import insert, select, update

from penstock.batches.batch_object import COMPLETED, EXPIRED
from penstock.batches.edge_messages import JSON_MEDIA_TYPE, EdgeRequest
from penstock.batches.files import BATCH
from penstock.batches.hook_summary import HookSummary
from penstock.errors import EdgeUnavailableError, IncompleteResponseError, PenstockError, UnavailableError
from penstock.job_loop import wait_for_event
from penstock.store.job_tables import batch_lines, batches

if TYPE_CHECKING:
    from penstock.batches.edge_client import EdgeClient
    from penstock.batches.edge_messages import EdgeResponse
    from penstock.batches.input import BatchInput, BatchLine
    from penstock.logs.spooled_records import SpooledRecords
    from penstock.metrics import BatchMetrics
    from penstock.settings import Settings
    from penstock.store.database import Database
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

# Response statuses after which a line is sent again.
RETRYABLE_STATUSES = frozenset([408, 409, 425, 429, 500, 502, 503, 504, 529])
LONGEST_PAUSE, PAUSE = 60.0, 1.0
SUCCESS_STATUS_END = 300


class LineOutcome(msgspec.Struct, frozen=True):
    """Result of one line: its number, whether it failed, and its output line as JSON."""

    number: int
    failed: bool
    content: str


class BatchDependencies(NamedTuple):
    """Dependencies that all batches of a node share: the edge client, the database, settings, metrics and records."""

    edge: EdgeClient
    database: Database
    settings: Settings
    metrics: BatchMetrics
    records: SpooledRecords


class GatewayBatch:
    """Sends the lines of one batch and saves their results."""

    def __init__(self, row: Row, headers: dict[str, str], dependencies: BatchDependencies) -> None:
        """Starts with no line in flight. After the event `stop` is set, no further line is sent."""
        self.stop = asyncio.Event()
        self._row = row
        self._headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge, self._database, self._settings, self._figures, _ = dependencies
        self._room = asyncio.Semaphore(dependencies.settings.batches.concurrency)
        self._begun: deque[float] = deque(maxlen=dependencies.settings.batches.concurrency)
        self._waiting: list[tuple[LineOutcome, object]] = []
        self._details: dict[str, Any] = row["details"] or {}
        self._hook_summary = HookSummary.load(self._details)
        self._writing = asyncio.Lock()
        self._left = False

    async def run(self, batch_input: BatchInput) -> str:
        """Sends every line that has no result yet, until `stop` is set. Returns `completed`, or `expired` if lines were
        left over.
        """
        done = await self._load_finished_numbers()
        failure: PenstockError | None = None
        async with asyncio.TaskGroup() as under_way:
            try:
                await self._start_lines(batch_input, done, under_way)
            except PenstockError as error:
                # The rest of the input cannot be read. The error is raised after the lines in flight have completed.
                failure = error
        if failure:
            raise failure
        return EXPIRED if self._left else COMPLETED

    async def _start_lines(self, batch_input: BatchInput, done: set[int], under_way: asyncio.TaskGroup) -> None:
        async for number, line in batch_input.requests():
            if number in done:
                continue
            await self._room.acquire()
            if not await self._wait_for_rate_slot():
                self._room.release()
                self._left = True
                break
            under_way.create_task(self._process_line(number, line))

    async def _load_finished_numbers(self) -> set[int]:
        query = select(batch_lines.c.number).where(batch_lines.c.batch_id == self._row["id"])
        async with self._database.read_connection() as connection:
            return set(await connection.scalars(query))

    async def _wait_for_rate_slot(self) -> bool:
        """Waits until another line may start: at most `batches.concurrency` lines start in each `batches.interval_ms`.
        Returns false if no further line may start.
        """
        loop = asyncio.get_running_loop()
        if len(self._begun) == self._settings.batches.concurrency:
            wait = self._begun[0] + self._settings.batches.interval_ms / 1000 - loop.time()
            await self._sleep_until_stopped(wait)
        self._begun.append(loop.time())
        return not self.stop.is_set()

    async def _sleep_until_stopped(self, seconds: float) -> None:
        if seconds > 0:
            await wait_for_event(self.stop, seconds)

    async def _process_line(self, number: int, line: BatchLine) -> None:
        try:
            outcome, hook_results = await self._send_with_retries(number, line)
            await self._save_outcome(outcome, hook_results)
        except _LineNotSent:
            self._left = True
        finally:
            self._room.release()

    async def _send_with_retries(self, number: int, line: BatchLine) -> tuple[LineOutcome, object]:
        """Sends a line until it succeeds or its retries are used up. Returns its outcome, and the results of its
        guardrails.
        """
        body, attempt = msgspec.json.encode(line.body), 0
        while True:
            reply, failure = None, ""
            try:
                call = EdgeRequest("POST", line.url, self._headers, body, JSON_MEDIA_TYPE)
                reply = await self._edge.send_request(call, self._settings.batches.response_bytes)
            except EdgeUnavailableError:
                # The edge did not process the line, so this does not count as an attempt. Either a new edge process
                # starts soon, or this process ends.
                if self.stop.is_set():
                    raise _LineNotSent from None
                await self._sleep_until_stopped(PAUSE)
                continue
            except IncompleteResponseError as error:
                failure = error.message
            attempt += 1
            may_retry = attempt <= self._settings.batches.max_retries and not self.stop.is_set()
            if not may_retry or (reply and reply.status not in RETRYABLE_STATUSES):
                return self._format_outcome(number, line, reply, failure)
            await self._sleep_until_stopped(_retry_delay(attempt, reply))

    def _format_outcome(
        self, number: int, line: BatchLine, reply: EdgeResponse | None, failure: str
    ) -> tuple[LineOutcome, object]:
        body = _decode_body(reply.body) if reply else None
        response = {"status_code": reply.status, "request_id": reply.request_id, "body": body} if reply else None
        error = None if reply else {"code": "no_answer", "message": failure}
        content = format_output_line(self._row["id"], number, line.custom_id, response, error)
        failed = not (reply and reply.status < SUCCESS_STATUS_END)
        hook_results = cast("dict[str, object]", body).get("hook_results") if isinstance(body, dict) else None
        return LineOutcome(number, failed, content), hook_results

    async def _save_outcome(self, outcome: LineOutcome, hook_results: object) -> None:
        """Saves a result. Results that arrive during a write are saved together in the next one."""
        self._waiting.append((outcome, hook_results))
        async with self._writing:
            while self._waiting:
                used, self._waiting = self._waiting, []
                for _, results in used:
                    self._hook_summary.add(results)
                await self._write_outcomes([outcome for outcome, _ in used])

    async def _write_outcomes(self, used: list[LineOutcome]) -> None:
        failed = sum(outcome.failed for outcome in used)
        counts: dict[str, Any] = {
            "completed": batches.c.completed + len(used) - failed,
            "failed": batches.c.failed + failed,
        }
        if not self._hook_summary.is_empty:
            counts["details"] = {**self._details, "hook_results": msgspec.to_builtins(self._hook_summary)}
        rows = [{"batch_id": self._row["id"], **msgspec.structs.asdict(outcome)} for outcome in used]
        while True:
            try:
                async with self._database.write_transaction() as connection:
                    await connection.execute(insert(batch_lines), rows)
                    await connection.execute(update(batches).where(batches.c.id == self._row["id"]).values(counts))
            except UnavailableError as error:
                log.warning("results of batch %s wait for the store: %s", self._row["id"], error)
                await asyncio.sleep(PAUSE)
            else:
                self._figures.succeeded_lines += len(used) - failed
                self._figures.failed_lines += failed
                return


class _LineNotSent(Exception):  # noqa: N818 - it is no error
    """The line was not sent and will not be, because the batch is stopping."""


def line_id(batch_id: str, number: int) -> UUID:
    """Returns the id of a line. The id depends only on the batch and the number, so that a line written twice is
    recognised as a duplicate.
    """
    return uuid5(NAMESPACE_URL, f"{batch_id} {number}")


def format_output_line(batch_id: str, number: int, custom_id: str, response: object, error: object) -> str:
    """Returns one line of the batch's output file as JSON."""
    name = line_id(batch_id, number).hex
    line = {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line).decode()


def _decode_body(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")


def _retry_delay(attempt: int, reply: EdgeResponse | None) -> float:
    retry_after = reply.retry_after if reply else ""
    if retry_after.isdecimal():
        return min(float(retry_after), LONGEST_PAUSE)
    return min(2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads retries, and hides nothing
