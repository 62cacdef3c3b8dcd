"""Reads by the shortest way: SQLAlchemy writes a query and its types read the answer, and the driver alone is asked in between."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.ext.asyncio import AsyncConnection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import BindParameter, ColumnElement, Dialect, Select
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine

    Query = Select[*tuple[Any, ...]]

    Row = Mapping[str, Any]

# So many queries are kept as they are written for the driver.
MAX_COMPILED_QUERIES = 2000
# What PostgreSQL says where a statement took too long.
QUERY_CANCELED_SQLSTATE = "57014"
# By the dialect and all but the values in them.
_COMPILED_QUERIES: dict[tuple[str, Any], CompiledQuery] = {}


class ReadConnection(AsyncConnection):
    """A connection for reading, which may be used again by who reads next."""

    __slots__ = ("_driver", "rested_at")

    def __init__(self, engine: AsyncEngine) -> None:
        """Prepare; `open` connects."""
        super().__init__(engine)
        self._driver: Any = None
        self.rested_at = 0.0

    async def open(self) -> ReadConnection:
        """Take a connection out of the pool."""
        await self.start()
        if self.sync_connection is not None:
            self._driver = self.sync_connection.connection.driver_connection
        return self

    async def fetch_prepared(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        """Give the rows of a query that was written once, by the names of its columns."""
        return await self._fetch_compiled(_compile_query(query, self.dialect), query, values)

    async def fetch_rows(self, query: Query) -> list[Row]:
        """Give the rows of any query: it is written for the driver where none like it was, but for the values in it."""
        key = query._generate_cache_key()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as who extends it does
        if key is None:
            return await self._execute_with_sqlalchemy(query, {})
        written = _COMPILED_QUERIES.get((self.dialect.name, key.key))
        if written is None:
            if len(_COMPILED_QUERIES) >= MAX_COMPILED_QUERIES:
                _COMPILED_QUERIES.clear()
            written = _COMPILED_QUERIES[self.dialect.name, key.key] = CompiledQuery(query, self.dialect)
            written.set_bind_order(key.bindparams)
        return await self._fetch_compiled(written, query, written.values_by_name(key.bindparams))

    async def _fetch_compiled(self, written: CompiledQuery, query: Query, values: Mapping[str, Any]) -> list[Row]:
        sql, parameters = written.render_statement(values)
        try:
            found: Sequence[Any] = await self._driver.fetch(sql, *parameters)
        except (OSError, TimeoutError):
            raise
        except asyncio.CancelledError:
            # The driver may still be telling the server to let it be.
            await self.invalidate()
            raise
        except Exception as error:
            if is_database_timeout(error):
                raise TimeoutError from error
            # What is wrong is told in one way, whichever way was asked.
            return await self._execute_with_sqlalchemy(query, values)
        return written.convert_rows(found)

    async def _execute_with_sqlalchemy(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        return [cast("Row", row) for row in (await self.execute(query, values)).mappings()]

    async def end_read(self) -> None:
        """Be as new for the next who reads."""
        if self.in_transaction():
            await self.rollback()
        elif self.dialect.name == "sqlite":
            await self._driver.rest()
        self.rested_at = time.monotonic()


class CompiledQuery:
    """A query as a driver takes it."""

    def __init__(self, query: Query, dialect: Dialect) -> None:
        """Write it."""
        compiled: SQLCompiler = query.compile(dialect=dialect)  # pyright: ignore[reportAssignmentType]
        self._compiled = compiled
        self._sql = str(compiled)
        self._order = tuple(compiled.positiontup or ())
        binds = compiled.bind_names.items()
        self._given = {name: bind.effective_value for bind, name in binds if not bind.required}
        self._places: list[str | None] = []
        # Lists are written out as long as they are.
        self._grows = bool(compiled.post_compile_params)
        kinds = ((name, _dialect_type(bind, dialect)) for bind, name in binds)
        self._writers = {name: writer for name, kind in kinds if (writer := kind.bind_processor(dialect))}
        columns = [(name, _dialect_type(column, dialect)) for name, column in query.selected_columns.items()]
        self._names = tuple(name for name, _ in columns)
        self._readers = [(name, reader) for name, kind in columns if (reader := kind.result_processor(dialect, None))]

    def set_bind_order(self, binds: Sequence[BindParameter[Any]]) -> None:
        """Learn where values go that others like it hold in this order."""
        names = {bind.key: name for bind, name in self._compiled.bind_names.items()}
        self._places = [names.get(bind.key) for bind in binds]

    def values_by_name(self, binds: Sequence[BindParameter[Any]]) -> dict[str, Any]:
        """Give the values that another like it holds, by their names here."""
        places = zip(self._places, binds, strict=True)
        return {name: bind.effective_value for name, bind in places if name is not None}

    def render_statement(self, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Give its text, and the parameters in their order."""
        sql, order, writers = self._sql, self._order, self._writers
        known: Mapping[str, Any] = {**self._given, **values}
        if self._grows:
            expanded = self._compiled.construct_expanded_state(known)
            sql, order, known = expanded.statement, expanded.positiontup or (), expanded.parameters
            writers = {**writers, **expanded.processors}
        if not writers:
            return sql, [known[name] for name in order]
        return sql, [writers[name](known[name]) if name in writers else known[name] for name in order]

    def convert_rows(self, found: Sequence[Sequence[Any]]) -> list[Row]:
        """Read rows as the driver gives them."""
        names, readers = self._names, self._readers
        rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:
            for name, reader in readers:
                row[name] = reader(row[name])
        return [*rows]


def is_database_timeout(error: Exception) -> bool:
    """Say whether the database gave up, by its own clock: to ask again would take as long again."""
    is_busy = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
    return is_busy or getattr(error, "sqlstate", None) == QUERY_CANCELED_SQLSTATE


@lru_cache(MAX_COMPILED_QUERIES)
def _compile_query(query: Query, dialect: Dialect) -> CompiledQuery:
    return CompiledQuery(query, dialect)


def _dialect_type(typed: ColumnElement[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Give a type as the dialect has it."""
    return typed.type.dialect_impl(dialect)
