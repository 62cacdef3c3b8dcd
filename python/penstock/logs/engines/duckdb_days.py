"""Sealed days of the DuckDB log store: Parquet files, which any tool can read. Usually a day is one file; a large day has
several, each of a part of the day. Retention deletes files.

Only files in the table `sealed_files` are part of the store. It changes in the transaction that removes their rows from
`records`. A file of a killed process is not in this table, and is deleted at the next start.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from penstock.logs.columns import AMENDABLE_COLUMNS, COLUMNS, ColumnType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    import duckdb

ROW_GROUP_ROWS = 122_880
# Maximum size of the part of a day that is sorted at once, before compression. Sorting it takes about as much space on
# the disk, of which DuckDB may use a limited amount.
MAX_SORTED_BYTES = 1024 * 1024 * 1024
# Approximate size of a row without its long values.
ROW_BYTES = 512
# Columns with long values.
LONG_COLUMNS = tuple(
    column.name for column in COLUMNS if not column.is_listed and column.type in {ColumnType.JSON, ColumnType.STRING}
)


class DayRange(NamedTuple):
    """Days from `first` to `last`, or those in `only` among them. `None`: no limit."""

    first: dt.date | None
    last: dt.date | None
    only: Collection[dt.date] | None = None


class SealedDays:
    """Files of sealed days in a folder."""

    def __init__(self, folder: Path) -> None:
        """Stores the folder, which `open` creates."""
        self._folder = folder
        # Names of replaced files. Queries that began before may still read them, so they are deleted at the next
        # `retire`.
        self._retired: list[str] = []

    def open(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Creates the folder, and deletes files that are not in the table."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {name for (name,) in connection.execute("SELECT name FROM sealed_files").fetchall()}
        self.unlink(path.name for path in self._folder.iterdir() if path.name not in known)

    def render_source(
        self,
        cursor: duckdb.DuckDBPyConnection,
        where: str,
        days: DayRange,
        *,
        columns: str = "*",
        is_amended: bool = False,
    ) -> str:
        """Returns a relation of the records that meet the condition `where`. It reads the latest days, and the files of
        `days`.
        """
        files = cursor.execute(
            "SELECT day, name FROM sealed_files WHERE day BETWEEN coalesce($first, '-infinity'::DATE) "
            "AND coalesce($last, 'infinity'::DATE) ORDER BY day",
            {"first": days.first, "last": days.last},
        ).fetchall()
        paths = [self._quote_path(name) for day, name in files if days.only is None or day in days.only]
        source = f"SELECT {columns} FROM records WHERE {where}"
        if paths:
            listed = ", ".join(paths)
            source += (
                f" UNION ALL BY NAME SELECT {columns} FROM read_parquet([{listed}], union_by_name = true) WHERE {where}"
            )
        if is_amended and cursor.execute("SELECT EXISTS (SELECT 1 FROM amendments)").fetchall()[0][0]:
            source = _amend(source)
        return f"({source})"

    def list_unsealed(self, cursor: duckdb.DuckDBPyConnection) -> list[dt.date]:
        """Returns the days to seal: days with rows in the table `records`, and sealed days whose records have
        amendments.
        """
        days = {day for (day,) in cursor.execute("SELECT DISTINCT created_at::DATE FROM records").fetchall()}
        for day, name in cursor.execute("SELECT day, name FROM sealed_files").fetchall():
            pending = "SELECT id FROM amendments ANTI JOIN records USING (id)"
            file = self._quote_path(name)
            amended = cursor.execute(f"SELECT EXISTS (SELECT 1 FROM read_parquet({file}) WHERE id IN ({pending}))")
            if amended.fetchall()[0][0]:
                days.add(day)
        return sorted(days)

    def seal(self, cursor: duckdb.DuckDBPyConnection, day: dt.date) -> list[str]:
        """Writes one day to new files, within a transaction. Returns the names of the files that it replaces."""
        where = '"created_at" >= $start AND "created_at" < $end'
        source = self.render_source(cursor, where, DayRange(day, day), is_amended=True)
        replaced = [row[0] for row in cursor.execute("SELECT name FROM sealed_files WHERE day = ?", (day,)).fetchall()]
        number = max((int(name.split(".")[1]) for name in replaced), default=0)
        start = dt.datetime.combine(day, dt.time())
        values = {"start": start, "end": start + dt.timedelta(days=1)}
        names: list[str] = []
        for part in _split_day(cursor, source, values):
            number += 1
            name = f"{day}.{number}.parquet"
            temporary = self._folder / f"{name}.temporary"
            cursor.execute(
                f"COPY (SELECT * FROM {source} ORDER BY workspace_id, created_at) TO '{_quote(str(temporary))}' "
                f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS})",
                part,
            )
            _sync(temporary)
            temporary.rename(self._folder / name)
            names.append(name)
        _sync(self._folder)
        cursor.execute(f"DELETE FROM records WHERE {where}", values)
        files = ", ".join(map(self._quote_path, names))
        cursor.execute(f"DELETE FROM amendments WHERE id IN (SELECT id FROM read_parquet([{files}]))")
        cursor.execute("DELETE FROM sealed_files WHERE day = ?", (day,))
        cursor.executemany("INSERT INTO sealed_files VALUES (?, ?)", [(day, name) for name in names])
        return replaced

    def retire(self, names: Iterable[str]) -> None:
        """Deletes the files that were retired before, and stores these names for the next call."""
        self.unlink(self._retired)
        self._retired = list(names)

    def drop_before(self, cursor: duckdb.DuckDBPyConnection, day: dt.date) -> list[str]:
        """Removes the files of earlier days from the table, within a transaction. Returns their names."""
        removed = cursor.execute("DELETE FROM sealed_files WHERE day < ? RETURNING name", (day,)).fetchall()
        return [name for (name,) in removed]

    def unlink(self, names: Iterable[str]) -> None:
        """Deletes files."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def _quote_path(self, name: str) -> str:
        # Escapes the characters with which DuckDB would read the path as a pattern.
        path = re.sub(r"([*?\[])", r"[\1]", str(self._folder / name))
        return f"'{_quote(path)}'"


def _split_day(
    cursor: duckdb.DuckDBPyConnection, source: str, values: dict[str, dt.datetime]
) -> list[dict[str, dt.datetime]]:
    """Splits a day into ranges of time whose records can be sorted at once. Each has at least one minute."""
    long_bytes = " + ".join(f'coalesce(strlen("{name}"), 0)' for name in LONG_COLUMNS)
    minutes = cursor.execute(
        f"SELECT date_trunc('minute', created_at) AS minute, sum({ROW_BYTES} + {long_bytes})::BIGINT FROM {source} "
        "GROUP BY minute ORDER BY minute",
        values,
    ).fetchall()
    parts = [dict(values)]
    total = 0
    for minute, size in minutes:
        if total and total + size > MAX_SORTED_BYTES:
            parts[-1]["end"] = minute
            parts.append({"start": minute, "end": values["end"]})
            total = 0
        total += size
    return parts


def _quote(text: str) -> str:
    return text.replace("'", "''")


def _amend(source: str) -> str:
    columns = ", ".join(
        f'coalesce(a."{column.name}", r."{column.name}") AS "{column.name}"' for column in AMENDABLE_COLUMNS
    )
    return f"SELECT r.* REPLACE ({columns}) FROM ({source}) AS r LEFT JOIN amendments AS a ON a.id = r.id"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
