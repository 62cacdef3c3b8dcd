"""The log worker: a process that reads the spool, fills the record file and the log store, and answers queries."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import re
import secrets
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from penstock.blobs.store import open_body_bucket
from penstock.engine import BurstTicker
from penstock.errors import NotFoundError, UnavailableError
from penstock.fair_slots import FairSlots
from penstock.logs import messages
from penstock.logs.batch import BodyLocation
from penstock.logs.breaker import StorageBreaker
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.logs.ingest import StoreIngest
from penstock.logs.ledger_state import read_ledger_positions
from penstock.logs.messages import ErrorMessage, QueryRequest
from penstock.logs.observed_records import RecordObservers
from penstock.logs.packs import PackStore, PackWriter, encode_text
from penstock.logs.query import GetQuery, LogFilterError, LogFilters
from penstock.logs.record_file import RecordFileConsumer
from penstock.logs.spool_reader import delete_segments, find_recent_segment
from penstock.logs.spool_writer import CONTROL_WRITER, list_segments, segment_name
from penstock.logs.tail import LiveTail, TooManyTailsError
from penstock.process import TIME_SLICE_SECONDS
from penstock.settings.log_store import DUCKDB
from penstock.settings.otel import find_ignored_values, find_traces_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from penstock.logs.engines.protocol import LogEngine
    from penstock.logs.otel_export import OtelExporter
    from penstock.logs.query import LogQuery, Restriction
    from penstock.logs.spool_reader import SpoolFollower
    from penstock.settings import Settings

log = logging.getLogger("penstock")

RECORD_FILE_SECONDS, LONGEST_IDLE_SECONDS = 0.05, 0.2
# Intervals between inserts. Fewer, larger inserts cost less, and ClickHouse recommends at most one per second.
DUCKDB_INSERT_SECONDS, BUSY_INSERT_SECONDS = 0.25, 1.0
# After a batch of at least this size, `BUSY_INSERT_SECONDS` is the interval, so that batches become larger. A batch costs
# as much CPU as about 500 of its records.
BUSY_BATCH_RECORDS = 20
REOPEN_SECONDS = 5.0
CLEANUP_SECONDS, RETENTION_SECONDS = 1.0, 3600.0
# Time limits at shutdown: for uploads of bodies, and for reading the spool. Bodies that remain are uploaded after the
# next start.
LAST_UPLOADS_SECONDS, LAST_READ_SECONDS = 2.0, 3.0
HEARTBEAT_SECONDS = 10.0
# Maximum share of the spool that is stored for the usage ledger while the control process does not read it.
MAX_LEDGER_SHARE = 0.5
# Maximum number of queries at once: of all tenants, of one organisation, and of one scope in it, such as a workspace.
MAX_QUERIES, MAX_QUERIES_PER_ORGANISATION, MAX_QUERIES_PER_SCOPE = 4, 3, 2
BODIES_TIMEOUT_SECONDS = 10.0
# A live tail ends if its client reads nothing for this time, so that other clients can open one.
TAIL_WRITE_SECONDS = 60.0
MAX_REQUEST_BYTES = 4 * 1024 * 1024
BUSY_MESSAGE = (
    f"other queries are running: at most {MAX_QUERIES_PER_SCOPE} at once of a workspace, and {MAX_QUERIES} of all; "
    "try again later"
)
# Age up to which segments of the control process are not deleted. After a restart, the control process looks in them
# for records that it wrote before.
CONTROL_RECORDS_SECONDS = 600
NODE_NAME_FILE = "node-name"
# Spool folder of an edge worker that started while its predecessor still ran.
TEMPORARY_WRITER_PATTERN = re.compile(r"edge-\d+-\d+")


class LogWorker:
    """Reads the spool in a thread for each consumer, and serves requests on the event loop."""

    def __init__(self, settings: Settings, engine: LogEngine | None = None) -> None:
        """Prepares the storage of bodies. Without `engine`, creates the engine that the settings define."""
        self._settings = settings
        self._engine = engine or (make_engine(settings) if settings.log_store.enabled else None)
        self._is_open = False
        self._stop = threading.Event()
        self._observers = RecordObservers(settings)
        self._record_file: RecordFileConsumer | None = None
        if settings.has_record_file:
            self._record_file = RecordFileConsumer(settings.records, settings.spool_folder, self._observers.observe)
        self._record_file_clock = LagClock()
        self._ingest: StoreIngest | None = None
        self._ingest_clock = LagClock()
        self._otel = make_exporter(settings)
        self._bucket = open_body_bucket(settings)
        self._packs = PackWriter(
            f"{settings.log_store_folder}/{'waiting' if self._bucket else 'bodies'}",
            settings.log_store.format,
            is_remote=self._bucket is not None,
            limit_bytes=settings.records.spool_bytes,
        )
        breaker = StorageBreaker(
            settings.log_store.connection_failure_threshold, settings.log_store.connection_backoff_ms / 1000
        )
        self._store = PackStore(self._packs, self._bucket, breaker)
        self._tail = LiveTail()
        self._queries = FairSlots(MAX_QUERIES, MAX_QUERIES_PER_ORGANISATION, MAX_QUERIES_PER_SCOPE)
        self._spool_bytes = 0
        self._spool_age = 0.0
        self._failed_seals = 0

    async def run(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Runs until `stop` is set, then reads the rest of the spool."""
        loop = asyncio.get_running_loop()
        self._tail = LiveTail(loop)
        runner = web.AppRunner(self._build_app(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        threads: list[threading.Thread] = []
        if self._record_file:
            threads.append(
                threading.Thread(target=self._run_record_file, args=(self._record_file,), name="record file")
            )
        if self._engine:
            threads.append(threading.Thread(target=self._run_ingest, args=(self._engine,), name="log store"))
        for thread in threads:
            thread.start()
        if self._otel:
            self._otel.start(self._stop)
        jobs = [self._store.run_uploads, self._run_cleanup, *([self._run_retention] if self._engine else [])]
        tasks = [loop.create_task(_run_forever(job)) for job in jobs]
        try:
            await stop.wait()
        finally:
            self._stop.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            if self._otel:
                await asyncio.to_thread(self._otel.join)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._bucket:
                await self._store.upload_rest(LAST_UPLOADS_SECONDS)
                await self._bucket.close()
            await asyncio.to_thread(self._clean_up)
            await runner.cleanup()
            if self._engine and self._is_open:
                await asyncio.to_thread(self._engine.close)

    # ── consumers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_record_file(self, consumer: RecordFileConsumer) -> None:
        pause = RECORD_FILE_SECONDS
        while not self._stop.wait(pause):
            count = _run_safely(consumer.run_once, "the record file")
            self._record_file_clock.update(is_current=not count)
            pause = RECORD_FILE_SECONDS if count else min(LONGEST_IDLE_SECONDS, pause * 1.2)
        self._read_rest(consumer.follower, consumer.run_once)
        _run_safely(lambda: consumer.run_once(is_final=True), "the record file")
        consumer.close()

    def _run_ingest(self, engine: LogEngine) -> None:
        while not self._is_open:
            try:
                engine.open()
                self._ingest = StoreIngest(
                    engine,
                    self._settings.spool_folder,
                    self._packs,
                    self._tail.publish,
                    keeps_inline_data=self._settings.records.inline_data == "keep",
                    observers=None if self._record_file else self._observers,
                )
                self._ingest.announce_burst = BurstTicker(TIME_SLICE_SECONDS).announce_burst
                self._is_open = True
            except Exception as error:  # noqa: BLE001 - the data plane continues without a log store
                log.error("the log store cannot be opened: %s", error)  # noqa: TRY400 - the message is enough without a traceback
                if self._stop.wait(REOPEN_SECONDS):
                    return
        ingest = self._ingest
        if ingest is None:
            return
        url = self._settings.log_store.url
        shortest = BUSY_INSERT_SECONDS if url and url.reveal() != DUCKDB else DUCKDB_INSERT_SECONDS
        pause = shortest
        while not self._stop.wait(pause):
            count = _run_safely(ingest.run_once, "the log store")
            pause = BUSY_INSERT_SECONDS if count >= BUSY_BATCH_RECORDS else shortest
            self._ingest_clock.update(is_current=not count and not ingest.is_failing)
        self._read_rest(ingest.follower, ingest.run_once)
        ingest.close()

    def _read_rest(self, follower: SpoolFollower[Any], run_once: Callable[[], int]) -> None:
        """Reads the rest of the spool, and waits briefly for writers with open requests to exit."""
        deadline = time.monotonic() + LAST_READ_SECONDS
        while time.monotonic() < deadline:
            count = _run_safely(run_once, "the spool")
            if count:
                continue
            if not any(reader.open for reader in follower.readers.values()):
                return
            time.sleep(0.1)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run_cleanup(self) -> None:
        while True:
            await asyncio.to_thread(self._clean_up)
            await asyncio.sleep(CLEANUP_SECONDS)

    def _clean_up(self) -> None:
        """Deletes segments that no consumer needs any more, and measures the size of the others."""
        spool = Path(self._settings.spool_folder)
        followers: list[SpoolFollower[Any]] = [self._record_file.follower] if self._record_file else []
        if self._engine and not self._ingest:
            followers = []
        elif self._ingest:
            followers.append(self._ingest.follower)
        if followers and self._otel:
            followers.append(self._otel.follower)
        ledger = self._find_ledger_segments()
        total = 0
        oldest: int | None = None
        for folder in list[Path](spool.iterdir()) if spool.is_dir() else []:
            if followers:
                needed = min(follower.first_needed_segment(folder.name) for follower in followers)
                delete_segments(folder, min(needed, ledger(folder.name), self._first_recent_segment(folder)))
            numbers = list_segments(folder)
            for number in numbers:
                with suppress(FileNotFoundError):
                    total += (folder / segment_name(number)).stat().st_size
            if numbers:
                oldest = min(numbers[0], oldest or numbers[0])
            elif followers and TEMPORARY_WRITER_PATTERN.fullmatch(folder.name) and _is_unused(folder):
                shutil.rmtree(folder, ignore_errors=True)
        self._spool_bytes = total
        # The number of a segment is the Unix time at which it was created.
        self._spool_age = max(0.0, time.time() - oldest) if oldest else 0.0

    def _find_ledger_segments(self) -> Callable[[str], float]:
        """Returns a function that returns the oldest segment of a writer that the usage ledger still needs. If the
        spool is larger than `MAX_LEDGER_SHARE`, the ledger's needs are ignored.
        """
        positions = read_ledger_positions(self._settings.limits_folder)
        if positions is None or self._spool_bytes > self._settings.records.spool_bytes * MAX_LEDGER_SHARE:
            return lambda _writer: float("inf")
        return lambda writer: positions[writer].segment if writer in positions else 0

    def _first_recent_segment(self, folder: Path) -> float:
        """Returns the number of the oldest segment in which the control process may still look for its own records."""
        is_full = self._spool_bytes > self._settings.records.spool_bytes * MAX_LEDGER_SHARE
        if folder.name != CONTROL_WRITER or is_full:
            return float("inf")
        return find_recent_segment(folder, time.time() - CONTROL_RECORDS_SECONDS)

    async def _run_retention(self) -> None:
        while True:
            if self._is_open and self._engine:
                await self._delete_and_seal(self._engine)
                await asyncio.sleep(RETENTION_SECONDS)
            await asyncio.sleep(REOPEN_SECONDS)

    async def _delete_and_seal(self, engine: LogEngine) -> None:
        """Deletes what is older than the settings allow, then seals days. If a day cannot be sealed, this is tried again
        after `RETENTION_SECONDS`, because each attempt sorts the whole day.
        """
        now = dt.datetime.now(dt.UTC)
        records = (now - dt.timedelta(days=self._settings.log_store.keep_days)).date()
        bodies = (now - dt.timedelta(days=self._settings.log_store.keep_bodies_days)).date()
        # Deletes first, because sealing needs space, and fails on a full disk.
        try:
            await self._store.delete_before(bodies)
        except (UnavailableError, OSError) as error:
            log.warning("bodies cannot be deleted, which is tried again in an hour: %s", error)
        await asyncio.to_thread(engine.drop_before, records, bodies)
        try:
            await asyncio.to_thread(engine.seal_days, now)
        except Exception as error:  # noqa: BLE001 - the records stay in the table of the latest days
            self._failed_seals += 1
            log.error("the records of a day cannot be moved to files, which is tried again in an hour: %s", error)  # noqa: TRY400 - the message is enough without a traceback

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post(messages.QUERY_PATH, self._handle_query)
        app.router.add_get(messages.BODIES_PATH, self._handle_bodies)
        app.router.add_post(messages.TAIL_PATH, self._handle_tail)
        app.router.add_get(messages.METRICS_PATH, self._handle_metrics)
        app.router.add_get(messages.REQUEST_METRICS_PATH, self._handle_request_metrics)
        return app

    async def _handle_query(self, request: web.Request) -> web.Response:
        try:
            request_body = msgspec.json.decode(await request.read(), type=QueryRequest)
            return _respond(await self._run_query(request_body))
        except (msgspec.MsgspecError, LogFilterError) as error:
            return _respond(ErrorMessage(str(error)), messages.INVALID)
        except QueryTooLargeError as error:
            return _respond(ErrorMessage(str(error)), messages.TOO_LARGE)
        except LogEngineError as error:
            return _respond(ErrorMessage(str(error)), messages.UNAVAILABLE)

    async def _run_query(self, requested: QueryRequest) -> dict[str, Any]:
        if not self._is_open or self._engine is None:
            message = "the log store is not open yet"
            raise LogEngineError(message)
        deadline = time.monotonic() + requested.timeout_seconds
        try:
            async with asyncio.timeout(requested.timeout_seconds):
                slot = await self._queries.take(*list_scopes(requested.query))
        except TimeoutError:
            raise LogEngineError(BUSY_MESSAGE) from None
        # The client waits only until the deadline, so the time in the queue shortens the time of the query.
        with slot:
            return await asyncio.to_thread(self._engine.run, requested.query, deadline - time.monotonic())

    async def _handle_bodies(self, request: web.Request) -> web.Response:
        query = GetQuery(
            organisation_id=request.query.get("organisation_id", ""),
            id=request.match_info["id"],
            workspace_ids=request.query.getall("workspace_id", None),
        )
        try:
            answer = await self._run_query(QueryRequest(query, BODIES_TIMEOUT_SECONDS))
            location = answer.get("bodies")
            bodies = await self._store.read(msgspec.convert(location, BodyLocation)) if location else {}
        except NotFoundError:
            bodies = {messages.EXPIRED: b""}
        except (LogEngineError, UnavailableError) as error:
            return _respond(ErrorMessage(str(error)), messages.UNAVAILABLE)
        return _respond({name: encode_text(body) for name, body in bodies.items()})

    async def _handle_tail(self, request: web.Request) -> web.StreamResponse:
        try:
            filters = msgspec.json.decode(await request.read(), type=LogFilters)
        except msgspec.MsgspecError as error:
            return _respond(ErrorMessage(str(error)), messages.INVALID)
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        try:
            with self._tail.subscribe(filters) as subscriber, suppress(ConnectionError, TimeoutError):
                await response.prepare(request)
                while True:
                    event = await subscriber.next_event(HEARTBEAT_SECONDS)
                    async with asyncio.timeout(TAIL_WRITE_SECONDS):
                        await response.write(msgspec.json.encode(event) + b"\n")
        except TooManyTailsError as error:
            return _respond(ErrorMessage(str(error)), messages.UNAVAILABLE)
        return response

    async def _handle_metrics(self, _request: web.Request) -> web.Response:
        return _respond(self.metrics())

    async def _handle_request_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=await asyncio.to_thread(self._observers.metrics.render))

    def metrics(self) -> dict[str, float]:
        """Returns the metrics by name."""
        ingest, files = self._ingest, self._record_file
        followers = [consumer.follower for consumer in (files, ingest) if consumer]
        readers = [reader for follower in followers for reader in follower.readers.values()]
        metrics: dict[str, float] = {
            "log_worker_up": 1,
            "log_spool_bytes": self._spool_bytes,
            "log_spool_age_seconds": round(self._spool_age, 3),
            "log_spool_damaged": max(
                (sum(reader.broken_segments for reader in follower.readers.values()) for follower in followers),
                default=0,
            ),
            "record_file_failures": files.failed if files else 0,
            "log_refused_records_dropped": self._observers.dropped,
            "log_tail_subscribers": self._tail.subscribers,
            "request_metrics_label_sets": self._observers.metrics.label_sets,
            "request_metrics_overflows": self._observers.metrics.overflows,
            "request_metrics_invalid": self._observers.metrics.invalid,
            "log_bodies_dropped": self._packs.dropped + sum(reader.dropped_bodies for reader in readers),
        }
        if files:
            metrics["record_file_lag_seconds"] = self._record_file_clock.seconds()
        if self._engine:
            metrics |= {
                "log_store_up": float(self._is_open and not (ingest and ingest.is_failing)),
                "log_records_stored": ingest.inserted if ingest else 0,
                "log_records_invalid": ingest.invalid if ingest else 0,
                "log_store_failures": ingest.failed if ingest else 0,
                "log_worker_lag_seconds": self._ingest_clock.seconds(),
                "log_seal_failures": self._failed_seals,
            }
        if self._otel:
            metrics |= self._otel.metrics()
        if self._bucket:
            metrics |= {
                "log_bodies_waiting_bytes": self._packs.waiting_bytes,
                "log_uploads": self._store.uploaded,
                "log_upload_failures": self._store.failed_uploads,
                "log_breaker_state": self._store.breaker.state.value,
            }
        return metrics


def list_scopes(query: LogQuery) -> tuple[str, str]:
    """Returns the organisation of a query, and the scope in it that shares query slots: workspaces and a user."""
    limits: Any = getattr(query, "filters", query)
    workspaces: list[str] | None = limits.workspace_ids
    restriction: Restriction | None = getattr(limits, "restricted_to", None)
    users = restriction.user_ids if restriction else []
    return limits.organisation_id, " ".join([*(["*"] if workspaces is None else workspaces), *users])


class LagClock:
    """Measures how long a consumer has been behind, since it last had read everything."""

    def __init__(self) -> None:
        """Starts without a lag."""
        self._behind_since: float | None = None

    def update(self, *, is_current: bool) -> None:
        """Updates the lag. `is_current` is true if the consumer has read everything now."""
        if is_current:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = time.monotonic()

    def seconds(self) -> float:
        """Returns the lag in seconds."""
        since = self._behind_since
        return 0.0 if since is None else round(time.monotonic() - since, 3)


def make_engine(settings: Settings) -> LogEngine:
    """Creates the engine of the log store. Loads only the module that is needed."""
    url = settings.log_store.url
    if url and url.reveal() != DUCKDB:
        from penstock.logs.engines.clickhouse import ClickHouseEngine

        days = {"keep_days": settings.log_store.keep_days, "keep_bodies_days": settings.log_store.keep_bodies_days}
        return ClickHouseEngine(url.reveal(), read_node_name(Path(settings.log_store_folder)), **days)
    from penstock.logs.engines.duckdb import DuckDbEngine

    return DuckDbEngine(Path(settings.log_store_folder) / "records")


def read_node_name(folder: Path) -> str:
    """Returns the name under which this node saves its positions in a shared log store.

    It is stored in a folder of the node. Nodes may have the same host name, and a container gets a new one at each
    start.
    """
    path = folder / NODE_NAME_FILE
    with suppress(FileNotFoundError):
        # The file may be empty after a crash.
        if saved := path.read_text().strip():
            return saved
    name = f"{os.uname().nodename}-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(name)
    draft.replace(path)
    return name


def make_exporter(settings: Settings) -> OtelExporter | None:
    """Creates the exporter of spans; `None` if no collector is configured, or if it cannot be used."""
    if not find_traces_url(settings.otel):
        return None
    from penstock.logs.otel_export import OtelExporter

    for ignored in find_ignored_values(settings.otel):
        log.warning("a setting is ignored: %s", ignored)
    try:
        return OtelExporter(settings)
    except (OSError, ValueError) as error:
        # For example, a file of certificates is not valid. The log worker continues without the export.
        log.error("spans cannot be exported: %s", error)  # noqa: TRY400 - the message is enough without a traceback
        return None


async def _run_forever(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a job again after it failed."""
    while True:
        try:
            await job()
        except Exception:
            log.exception("a job of the log worker failed, and begins again")
        await asyncio.sleep(REOPEN_SECONDS)


def _run_safely(run_once: Callable[[], int], name: str) -> int:
    try:
        return run_once()
    except Exception:
        log.exception("reading the spool for %s failed, and is repeated", name)
        time.sleep(1)
        return 0


def _is_unused(folder: Path) -> bool:
    """Returns true if nothing has changed in a folder for a while, so that its writer is gone."""
    with suppress(FileNotFoundError):
        return time.time() - folder.stat().st_mtime > 60  # noqa: PLR2004 - one minute
    return False


def _respond(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
