"""SQL fragments of DuckDB for one query."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

from penstock.logs.engines.duckdb_days import DayRange
from penstock.logs.engines.protocol import QueryTooLargeError
from penstock.logs.engines.sql import Row, Statement, ValueType
from penstock.logs.query import ListQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from penstock.logs.engines.duckdb_days import SealedDays
    from penstock.logs.engines.text_index import TextIndex
    from penstock.logs.query import LogFilters, LogQuery

CASTS = {
    ValueType.STRING: "VARCHAR",
    ValueType.INTEGER: "BIGINT",
    ValueType.FLOAT: "DOUBLE",
    ValueType.TIMESTAMP: "TIMESTAMP",
    ValueType.UUID: "UUID",
}
MAX_TEXT_HITS = 100_000
MANY_HITS_MESSAGE = f"q matches {MAX_TEXT_HITS} records or more; choose more words or a shorter range of time"


class DuckDbFragments:
    """SQL fragments of DuckDB. Runs the statements of one query in one transaction."""

    ticks_per_ms = 1000

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, days: SealedDays, text: TextIndex, query: LogQuery, deadline: float
    ) -> None:
        """Stores the transaction's cursor, the sealed days, the full-text index, the query and its deadline."""
        self._cursor = cursor
        self._days = days
        self._text = text
        self._query = query
        self._deadline = deadline
        # False if a full-text search has found only the latest records.
        self._has_all_hits = True

    def placeholder(self, name: str, value_type: ValueType) -> str:
        """Returns the placeholder of a bound value."""
        return f"${name}::{CASTS[value_type]}"

    def ticks(self, expression: str) -> str:
        """Converts a timestamp to microseconds since the epoch, as it is stored."""
        return f"epoch_us({expression})"

    def milliseconds(self, expression: str) -> str:
        """Converts a timestamp to milliseconds since the epoch."""
        return f"epoch_ms({expression})"

    def divide(self, expression: str, divisor: int) -> str:
        """Divides integers, rounding down."""
        return f"(({expression}) // {divisor})"

    def quantiles(self, expression: str, levels: Sequence[float]) -> str:
        """Aggregates exact quantiles with linear interpolation, as a list."""
        return f"quantile_cont({expression}, {list(levels)})"

    def map_value(self, column: str, key: str) -> str:
        """Returns the value of a key of a map, or NULL."""
        # Takes three quarters of the time of `column[key]`.
        return f"list_extract(map_values({column}), list_position(map_keys({column}), {key}))"

    def id_text(self, expression: str) -> str:
        """Converts a UUID to text."""
        return f"CAST({expression} AS VARCHAR)"

    def json_items(self, column: str, paths: Sequence[Sequence[str]]) -> str:
        """Returns one row for each item of the lists at these paths."""
        lists = [f"json_extract({column}, '$.{'[*].'.join(path)}[*]')" for path in paths]
        return f"unnest(flatten([{', '.join(lists)}]))"

    def json_text(self, item: str, field: str) -> str:
        """Returns a string field of an item."""
        return f"json_extract_string({item}, '$.{field}')"

    def json_number(self, item: str, field: str) -> str:
        """Returns a number field of an item, or NULL."""
        return f"TRY_CAST(json_extract_string({item}, '$.{field}') AS DOUBLE)"

    def json_has_id(self, column: str, paths: Sequence[Sequence[str]], values: Sequence[str]) -> str:
        """Returns a condition: an item of the lists at these paths has one of these ids."""
        lists = [f"json_extract_string({column}, '$.{'[*].'.join(path)}[*].id')" for path in paths]
        return f"coalesce(list_has_any(flatten([{', '.join(lists)}]), [{', '.join(values)}]::VARCHAR[]), false)"

    def json_is_true(self, item: str, field: str) -> str:
        """Returns a condition: a boolean field of an item is true."""
        return f"coalesce(json_extract_string({item}, '$.{field}') = 'true', false)"

    def json_has(self, item: str, field: str) -> str:
        """Returns a condition: an item has a field with a value."""
        return f"(json_extract_string({item}, '$.{field}') IS NOT NULL)"

    def records(self, where: str, filters: LogFilters) -> str:
        """Returns the relation of records: the latest days, and the files of the days in the range."""
        first, last = filters.time_of_generation_min, filters.time_of_generation_max
        return self._days.render_source(
            self._cursor,
            where,
            DayRange(
                first.astimezone(dt.UTC).date() if first else None, last.astimezone(dt.UTC).date() if last else None
            ),
            is_amended=True,
        )

    def feedback(self, where: str) -> str:
        """Returns the SQL subquery that selects feedback."""
        return f"(SELECT * FROM feedback WHERE trace_id IS NOT NULL AND {where})"

    def text_condition(self, statement: Statement, filters: LogFilters, words: list[str]) -> str:
        """Searches the full-text index, and returns a condition on the identifiers of the records that it finds."""
        first, last = filters.time_of_generation_min, filters.time_of_generation_max
        days = (
            first.astimezone(dt.UTC).date() if first else None,
            last.astimezone(dt.UTC).date() if last else None,
        )
        seconds = max(0.0, self._deadline - time.monotonic())
        identifiers = self._text.search(words, filters.organisation_id, days, MAX_TEXT_HITS, seconds)
        self._has_all_hits = len(identifiers) < MAX_TEXT_HITS
        # The text index returns the newest hits first. So a page of the newest records needs no older hits.
        is_latest_page = isinstance(self._query, ListQuery) and self._query.order == "desc"
        if not self._has_all_hits and not is_latest_page:
            raise QueryTooLargeError(MANY_HITS_MESSAGE)
        name = f"p{len(statement.values)}"
        statement.values[name] = [str(identifier) for identifier in identifiers]
        return f'r."id" IN (SELECT unnest(${name}::UUID[]))'

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        """Runs a statement in the transaction of the query."""
        if time.monotonic() >= self._deadline:
            raise TimeoutError
        encoded = {
            name: value.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(value, dt.datetime) else value
            for name, value in values.items()
        }
        rows = self._cursor.execute(sql, encoded).fetchall()
        if not self._has_all_hits and isinstance(self._query, ListQuery) and len(rows) <= self._query.limit:
            # Other filters excluded most of the hits, so earlier hits would be on this page, too.
            raise QueryTooLargeError(MANY_HITS_MESSAGE)
        return rows
