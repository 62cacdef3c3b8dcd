"""The way to the database: few connections, short waits, and one exception for all that may be wrong with it."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event, exc
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from penstock.errors import ConflictError, SettingsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.secret import Secret
    from penstock.settings import Store

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
# Readers do not wait for each other in SQLite either, but each connection is a thread.
SQLITE_CONNECTIONS = 3
NO_TABLES = ("no such table", "does not exist")


class Database:
    """Opens connections inside transactions; a failure of the database is never one of the caller."""

    def __init__(self, settings: Store, url: Secret) -> None:
        """Prepare; nothing is opened before the first use."""
        self.url = parse(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        self._patience = settings.acquire_ms / 1000
        self._engine = create_async_engine(
            self.url,
            pool_size=min(settings.connections, SQLITE_CONNECTIONS) if self.embedded else settings.connections,
            max_overflow=0,
            pool_timeout=self._patience,
            # One that was cut off, or frozen, is noticed before a statement waits for it.
            pool_pre_ping=not self.embedded,
            hide_parameters=True,
            connect_args=_options(settings, embedded=self.embedded),
        )
        if self.embedded:
            event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(self._engine.sync_engine, "begin", _begin_sqlite)

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection that sees one state of the data."""
        async with self._transaction(writes=False) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection whose changes are all kept at the end, or none of them."""
        async with self._transaction(writes=True) as connection:
            yield connection

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    @asynccontextmanager
    async def _transaction(self, *, writes: bool) -> AsyncGenerator[AsyncConnection]:
        try:
            connection = await self._connection()
            try:
                await connection.execution_options(writes=writes)
                async with connection.begin():
                    yield connection
            finally:
                await asyncio.shield(connection.close())
        except exc.IntegrityError as error:
            raise _conflict(error) from error
        except (exc.SQLAlchemyError, OSError, TimeoutError) as error:
            raise _unavailable(error) from error

    async def _connection(self) -> AsyncConnection:
        starting = asyncio.ensure_future(self._engine.connect().start())
        try:
            done, _ = await asyncio.wait({starting}, timeout=self._patience)
        except asyncio.CancelledError:
            starting.cancel()
            raise
        if not done:
            # Its end is not waited for: it would say goodbye to a server that does not answer.
            starting.cancel()
            starting.add_done_callback(_forget)
            raise TimeoutError
        return starting.result()


def _forget(started: asyncio.Future[AsyncConnection]) -> None:
    if not started.cancelled():
        started.exception()


def parse(url: Secret) -> URL:
    """Read the address, and choose the driver that does not block."""
    try:
        parsed = make_url(url.reveal())
        return parsed.set(drivername=DRIVERS[parsed.get_backend_name()])
    except (exc.ArgumentError, KeyError):
        message = "store.url is not allowed: expected postgresql://user:password@host/database or sqlite:///file"
        raise SettingsError(message) from None


def _options(settings: Store, *, embedded: bool) -> dict[str, Any]:
    if embedded:
        return {"timeout": settings.acquire_ms / 1000, "isolation_level": None}
    return {
        "timeout": settings.acquire_ms / 1000,
        "command_timeout": settings.statement_ms / 1000,
        "server_settings": {
            "application_name": "penstock",
            "statement_timeout": str(settings.statement_ms),
            "idle_in_transaction_session_timeout": str(2 * settings.statement_ms),
        },
    }


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401
    cursor = connection.cursor()
    # FULL: what was acknowledged is on the disk, whatever happens to the machine.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-2048"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:  # noqa: ANN401
    # One that begins by reading and writes later would fail where it could have waited.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _conflict(error: exc.IntegrityError) -> ConflictError:
    said = str(error.orig).lower()
    if "foreign key" in said:
        return ConflictError("something else depends on it, or what it refers to is gone")
    return ConflictError("it exists already")


def _unavailable(error: BaseException) -> UnavailableError:
    said = str(getattr(error, "orig", error))
    if any(words in said for words in NO_TABLES):
        return UnavailableError("the store has no tables yet; hint: penstock migrate, then penstock init")
    return UnavailableError("the store does not answer; what the gateway serves goes on as it is")


def make_private(url: URL) -> None:
    """Create the file of an embedded database so that nobody else can read it."""
    try:
        os.close(os.open(url.database or "", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"the store {url.database!r} cannot be opened: {error.strerror}"
        raise UnavailableError(message) from None
