"""Log store of one node in DuckDB: a file with the latest days, Parquet files for older days, and a full-text index."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from penstock.logs.batch import Position
from penstock.logs.engines import duckdb_schema
from penstock.logs.engines.duckdb_days import SealedDays
from penstock.logs.engines.duckdb_fragments import DuckDbFragments
from penstock.logs.engines.lines import PreparedBatch, clean_line, prepare_batch
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.logs.engines.runner import run_query
from penstock.logs.engines.text_index import TextIndex

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path

    from penstock.logs.batch import RecordBatch
    from penstock.logs.query import LogQuery

MEMORY_LIMIT = "256MB"
MAX_TEMPORARY_SIZE = "4GB"
# DuckDB writes its log back after this many bytes.
CHECKPOINT_THRESHOLD = "64MB"
INTERRUPT_INTERVAL_SECONDS = 0.05
INSERT_POSITION = "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)"


class DuckDbEngine:
    """Log store in a folder. Only one process may open it."""

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        """Stores the folder, which `open` creates."""
        self._folder = folder
        self._memory_limit = memory_limit
        self._text = TextIndex(folder / "text")
        self._connection: duckdb.DuckDBPyConnection | None = None

    def open(self) -> None:
        """Opens the file, which replays the writes of a killed process, and migrates the schema."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = duckdb.connect(
                self._folder / "records.duckdb",
                config={
                    "memory_limit": self._memory_limit,
                    "threads": 1,
                    "temp_directory": str(self._folder / "temporary"),
                    "max_temp_directory_size": MAX_TEMPORARY_SIZE,
                    "checkpoint_threshold": CHECKPOINT_THRESHOLD,
                    "preserve_insertion_order": False,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                },
            )
            self._connection.execute("SET TimeZone = 'UTC'")
            duckdb_schema.create_tables(self._connection)
            self._days = SealedDays(self._folder / "days")
            self._days.open(self._connection)
            self._text.open()
        except (duckdb.Error, OSError) as error:
            message = f"the log store {self._folder} cannot be opened: {error}"
            raise LogEngineError(message) from error

    def close(self) -> None:
        """Closes the files."""
        self._text.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def positions(self) -> dict[str, Position]:
        """Returns how far each spool was inserted, by writer."""
        with self._transaction() as cursor:
            rows = cursor.execute('SELECT writer, segment, "offset" FROM positions').fetchall()
        return {writer: Position(segment, offset) for writer, segment, offset in rows}

    def insert(self, batch: RecordBatch, positions: Mapping[str, Position]) -> int:
        """Inserts a batch and the positions after it in one transaction."""
        if _is_plain(batch):
            try:
                with self._transaction() as cursor:
                    _insert_records(cursor, batch.node, batch.records)
                    _save_positions(cursor, positions)
            except (duckdb.InvalidInputException, duckdb.ConversionException):
                # A line that is not valid. It is found below.
                pass
            else:
                return 0
        prepared = prepare_batch(batch)
        # Existing words are ignored, so the index may be ahead of the transaction.
        self._text.add(
            (identifier, head.organisation_id or "", _utc_day(head.created_at), text)
            for identifier, text in batch.texts.items()
            if (head := prepared.heads.get(identifier))
        )
        try:
            self._insert_prepared(batch, prepared, positions)
        except (duckdb.InvalidInputException, duckdb.ConversionException):
            # One value of a wrong type must not stop all later records.
            prepared.lines = {identifier: clean_line(line) for identifier, line in prepared.lines.items()}
            self._insert_prepared(batch, prepared, positions)
        return prepared.invalid_count

    def _insert_prepared(self, batch: RecordBatch, prepared: PreparedBatch, positions: Mapping[str, Position]) -> None:
        with self._transaction() as cursor:
            if prepared.lines:
                if batch.may_repeat:
                    for identifier in self._find_known(cursor, prepared):
                        prepared.lines.pop(identifier)
                _insert_records(cursor, batch.node, prepared.lines.values())
            _insert_lines(cursor, duckdb_schema.INSERT_AMENDMENTS, _encode_amendments(prepared))
            _insert_lines(cursor, duckdb_schema.INSERT_FEEDBACK, map(msgspec.json.encode, prepared.feedback))
            _save_positions(cursor, positions)

    def _find_known(self, cursor: duckdb.DuckDBPyConnection, prepared: PreparedBatch) -> set[uuid.UUID]:
        """Finds records of the batch that were inserted before, because the batch was sent again."""
        first, last = (moment.replace(tzinfo=None) for moment in map(_to_utc, prepared.time_range()))
        source = self._days.render_source(
            cursor, '"created_at" BETWEEN $first AND $last', first.date(), last.date(), columns="id"
        )
        rows = cursor.execute(
            f"SELECT id FROM {source} WHERE id IN (SELECT unnest($ids))",
            {"first": first, "last": last, "ids": list(prepared.lines)},
        )
        return {row[0] for row in rows.fetchall()}

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query in one snapshot of the store, and interrupts it when its time is over."""
        try:
            return self._run_once(query, timeout_seconds)
        except duckdb.IOException:
            # Retention deleted a file that this query was about to open.
            with _translated_errors(timeout_seconds):
                return self._run_once(query, timeout_seconds)

    def _run_once(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        with self._transaction() as cursor, _translated_errors(timeout_seconds), _deadline(cursor, timeout_seconds):
            end = time.monotonic() + timeout_seconds
            return run_query(DuckDbFragments(cursor, self._days, self._text, query, end), query)

    def seal_days(self, now: dt.datetime) -> None:
        """Writes days before yesterday to Parquet files, with amendments applied."""
        yesterday = _utc_day(now).toordinal() - 1
        for day in self._days.list_unsealed(self._cursor()):
            if day.toordinal() < yesterday:
                with self._transaction() as cursor:
                    replaced = self._days.seal(cursor, day)
                self._days.retire(replaced)

    def drop_before(self, records: dt.date, bodies: dt.date) -> None:
        """Deletes records and feedback of days before `records`, and the full-text index before `bodies`."""
        with self._transaction() as cursor:
            dropped = self._days.drop_before(cursor, records)
            cursor.execute("DELETE FROM records WHERE created_at < $day::TIMESTAMP", {"day": records})
            cursor.execute("DELETE FROM feedback WHERE created_at < $day::TIMESTAMP", {"day": records})
            cursor.execute("DELETE FROM amendments WHERE amended_at < $day::TIMESTAMP", {"day": records})
        self._days.unlink(dropped)
        self._text.drop_before(max(records, bodies))

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            message = f"the log store {self._folder} is not open"
            raise LogEngineError(message)
        return self._connection.cursor()

    @contextmanager
    def _transaction(self) -> Generator[duckdb.DuckDBPyConnection]:
        with self._cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                # After some errors DuckDB has rolled back itself.
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
                raise


def _to_utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC)


def _utc_day(moment: dt.datetime) -> dt.date:
    return _to_utc(moment).date()


def _encode_amendments(prepared: PreparedBatch) -> list[bytes]:
    return [msgspec.json.encode({"id": identifier, **fields}) for identifier, fields in prepared.amendments.items()]


def _is_plain(batch: RecordBatch) -> bool:
    """Returns true if a batch has only lines that an edge worker wrote, which need no preparation."""
    return bool(batch.records) and not (
        batch.may_repeat or batch.amendments or batch.feedback or batch.bodies or batch.texts
    )


def _insert_records(cursor: duckdb.DuckDBPyConnection, node: str, lines: Iterable[bytes]) -> None:
    _insert_lines(cursor, duckdb_schema.INSERT_RECORDS, lines, {"node": node})


def _save_positions(cursor: duckdb.DuckDBPyConnection, positions: Mapping[str, Position]) -> None:
    for writer, position in positions.items():
        cursor.execute(INSERT_POSITION, (writer, position.segment, position.offset))


def _insert_lines(
    cursor: duckdb.DuckDBPyConnection, sql: str, lines: Iterable[bytes], values: Mapping[str, str] | None = None
) -> None:
    """Inserts lines of JSON, which DuckDB reads from a file in memory."""
    text = b"\n".join(lines)
    if not text:
        return
    descriptor = os.memfd_create("penstock-records")
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(descriptor, view) :]
        cursor.execute(sql, {"path": f"/proc/self/fd/{descriptor}", **(values or {})})
    finally:
        os.close(descriptor)


@contextmanager
def _deadline(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Generator[None]:
    """Interrupts the statements that run on a cursor once the time is over."""
    is_done = threading.Event()

    def interrupt_late() -> None:
        delay = seconds
        # An interrupt between two statements has no effect, so it is repeated.
        while not is_done.wait(delay):
            cursor.interrupt()
            delay = INTERRUPT_INTERVAL_SECONDS

    thread = threading.Thread(target=interrupt_late, name="log-query-deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@contextmanager
def _translated_errors(seconds: float) -> Generator[None]:
    try:
        yield
    except (duckdb.InterruptException, TimeoutError) as error:
        message = f"the query took longer than {seconds:g} seconds; choose a shorter range of time or more filters"
        raise QueryTooLargeError(message) from error
    except duckdb.OutOfMemoryException as error:
        message = "the query needs more memory than is allowed; choose a shorter range of time or more filters"
        raise QueryTooLargeError(message) from error
