"""Log store in ClickHouse, over its HTTP interface. Any number of nodes write to it and read all records."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.batch import Position
from penstock.logs.body_text import split_words
from penstock.logs.columns import AMENDABLE_COLUMNS
from penstock.logs.engines.clickhouse_client import (
    ClickHouseClient,
    ClickHouseInputError,
    encode_parameter,
    parse_url,
)
from penstock.logs.engines.clickhouse_schema import quote_name, render_statements
from penstock.logs.engines.lines import PreparedBatch, clean_line, prepare_batch
from penstock.logs.engines.protocol import QueryTooLargeError
from penstock.logs.engines.runner import run_query
from penstock.logs.engines.sql import Row, Statement, ValueType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.logs.batch import RecordBatch
    from penstock.logs.query import LogFilters, LogQuery

INSERT_SECONDS = 30.0
MEMORY_BYTES = 2 * 1024 * 1024 * 1024
PARAMETER_TYPES = {
    ValueType.STRING: "String",
    ValueType.INTEGER: "Int64",
    ValueType.FLOAT: "Float64",
    ValueType.TIMESTAMP: "DateTime64(6, 'UTC')",
    ValueType.UUID: "UUID",
}
# Maximum difference between the clocks of two nodes for which amendments are found.
CLOCK_DIFFERENCE = dt.timedelta(hours=1)
TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
FEEDBACK_COLUMNS = ("workspace_id", "trace_id", "value", "weight", "metadata")


class ClickHouseEngine:
    """Log store in a ClickHouse database, which must exist."""

    def __init__(
        self,
        url: str,
        node: str,
        *,
        keep_days: int = 365,
        keep_bodies_days: int = 30,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Stores the address of the server and the name of this node."""
        address = parse_url(url)
        self._cluster = address.cluster
        self._node = node
        self._keep_days = keep_days
        self._keep_bodies_days = keep_bodies_days
        self._memory_bytes = memory_bytes
        self._client = ClickHouseClient(address)

    def open(self) -> None:
        """Creates or migrates the tables."""
        for statement in render_statements(self._cluster, self._keep_days, self._keep_bodies_days):
            self._client.command(statement)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def positions(self) -> dict[str, Position]:
        """Returns how far each spool of this node was inserted, by writer."""
        rows = self._fetch(
            "SELECT writer, max((segment, byte)) FROM positions WHERE node = {node:String} GROUP BY writer",
            {"node": encode_parameter(self._node)},
        )
        return {writer: Position(segment, offset) for writer, (segment, offset) in rows}

    def insert(self, batch: RecordBatch, positions: Mapping[str, Position]) -> int:
        """Inserts a batch, then the positions. A batch that is sent again after an interruption is not inserted
        twice.
        """
        prepared = prepare_batch(batch)
        new = set(prepared.lines) - self._find_known("records", prepared)
        lines = {identifier: line for identifier, line in prepared.lines.items() if identifier in new}
        try:
            self._insert_rows("records", lines.values())
        except ClickHouseInputError:
            # One value of a wrong type must not block all later records, so the batch is inserted without such values.
            self._insert_rows("records", map(clean_line, lines.values()))
        version = time.time_ns()
        self._insert_texts(batch, prepared)
        self._insert_objects(
            "amendments",
            ({"id": key, "version": version, **fields} for key, fields in prepared.changes.amendments.items()),
        )
        self._insert_objects("feedback", ({**item, "version": version} for item in prepared.changes.feedback))
        self._insert_objects(
            "positions",
            (
                {"node": self._node, "writer": writer, "segment": at.segment, "byte": at.offset, "version": version}
                for writer, at in positions.items()
            ),
        )
        return prepared.invalid_count

    def _insert_texts(self, batch: RecordBatch, prepared: PreparedBatch) -> None:
        if not batch.texts or not prepared.heads:
            return
        known = self._find_known("texts", prepared)
        self._insert_objects(
            "texts",
            (
                {
                    "organisation_id": prepared.heads[key].organisation_id or "",
                    "created_at": prepared.heads[key].created_at,
                    "id": key,
                    "words": split_words(text),
                }
                for key, text in batch.texts.items()
                if key in prepared.heads and key not in known
            ),
        )

    def _find_known(self, table: str, prepared: PreparedBatch) -> set[uuid.UUID]:
        """Returns the records of the batch that are already in a table, because the batch was sent before."""
        if not prepared.lines:
            return set()
        first, last = prepared.time_range()
        # The identifiers are part of the statement, because they are too many for parameters in the URL. They contain
        # only digits, letters and hyphens.
        listed = ", ".join(f"'{identifier}'" for identifier in prepared.lines)
        months = ", ".join(sorted({f"{head.created_at.astimezone(dt.UTC):%Y%m}" for head in prepared.heads.values()}))
        rows = self._fetch(
            f"SELECT id FROM {table} WHERE created_at BETWEEN {{first:DateTime64(3, 'UTC')}} AND "
            f"{{last:DateTime64(3, 'UTC')}} AND toYYYYMM(created_at) IN ({months}) AND id IN ({listed})",
            {"first": _format_time(first)[:-3], "last": _format_time(last)[:-3]},
        )
        return {uuid.UUID(identifier) for (identifier,) in rows}

    def _insert_objects(self, table: str, objects: Iterable[dict[str, Any]]) -> None:
        self._insert_rows(table, map(msgspec.json.encode, objects))

    def _insert_rows(self, table: str, lines: Iterable[bytes]) -> None:
        data = b"\n".join(lines)
        if data:
            # Records of many months must not block all later ones.
            settings = "SETTINGS max_partitions_per_insert_block = 0"
            self._client.command(f"INSERT INTO {table} {settings} FORMAT JSONEachRow", data, INSERT_SECONDS)

    def _fetch(self, sql: str, parameters: Mapping[str, str]) -> list[Row]:
        return self._client.query(sql, parameters, INSERT_SECONDS, memory_bytes=self._memory_bytes)

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query. The server ends it when its time is over."""
        return run_query(ClickHouseFragments(self._client, timeout_seconds, self._memory_bytes), query)

    def seal_days(self, now: dt.datetime) -> None:
        """Does nothing: ClickHouse merges its parts itself."""

    def drop_before(self, records: dt.date, bodies: dt.date) -> None:
        """Drops whole months of records and texts. The tables' TTL deletes single days when the server merges parts."""
        on_cluster = f" ON CLUSTER {quote_name(self._cluster)}" if self._cluster else ""
        for table, day in (("records", records), ("texts", max(records, bodies))):
            months = self._fetch(
                "SELECT DISTINCT partition FROM system.parts WHERE database = currentDatabase() AND active "
                "AND table = {table:String} AND partition < {month:String}",
                {"table": table, "month": f"{day:%Y%m}"},
            )
            for (month,) in months:
                self._client.command(f"ALTER TABLE {table}{on_cluster} DROP PARTITION {int(month)}")
        self._client.command(f"DELETE FROM feedback{on_cluster} WHERE created_at < '{records}'")
        first_kept = _nanoseconds(dt.datetime.combine(records, dt.time(), dt.UTC))
        self._client.command(f"DELETE FROM amendments{on_cluster} WHERE version < {first_kept}")


class ClickHouseFragments:
    """SQL fragments of ClickHouse for one query."""

    ticks_per_ms = 1

    def __init__(self, client: ClickHouseClient, timeout_seconds: float, memory_bytes: int) -> None:
        """Stores the client and the limits; `timeout_seconds` bounds the whole query."""
        self._client = client
        self._deadline = time.monotonic() + timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._memory_bytes = memory_bytes

    def placeholder(self, name: str, value_type: ValueType) -> str:
        """Returns the placeholder of a bound value."""
        return f"{{{name}:{PARAMETER_TYPES[value_type]}}}"

    def ticks(self, expression: str) -> str:
        """Converts a timestamp to milliseconds since the epoch, as it is stored."""
        return self.milliseconds(expression)

    def milliseconds(self, expression: str) -> str:
        """Converts a timestamp to milliseconds since the epoch."""
        return f"toUnixTimestamp64Milli({expression})"

    def divide(self, expression: str, divisor: int) -> str:
        """Divides integers, rounding down."""
        return f"intDiv({expression}, {divisor})"

    def quantiles(self, expression: str, levels: Sequence[float]) -> str:
        """Aggregates exact quantiles with linear interpolation, as a list."""
        return f"quantilesExactInclusive({', '.join(map(str, levels))})({expression})"

    def map_value(self, column: str, key: str) -> str:
        """Returns the value of a key of a map, or NULL."""
        return f"if(mapContains({column}, {key}), {column}[{key}], NULL)"

    def id_text(self, expression: str) -> str:
        """Converts a UUID to text."""
        return f"toString({expression})"

    def json_items(self, column: str, paths: Sequence[Sequence[str]]) -> str:
        """Returns one row for each item of the lists at these paths."""
        return f"arrayJoin({_join_json_lists(column, paths)})"

    def json_text(self, item: str, field: str) -> str:
        """Returns a string field of an item."""
        return f"JSONExtractString({item}, '{field}')"

    def json_number(self, item: str, field: str) -> str:
        """Returns a number field of an item, or NULL."""
        return f"JSONExtract({item}, '{field}', 'Nullable(Float64)')"

    def json_has_id(self, column: str, paths: Sequence[Sequence[str]], values: Sequence[str]) -> str:
        """Returns a condition: an item of the lists at these paths has one of these ids."""
        if not values:
            return "false"
        ids = f"arrayMap(item -> JSONExtractString(item, 'id'), {_join_json_lists(column, paths)})"
        return f"hasAny({ids}, [{', '.join(values)}])"

    def json_is_true(self, item: str, field: str) -> str:
        """Returns a condition: a boolean field of an item is true."""
        return f"JSONExtractBool({item}, '{field}')"

    def json_has(self, item: str, field: str) -> str:
        """Returns a condition: an item has a field with a value."""
        return f"(JSONType({item}, '{field}') != 'Null')"

    def records(self, where: str, filters: LogFilters) -> str:
        """Returns the relation of records, joined with amendments if there are any."""
        source = f"SELECT * FROM records WHERE {where}"
        # An amendment is written after its record, so older amendments belong to other records. The condition is fast,
        # because the table is ordered by `version`.
        written = f"version >= {_nanoseconds(filters.time_of_generation_min, CLOCK_DIFFERENCE)}"
        if self.execute(f"SELECT 1 FROM amendments WHERE {written} LIMIT 1", {}):
            columns = [column.name for column in AMENDABLE_COLUMNS]
            latest = ", ".join(f'argMax(m."{name}", m.version) AS "{name}"' for name in columns)
            replaced = ", ".join(f'coalesce(a."{name}", r."{name}") AS "{name}"' for name in columns)
            source = (
                f"SELECT r.* REPLACE ({replaced}) FROM ({source}) AS r "
                f"LEFT JOIN (SELECT m.id AS id, {latest} FROM amendments AS m WHERE m.{written} GROUP BY m.id) AS a ON a.id = r.id"
            )
        return f"({source})"

    def feedback(self, where: str) -> str:
        """Returns the relation of feedback, with the latest value of each field."""
        latest = ", ".join(f"argMax(m.{name}, m.version) AS {name}" for name in FEEDBACK_COLUMNS)
        return (
            f"(SELECT * FROM (SELECT m.id AS id, m.organisation_id AS organisation_id, {latest}, "
            "min(m.created_at) AS created_at FROM feedback AS m GROUP BY m.organisation_id, m.id) "
            f"WHERE trace_id IS NOT NULL AND {where})"
        )

    def text_condition(self, statement: Statement, filters: LogFilters, words: list[str]) -> str:
        """Returns a condition on the identifiers of records: their bodies contain all of `words`."""
        organisation = statement.bind(filters.organisation_id)
        conditions = [f"has(words, {statement.bind(word)})" for word in words]
        for moment, operator in ((filters.time_of_generation_min, ">="), (filters.time_of_generation_max, "<=")):
            if moment is not None:
                conditions.append(f"created_at {operator} {statement.bind(moment, ValueType.TIMESTAMP)}")
        matching = f"SELECT id FROM texts WHERE organisation_id = {organisation} AND {' AND '.join(conditions)}"
        return f'r."id" IN ({matching})'

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        """Runs a statement within the remaining time of the query."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            message = f"the query took longer than {self._timeout_seconds:g} seconds; choose more filters"
            raise QueryTooLargeError(message)
        parameters = {
            name: _format_time(value) if isinstance(value, dt.datetime) else encode_parameter(value)
            for name, value in values.items()
        }
        return self._client.query(sql, parameters, seconds, memory_bytes=self._memory_bytes)


def _join_json_lists(column: str, paths: Sequence[Sequence[str]]) -> str:
    """Returns the array of the items of all lists at these paths, as JSON. It is empty if the column is NULL."""
    lists: list[str] = []
    for first, *further in paths:
        items = f"JSONExtractArrayRaw(ifNull({column}, ''), '{first}')"
        for field in further:
            items = f"arrayFlatten(arrayMap(item -> JSONExtractArrayRaw(item, '{field}'), {items}))"
        lists.append(items)
    return f"arrayConcat({', '.join(lists)})"


def _nanoseconds(moment: dt.datetime | None, offset_back: dt.timedelta = dt.timedelta()) -> int:
    """Returns `moment` minus `offset_back` in nanoseconds since the epoch, rounded down to seconds. Returns 0 if `moment` is
    `None`.
    """
    return 0 if moment is None else max(0, int((moment - offset_back).timestamp())) * 1_000_000_000


def _format_time(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime(TIME_FORMAT)
