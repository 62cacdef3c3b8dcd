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

from penstock.engine import RecordDecoder
from penstock.logs.batch import Position
from penstock.logs.columns import RECORD_COLUMNS
from penstock.logs.engines import duckdb_schema
from penstock.logs.engines.duckdb_days import DayRange, SealedDays
from penstock.logs.engines.duckdb_fragments import DuckDbFragments
from penstock.logs.engines.lines import prepare_changes
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.logs.engines.runner import run_query
from penstock.logs.engines.text_index import TextIndex

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path

    from penstock.engine import DecodedRecords
    from penstock.logs.batch import RecordBatch
    from penstock.logs.engines.lines import PreparedChanges
    from penstock.logs.query import LogQuery

MEMORY_LIMIT = "256MB"
MAX_TEMPORARY_SIZE = "4GB"
# DuckDB merges its write-ahead log into the file after this many bytes.
CHECKPOINT_THRESHOLD = "64MB"
INTERRUPT_INTERVAL_SECONDS = 0.05
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - DuckDB stores UTC without a time zone
# The row usually exists, and updating it takes a quarter of the time of INSERT OR REPLACE.
UPDATE_POSITION = 'UPDATE positions SET segment = $segment, "offset" = $offset WHERE writer = $writer'
INSERT_POSITION = "INSERT INTO positions VALUES ($writer, $segment, $offset)"


class DuckDbEngine:
    """Log store in a folder. Only one process may open it."""

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        """Stores the folder, which `open` creates."""
        self._folder = folder
        self._memory_limit = memory_limit
        self._text = TextIndex(folder / "text")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._decoder = make_decoder()

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
        locations = [(key.bytes, at.key, at.offset, at.length) for key, at in batch.bodies.items()]
        records = self._decoder.decode(batch.records, batch.node, locations)
        heads = (
            {key: (at, organisation) for key, at, organisation in records.heads()} if locations or batch.texts else {}
        )
        changes = prepare_changes(
            batch, {key: location for key, location in batch.bodies.items() if key.bytes not in heads}
        )
        # Added before the transaction ends: if the batch is inserted again, the index ignores documents that it already
        # has.
        self._text.add(
            (identifier, head[1], _to_time(head[0]).date(), text)
            for identifier, text in batch.texts.items()
            if (head := heads.get(identifier.bytes))
        )
        with self._transaction() as cursor:
            self._insert_records(cursor, records, may_repeat=batch.may_repeat)
            _insert_objects(cursor, duckdb_schema.INSERT_AMENDMENTS, _list_amendments(changes))
            _insert_objects(cursor, duckdb_schema.INSERT_FEEDBACK, changes.feedback)
            _save_positions(cursor, positions)
        return records.invalid_count + changes.invalid_count

    def _insert_records(
        self, cursor: duckdb.DuckDBPyConnection, decoded_records: DecodedRecords, *, may_repeat: bool
    ) -> None:
        known = self._find_known(cursor, decoded_records) if may_repeat else []
        if known:
            cursor.execute(duckdb_schema.INSERT_NEW_RECORDS, {"known": known})
        elif decoded_records:
            cursor.execute(duckdb_schema.INSERT_RECORDS)

    def _find_known(self, cursor: duckdb.DuckDBPyConnection, decoded_records: DecodedRecords) -> list[uuid.UUID]:
        """Returns the records of the batch that are already in the store, because the batch was sent before."""
        if (times := decoded_records.time_range) is None:
            return []
        first, last = map(_to_time, times)
        days = DayRange(first.date(), last.date())
        if days.first != days.last:
            # One old record must not make the insertion read the files of all days since then.
            days = days._replace(only={_to_time(at).date() for _, at, _ in decoded_records.heads()})
        source = self._days.render_source(cursor, '"created_at" BETWEEN $first AND $last', days, columns="id")
        rows = cursor.execute(
            f"SELECT id FROM {source} WHERE id IN (SELECT id FROM decoded_records)", {"first": first, "last": last}
        )
        return [row[0] for row in rows.fetchall()]

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query in one snapshot of the store, and interrupts it when its time is over."""
        try:
            return self._run_once(query, timeout_seconds)
        except duckdb.IOException:
            # Retention may have deleted a file that this query was about to open, so the query runs again.
            with _translated_errors(timeout_seconds):
                return self._run_once(query, timeout_seconds)

    def _run_once(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        with self._transaction() as cursor, _translated_errors(timeout_seconds), _deadline(cursor, timeout_seconds):
            end = time.monotonic() + timeout_seconds
            return run_query(DuckDbFragments(cursor, self._days, self._text, query, end), query)

    def seal_days(self, now: dt.datetime) -> None:
        """Writes days before yesterday to Parquet files, with amendments applied. A day that fails does not stop others;
        then raises the last error.
        """
        yesterday = now.astimezone(dt.UTC).toordinal() - 1
        failure: Exception | None = None
        for day in self._days.list_unsealed(self._cursor()):
            if day.toordinal() < yesterday:
                try:
                    with self._transaction() as cursor:
                        replaced = self._days.seal(cursor, day)
                except (duckdb.Error, OSError) as error:
                    failure = error
                    continue
                self._days.retire(replaced)
        if failure:
            raise failure

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
                # After some errors, DuckDB has already rolled back the transaction.
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
                raise


def make_decoder() -> RecordDecoder:
    """Returns the decoder of record lines into the columns of the table."""
    columns = [(column.name, column.type.value) for column in RECORD_COLUMNS]
    return RecordDecoder(columns, duckdb_schema.FALLBACK_PATTERN)


def _to_time(microseconds: int) -> dt.datetime:
    """Converts microseconds since the epoch to a time in UTC without a time zone, as DuckDB expects it."""
    return EPOCH + dt.timedelta(microseconds=microseconds)


def _list_amendments(changes: PreparedChanges) -> list[dict[str, Any]]:
    return [{"id": identifier, **fields} for identifier, fields in changes.amendments.items()]


def _save_positions(cursor: duckdb.DuckDBPyConnection, positions: Mapping[str, Position]) -> None:
    for writer, position in positions.items():
        values = {"writer": writer, "segment": position.segment, "offset": position.offset}
        if cursor.execute(UPDATE_POSITION, values).fetchall() == [(0,)]:
            cursor.execute(INSERT_POSITION, values)


def _insert_objects(cursor: duckdb.DuckDBPyConnection, sql: str, objects: Iterable[Mapping[str, Any]]) -> None:
    """Inserts objects as lines of JSON, which DuckDB reads from a file in memory."""
    text = b"\n".join(map(msgspec.json.encode, objects))
    if not text:
        return
    descriptor = os.memfd_create("penstock-records")
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(descriptor, view) :]
        cursor.execute(sql, {"path": f"/proc/self/fd/{descriptor}"})
    finally:
        os.close(descriptor)


@contextmanager
def _deadline(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Generator[None]:
    """Interrupts the statements of a cursor that still run after `seconds`."""
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
