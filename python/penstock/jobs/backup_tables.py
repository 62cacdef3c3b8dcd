"""The rows of a backup: one file of JSON lines per table, in an order in which they can be inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import JSON, MetaData, Table, func, insert, select, update

from penstock.errors import SettingsError
from penstock.jobs.backup_archive import TABLES_DIR, open_member

if TYPE_CHECKING:
    import zipfile
    from collections.abc import AsyncIterator, Callable, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.jobs.backup_archive import Manifest

REVISION_TABLE = "alembic_version"
# Number of rows that one statement inserts.
BATCH_ROWS = 500
MAX_LINE_BYTES = 256 * 1024 * 1024


def reflect_tables(connection: Connection) -> list[Table]:
    """Returns the tables that the database actually has, so that older revisions can be copied too. Parents precede the
    tables that refer to them.
    """
    metadata = MetaData()
    metadata.reflect(connection)
    tables = [table for table in metadata.sorted_tables if table.name != REVISION_TABLE]
    for table in tables:
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return tables


async def count_rows(connection: AsyncConnection, table: Table) -> int:
    """Returns the number of rows of a table."""
    return await connection.scalar(select(func.count()).select_from(table)) or 0


async def iter_lines(connection: AsyncConnection, table: Table) -> AsyncIterator[bytes]:
    """Yields the rows of a table as JSON lines, in the order of the primary key."""
    query = select(table).order_by(*table.primary_key.columns)
    async with connection.stream(query.execution_options(yield_per=BATCH_ROWS)) as rows:
        async for row in rows.mappings():
            yield msgspec.json.encode(dict(row)) + b"\n"


async def insert_tables(
    connection: AsyncConnection, archive: zipfile.ZipFile, manifest: Manifest, advance: Callable[[int], None]
) -> None:
    """Inserts the rows of all tables. Raises `SettingsError` if rows or tables are missing."""
    tables = {table.name: table for table in await connection.run_sync(reflect_tables)}
    if missing := sorted(set(manifest.tables) - set(tables)):
        message = f"the backup has tables that its revision {manifest.revision} does not have: {', '.join(missing)}"
        raise SettingsError(message)
    for name, count in manifest.tables.items():
        table = tables[name]
        own_references = _self_references(table)
        deferred: list[dict[str, Any]] = []
        inserted = 0
        for rows in _read_rows(archive, name):
            deferred += _take_references(rows, own_references)
            await connection.execute(insert(table), rows)
            inserted += len(rows)
            advance(len(rows))
        if inserted != count:
            message = f"the backup is incomplete: {name} has {inserted} rows, and should have {count}"
            raise SettingsError(message)
        for row in deferred:
            values = {column: row[column] for column in own_references}
            await connection.execute(update(table).where(table.c.id == row["id"]).values(values))


def _self_references(table: Table) -> list[str]:
    """Returns the columns that refer to other rows of the same table. They are set after all rows have been
    inserted.
    """
    return [key.parent.name for key in table.foreign_keys if key.column.table is table]


def _take_references(rows: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    used = [{"id": row["id"], **{name: row[name] for name in columns}} for row in rows] if columns else []
    for row in rows:
        row.update(dict.fromkeys(columns))
    return [row for row in used if any(row[name] is not None for name in columns)]


def _read_rows(archive: zipfile.ZipFile, table: str) -> Iterator[list[dict[str, Any]]]:
    with open_member(archive, f"{TABLES_DIR}/{table}.jsonl") as member:
        rows: list[dict[str, Any]] = []
        while line := member.readline(MAX_LINE_BYTES):
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            if len(rows) == BATCH_ROWS:
                yield rows
                rows = []
        if rows:
            yield rows
