"""Database connections: few connections, short timeouts, and one exception type for all failures of the database."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from sqlalchemy import event, exc
from sqlalchemy.engine import make_url

from penstock.errors import (
    STORE_UNAVAILABLE_MESSAGE,
    ConflictError,
    InvalidError,
    SettingsError,
    StartupError,
    UnavailableError,
)
from penstock.store.async_engine import create_async_engine
from penstock.store.value_errors import reject_invalid_values

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from penstock.settings.secret import Secret
    from penstock.settings.store import Store

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
# Maximum number of connections to SQLite. Its readers do not block each other, but each connection uses a thread.
MAX_SQLITE_CONNECTIONS = 3
# Maximum time that a change to an embedded database waits for other changes, and maximum number of changes that wait.
# So a burst of changes is saved, and does not fail as if the store were unavailable.
MAX_WRITE_WAIT_SECONDS, MAX_WAITING_WRITERS = 10.0, 1000
# A connection that was idle for longer is pinged before use.
PING_AFTER_IDLE_SECONDS = 0.25
MISSING_TABLE_MESSAGES = ("no such table", "does not exist")
MISSING_DATABASE_PATTERN = re.compile(r"database \".*\" does not exist")
# PostgreSQL error codes of temporary failures: transaction conflict, deadlock, lock timeout.
TRANSIENT_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
# Time limit for a statement of a migration. It may rewrite a large table, or wait for a lock.
MIGRATION_STATEMENT_TIMEOUT_MS = 3_600_000


class Database:
    """Opens connections inside transactions. Reports failures of the database as unavailability, never as an error of
    the client.
    """

    def __init__(self, settings: Store, url: Secret) -> None:
        """Prepares the engine; no connection is opened before the first use."""
        self.url = parse_url(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        self.file = self.url.database if self.embedded else None
        self._settings = settings
        # Maximum wait for other writers. Less than the statement timeout, which would be reported as an unavailable
        # store.
        self.turn_ms = settings.statement_ms * 4 // 5
        self._max_wait_seconds = settings.acquire_ms / 1000
        self._engine = (
            _create_sqlite_engine(self.url, settings)
            if self.embedded
            else _create_postgresql_engine(self.url, settings)
        )
        event.listen(self._engine.sync_engine, "handle_error", reject_invalid_values)
        # Each PostgreSQL statement sees all data committed before it, also inside a transaction, so reads need no
        # transaction.
        without = {"reads": True} if self.embedded else {"isolation_level": "AUTOCOMMIT"}
        self._reader = self._engine.execution_options(**without)
        self._closing: set[asyncio.Future[None]] = set()
        # SQLite has one writer at a time. Changes that wait for this lock use no connection.
        self._write_lock = asyncio.Lock()
        self._waiting_writers = 0

    @property
    def exists(self) -> bool:
        """False if this is an embedded database whose file does not exist yet."""
        return self.file is None or os.access(self.file, os.F_OK)

    @asynccontextmanager
    async def read_connection(self) -> AsyncGenerator[AsyncConnection]:
        """Yields a connection for reading. With SQLite, all of its statements see the same state of the data."""
        with _translate_errors():
            connection = await self._connect(self._reader)
            try:
                yield connection
            finally:
                # A read has nothing to commit. Closing the connection ends its transaction.
                await asyncio.shield(connection.close())

    @asynccontextmanager
    async def write_transaction(self) -> AsyncGenerator[AsyncConnection]:
        """Yields a connection in a transaction. Commits at the end, or rolls back on an error."""
        async with self._wait_for_writer_slot(), self._open_write_transaction() as connection:
            yield connection

    @asynccontextmanager
    async def _wait_for_writer_slot(self) -> AsyncGenerator[None]:
        """Waits until the other changes of this process are saved, if the database is embedded."""
        if not self.embedded:
            yield
            return
        if self._waiting_writers >= MAX_WAITING_WRITERS:
            message = f"{MAX_WAITING_WRITERS} other changes are waiting to be saved; nothing was changed: try again"
            raise UnavailableError(message)
        self._waiting_writers += 1
        try:
            async with asyncio.timeout(MAX_WRITE_WAIT_SECONDS):
                await self._write_lock.acquire()
        except TimeoutError:
            message = f"other changes needed more than {MAX_WRITE_WAIT_SECONDS:g} s to be saved; nothing was changed: try again"
            raise UnavailableError(message) from None
        finally:
            self._waiting_writers -= 1
        try:
            yield
        finally:
            self._write_lock.release()

    @asynccontextmanager
    async def _open_write_transaction(self) -> AsyncGenerator[AsyncConnection]:
        with _translate_errors():
            connection = await self._connect(self._engine)
            try:
                async with connection.begin():
                    yield connection
            finally:
                await asyncio.shield(connection.close())

    @asynccontextmanager
    async def migration_transaction(self) -> AsyncGenerator[AsyncConnection]:
        """Yields a connection in a transaction for migrations, with a long statement timeout. A failed migration raises
        `StartupError`.
        """
        async with AsyncExitStack() as opened:
            with _translate_errors():
                connection = await self._connect(self._create_migration_engine(opened))
                # Closing rolls back what was not committed.
                opened.push_async_callback(connection.close)
                transaction = await connection.begin()
            with _translate_migration_errors():
                yield connection
                await transaction.commit()

    def _create_migration_engine(self, opened: AsyncExitStack) -> AsyncEngine:
        if self.embedded:
            engine = _create_sqlite_engine(self.url, self._settings)
            # SQLite migrations recreate a table. With foreign keys on, dropping the old one would delete the rows that
            # refer to it.
            event.listen(engine.sync_engine, "connect", _disable_foreign_keys)
        else:
            settings = msgspec.structs.replace(
                self._settings, connections=1, statement_ms=MIGRATION_STATEMENT_TIMEOUT_MS
            )
            engine = _create_postgresql_engine(self.url, settings)
        opened.push_async_callback(engine.dispose)
        return engine

    @asynccontextmanager
    async def backup_connection(self) -> AsyncGenerator[AsyncConnection]:
        """Yields a connection that reads one state of the data, however long that takes, while others write."""
        if self.embedded:
            async with self.read_connection() as connection:
                yield connection
            return
        async with AsyncExitStack() as opened:
            with _translate_errors():
                connection = await self._connect(self._create_migration_engine(opened))
                opened.push_async_callback(connection.close)
                yield await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    async def close(self) -> None:
        """Closes all connections."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._max_wait_seconds)
        await self._engine.dispose()

    async def _connect(self, engine: AsyncEngine) -> AsyncConnection:
        opening = engine.connect().start()
        if self.embedded:
            return await opening
        starting = asyncio.ensure_future(opening)
        try:
            done, _ = await asyncio.wait({starting}, timeout=self._max_wait_seconds)
        except asyncio.CancelledError:
            self._abandon_connection(starting)
            raise
        if not done:
            # Does not wait for the cancelled task, which would try to close the connection to a server that does not
            # respond.
            self._abandon_connection(starting)
            raise TimeoutError
        return starting.result()

    def _abandon_connection(self, starting: asyncio.Future[AsyncConnection]) -> None:
        """Cancels the opening of a connection. If it was opened at the same moment, it is closed."""
        starting.cancel()
        starting.add_done_callback(self._close_late_connection)

    def _close_late_connection(self, started: asyncio.Future[AsyncConnection]) -> None:
        if started.cancelled() or started.exception():
            return
        closing = asyncio.ensure_future(started.result().close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


# Errors of the calling code, not of the database: a missing row or column, or a statement that cannot be compiled.
PROGRAMMING_ERRORS = (exc.ArgumentError, exc.CompileError, exc.InvalidRequestError, exc.StatementError)
# Subclasses of `PROGRAMMING_ERRORS` that the database causes: driver errors, and errors that follow a broken
# connection.
DATABASE_ERRORS = (exc.DBAPIError, exc.PendingRollbackError)


# First two characters of the SQLSTATE of errors about values, such as text that the database cannot store.
VALUE_ERROR_CLASS = "22"


def is_value_error(error: BaseException | None) -> bool:
    """Returns true if the database rejected a value, so that the same statement would fail again."""
    if isinstance(error, InvalidError):
        return True
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, exc.DataError) or str(sqlstate or "").startswith(VALUE_ERROR_CLASS)


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise _conflict_error(error) from error
    except (exc.SQLAlchemyError, OSError, TimeoutError) as error:
        if isinstance(error, PROGRAMMING_ERRORS) and not isinstance(error, DATABASE_ERRORS):
            raise
        raise _unavailable_error(error) from error


@contextmanager
def _translate_migration_errors() -> Generator[None]:
    try:
        yield
    except (exc.SQLAlchemyError, OSError, TimeoutError) as error:
        # Uses only the first line, because later lines may contain row data.
        message = str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__
        raise _migration_error(message) from error
    except UnavailableError as error:
        raise _migration_error(error.message) from error


def _migration_error(reason: str) -> StartupError:
    return StartupError(f"the store cannot be migrated, and is as it was: {reason}")


def parse_url(url: Secret) -> URL:
    """Parses the database URL and selects the async driver. Raises `SettingsError` if the URL is not allowed."""
    try:
        parsed = make_url(url.reveal())
        return parsed.set(drivername=ASYNC_DRIVERS[parsed.get_backend_name()])
    except (exc.ArgumentError, KeyError):
        message = "store.url is not allowed: expected postgresql://user:password@host/database or sqlite:///file"
        raise SettingsError(message) from None


def _encode_json(value: object) -> str:
    """Serialises a JSON column with orjson, in a fifth of the standard library's time. SQLAlchemy's column names are a
    subclass of `str`, which needs `OPT_NON_STR_KEYS`.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # orjson rejects integers beyond 64 bits.
        return json.dumps(value)


def _max_connections(url: URL, settings: Store) -> int:
    """Returns the maximum number of connections."""
    return (
        min(settings.connections, MAX_SQLITE_CONNECTIONS)
        if url.get_backend_name() == "sqlite"
        else settings.connections
    )


def _create_sqlite_engine(url: URL, settings: Store) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=_max_connections(url, settings),
        max_overflow=0,
        pool_timeout=MAX_WRITE_WAIT_SECONDS,
        hide_parameters=True,
        json_serializer=_encode_json,
        json_deserializer=msgspec.json.decode,
        # `timeout` is the time to wait for a lock. Without an isolation level, the driver begins no transactions
        # itself.
        connect_args={"timeout": settings.acquire_ms / 1000, "isolation_level": None},
    )
    event.listen(engine.sync_engine, "connect", _set_sqlite_pragmas)
    event.listen(engine.sync_engine, "begin", _begin_sqlite_transaction)
    return engine


def _set_sqlite_pragmas(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection type
    cursor = connection.cursor()
    # With `synchronous=FULL`, committed data survives a power failure.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-2048"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _disable_foreign_keys(connection: Any, _record: object) -> None:  # noqa: ANN401 - as above
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    cursor.close()


def _begin_sqlite_transaction(connection: Any) -> None:  # noqa: ANN401 - as above
    # A writing transaction takes the write lock at once, because upgrading a read transaction cannot always wait for it.
    reads = connection.get_execution_options().get("reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _create_postgresql_engine(url: URL, settings: Store) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=_max_connections(url, settings),
        max_overflow=0,
        pool_timeout=settings.acquire_ms / 1000,
        hide_parameters=True,
        json_serializer=_encode_json,
        json_deserializer=msgspec.json.decode,
        connect_args={
            "timeout": settings.acquire_ms / 1000,
            "command_timeout": settings.statement_ms / 1000,
            "server_settings": {
                "application_name": "penstock",
                "statement_timeout": str(settings.statement_ms),
                "idle_in_transaction_session_timeout": str(2 * settings.statement_ms),
            },
        },
    )
    # `connect` also records the time, so that a new connection is not pinged before its first use.
    event.listen(engine.sync_engine, "connect", _record_last_use)
    event.listen(engine.sync_engine, "checkin", _record_last_use)
    event.listen(engine.sync_engine, "checkout", _ping_idle_connection)
    return engine


def _record_last_use(_connection: object, record: Any) -> None:  # noqa: ANN401 - as above
    record.info["used"] = time.monotonic()


def _ping_idle_connection(connection: Any, record: Any, _proxy: object) -> None:  # noqa: ANN401 - as above
    """Pings a connection that was idle, so that a broken or frozen one is detected before a statement waits for it."""
    if time.monotonic() - record.info.get("used", -PING_AFTER_IDLE_SECONDS) < PING_AFTER_IDLE_SECONDS:
        return
    try:
        connection.ping()
    except connection.dbapi.Error as error:
        raise exc.DisconnectionError from error


def _conflict_error(error: exc.IntegrityError) -> ConflictError:
    message = str(error.orig).lower()
    if "foreign key" in message:
        return ConflictError("something else depends on it, or what it refers to is gone")
    if "slug" not in message:
        return ConflictError("it exists already")
    return ConflictError("this slug is taken by another object of this kind; choose another slug")


def _unavailable_error(error: BaseException) -> UnavailableError:
    message = str(getattr(error, "orig", error))
    # Clients see this message, so it omits the database name that the driver reports.
    if MISSING_DATABASE_PATTERN.search(message):
        return UnavailableError("the database of store.url does not exist; hint: create it with createdb")
    if any(pattern in message for pattern in MISSING_TABLE_MESSAGES):
        return UnavailableError("the store has no tables yet; hint: penstock migrate, then penstock init")
    if getattr(getattr(error, "orig", None), "sqlstate", None) in TRANSIENT_SQLSTATES:
        return UnavailableError("another request is changing the same data; nothing was changed: try again")
    return UnavailableError(STORE_UNAVAILABLE_MESSAGE)


def create_private_file(url: URL) -> None:
    """Creates the file of an embedded database with mode 0600. Raises `UnavailableError` if it cannot be opened."""
    try:
        os.close(os.open(url.database or "", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"the store {url.database!r} cannot be opened: {error.strerror}"
        raise UnavailableError(message) from None
