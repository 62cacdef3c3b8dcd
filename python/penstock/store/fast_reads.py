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
QUERIES = 2000
# What PostgreSQL says where a statement took too long.
CANCELLED = "57014"
# By the dialect and all but the values in them.
_LIKE: dict[tuple[str, Any], Written] = {}


class Reading(AsyncConnection):
    """A connection for reading, which may be used again by who reads next."""

    __slots__ = ("_driver", "rested_at")

    def __init__(self, engine: AsyncEngine) -> None:
        """Prepare; `open` connects."""
        super().__init__(engine)
        self._driver: Any = None
        self.rested_at = 0.0

    async def open(self) -> Reading:
        """Take a connection out of the pool."""
        await self.start()
        if self.sync_connection is not None:
            self._driver = self.sync_connection.connection.driver_connection
        return self

    async def asked(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        """Give the rows of a query that was written once, by the names of its columns."""
        return await self._fetch(_written(query, self.dialect), query, values)

    async def rows(self, query: Query) -> list[Row]:
        """Give the rows of any query: it is written for the driver where none like it was, but for the values in it."""
        key = query._generate_cache_key()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as who extends it does
        if key is None:
            return await self._said(query, {})
        written = _LIKE.get((self.dialect.name, key.key))
        if written is None:
            if len(_LIKE) >= QUERIES:
                _LIKE.clear()
            written = _LIKE[self.dialect.name, key.key] = Written(query, self.dialect)
            written.know(key.bindparams)
        return await self._fetch(written, query, written.named(key.bindparams))

    async def _fetch(self, written: Written, query: Query, values: Mapping[str, Any]) -> list[Row]:
        sql, parameters = written.filled(values)
        try:
            found: Sequence[Any] = await self._driver.fetch(sql, *parameters)
        except (OSError, TimeoutError):
            raise
        except asyncio.CancelledError:
            # The driver may still be telling the server to let it be.
            await self.invalidate()
            raise
        except Exception as error:
            if is_out_of_time(error):
                raise TimeoutError from error
            # What is wrong is told in one way, whichever way was asked.
            return await self._said(query, values)
        return written.read(found)

    async def _said(self, query: Query, values: Mapping[str, Any]) -> list[Row]:
        return [cast("Row", row) for row in (await self.execute(query, values)).mappings()]

    async def rest(self) -> None:
        """Be as new for the next who reads."""
        if self.in_transaction():
            await self.rollback()
        elif self.dialect.name == "sqlite":
            await self._driver.rest()
        self.rested_at = time.monotonic()


class Written:
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
        kinds = ((name, _kind(bind, dialect)) for bind, name in binds)
        self._writers = {name: writer for name, kind in kinds if (writer := kind.bind_processor(dialect))}
        columns = [(name, _kind(column, dialect)) for name, column in query.selected_columns.items()]
        self._names = tuple(name for name, _ in columns)
        self._readers = [(name, reader) for name, kind in columns if (reader := kind.result_processor(dialect, None))]

    def know(self, binds: Sequence[BindParameter[Any]]) -> None:
        """Learn where values go that others like it hold in this order."""
        names = {bind.key: name for bind, name in self._compiled.bind_names.items()}
        self._places = [names.get(bind.key) for bind in binds]

    def named(self, binds: Sequence[BindParameter[Any]]) -> dict[str, Any]:
        """Give the values that another like it holds, by their names here."""
        places = zip(self._places, binds, strict=True)
        return {name: bind.effective_value for name, bind in places if name is not None}

    def filled(self, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
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

    def read(self, found: Sequence[Sequence[Any]]) -> list[Row]:
        """Read rows as the driver gives them."""
        names, readers = self._names, self._readers
        rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:
            for name, reader in readers:
                row[name] = reader(row[name])
        return [*rows]


def is_out_of_time(error: Exception) -> bool:
    """Say whether the database gave up, by its own clock: to ask again would take as long again."""
    is_busy = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
    return is_busy or getattr(error, "sqlstate", None) == CANCELLED


@lru_cache(QUERIES)
def _written(query: Query, dialect: Dialect) -> Written:
    return Written(query, dialect)


def _kind(typed: ColumnElement[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Give a type as the dialect has it."""
    return typed.type.dialect_impl(dialect)
