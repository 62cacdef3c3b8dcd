"""Fast reads. SQLAlchemy compiles each query once and its types convert the rows; the driver is called directly in
between.
"""

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

# Number of compiled queries that are cached.
MAX_COMPILED_QUERIES = 2000
# SQLSTATE that PostgreSQL reports when a statement exceeds its timeout.
QUERY_CANCELED_SQLSTATE = "57014"
# Compiled queries by dialect and by SQLAlchemy's cache key, which ignores the parameter values.
_COMPILED_QUERIES: dict[tuple[str, Any], CompiledQuery] = {}


class ReadConnection(AsyncConnection):
    """Read-only connection that can be reused for the next read."""

    __slots__ = ("_driver", "rested_at")

    def __init__(self, engine: AsyncEngine) -> None:
        """Prepares the connection; `open` connects."""
        super().__init__(engine)
        self._driver: Any = None
        self.rested_at = 0.0

    async def open(self) -> ReadConnection:
        """Checks out a connection from the pool."""
        await self.start()
        if self.sync_connection is not None:
            self._driver = self.sync_connection.connection.driver_connection
        return self

    async def fetch_prepared(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        """Returns the rows of a query object that is built once and reused. Each row is a mapping by column name."""
        return await self._fetch_compiled(_compile_query(query, self.dialect), query, values)

    async def fetch_rows(self, query: Query) -> list[Row]:
        """Returns the rows of any query. Compiles it unless a query that differs only in its values was compiled
        before.
        """
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
            # The driver may still be sending the cancellation to the server, so the connection is not reused.
            await self.invalidate()
            raise
        except Exception as error:
            if is_database_timeout(error):
                raise TimeoutError from error
            # Runs the query again through SQLAlchemy, so that both paths raise the same exceptions.
            return await self._execute_with_sqlalchemy(query, values)
        return written.convert_rows(found)

    async def _execute_with_sqlalchemy(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        return [cast("Row", row) for row in (await self.execute(query, values)).mappings()]

    async def end_read(self) -> None:
        """Ends the transaction, so that the next read starts with a clean connection."""
        if self.in_transaction():
            await self.rollback()
        elif self.dialect.name == "sqlite":
            await self._driver.end_read()
        self.rested_at = time.monotonic()


class CompiledQuery:
    """Query compiled for a driver."""

    def __init__(self, query: Query, dialect: Dialect) -> None:
        """Compiles the query for the dialect."""
        compiled: SQLCompiler = query.compile(dialect=dialect)  # pyright: ignore[reportAssignmentType]
        self._compiled = compiled
        self._sql = str(compiled)
        self._order = tuple(compiled.positiontup or ())
        binds = compiled.bind_names.items()
        self._given = {name: bind.effective_value for bind, name in binds if not bind.required}
        self._places: list[str | None] = []
        # True if the query has list parameters, whose SQL depends on the length of the list.
        self._grows = bool(compiled.post_compile_params)
        kinds = ((name, _dialect_type(bind, dialect)) for bind, name in binds)
        self._writers = {name: writer for name, kind in kinds if (writer := kind.bind_processor(dialect))}
        columns = [(name, _dialect_type(column, dialect)) for name, column in query.selected_columns.items()]
        self._names = tuple(name for name, _ in columns)
        self._readers = [(name, reader) for name, kind in columns if (reader := kind.result_processor(dialect, None))]

    def set_bind_order(self, binds: Sequence[BindParameter[Any]]) -> None:
        """Stores the names of the parameters in the order in which equivalent queries list them."""
        names = {bind.key: name for bind, name in self._compiled.bind_names.items()}
        self._places = [names.get(bind.key) for bind in binds]

    def values_by_name(self, binds: Sequence[BindParameter[Any]]) -> dict[str, Any]:
        """Returns the values of an equivalent query by the parameter names of this one."""
        pairs = zip(self._places, binds, strict=True)
        return {name: bind.effective_value for name, bind in pairs if name is not None}

    def render_statement(self, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Returns the SQL text and the parameters in positional order."""
        sql, order, writers = self._sql, self._order, self._writers
        parameters: Mapping[str, Any] = {**self._given, **values}
        if self._grows:
            expanded = self._compiled.construct_expanded_state(parameters)
            sql, order, parameters = expanded.statement, expanded.positiontup or (), expanded.parameters
            writers = {**writers, **expanded.processors}
        if not writers:
            return sql, [parameters[name] for name in order]
        return sql, [writers[name](parameters[name]) if name in writers else parameters[name] for name in order]

    def convert_rows(self, found: Sequence[Sequence[Any]]) -> list[Row]:
        """Converts rows of the driver to mappings by column name."""
        names, readers = self._names, self._readers
        rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:
            for name, reader in readers:
                row[name] = reader(row[name])
        return [*rows]


def is_database_timeout(error: Exception) -> bool:
    """Returns true if the database itself timed out. A second attempt would take as long again."""
    is_busy = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
    return is_busy or getattr(error, "sqlstate", None) == QUERY_CANCELED_SQLSTATE


@lru_cache(MAX_COMPILED_QUERIES)
def _compile_query(query: Query, dialect: Dialect) -> CompiledQuery:
    return CompiledQuery(query, dialect)


def _dialect_type(typed: ColumnElement[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Returns the dialect's implementation of an expression's type."""
    return typed.type.dialect_impl(dialect)
