"""The way to the database: few connections, short waits, and one exception for all that may be wrong with it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import orjson
from sqlalchemy import event, exc
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from penstock.errors import STORE_UNAVAILABLE_MESSAGE, ConflictError, SettingsError, StartupError, UnavailableError
from penstock.store.fast_reads import ReadConnection
from penstock.store.sqlite import Connection
from penstock.store.value_errors import reject_invalid_values

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator

    from sqlalchemy import URL, QueuePool
    from sqlalchemy.ext.asyncio import AsyncEngine

    from penstock.settings import Store
    from penstock.settings.secret import Secret

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
# Readers do not wait for each other in SQLite either, but each connection is a thread.
MAX_SQLITE_CONNECTIONS = 3
# A connection that nobody used for so long is asked whether it is still there.
PING_AFTER_IDLE_SECONDS = 0.25
MISSING_TABLE_MESSAGES = ("no such table", "does not exist")
# PostgreSQL's names of failures that are only those of a moment: a conflict of transactions, a deadlock, too long a wait.
TRANSIENT_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
# A statement of a migration may rewrite a large table: it ends by itself, or with what it waits for.
MIGRATION_STATEMENT_TIMEOUT_MS = 3_600_000

Opened = TypeVar("Opened", bound=AsyncConnection)


class Database:
    """Opens connections inside transactions; a failure of the database is never one of the caller."""

    def __init__(self, settings: Store, url: Secret) -> None:
        """Prepare; nothing is opened before the first use."""
        self.url = parse_url(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        self._settings = settings
        # How long to wait for others who write: less than a statement may take, which would look like a store that is away.
        self.turn_ms = settings.statement_ms * 4 // 5
        self._patience = settings.acquire_ms / 1000
        self._engine = (
            _create_sqlite_engine(self.url, settings)
            if self.embedded
            else _create_postgresql_engine(self.url, settings)
        )
        # Each statement of PostgreSQL's sees what was kept by then, within a transaction too: for reading none is begun.
        without = {"reads": True} if self.embedded else {"isolation_level": "AUTOCOMMIT"}
        event.listen(self._engine.sync_engine, "handle_error", reject_invalid_values)
        self._reader = self._engine.execution_options(**without)
        # Connections that were read with, for who reads next: to take one out of the pool costs as much as most queries.
        self._rested: list[ReadConnection] = []
        self._most = _max_connections(self.url, settings)
        self._opening = 0
        self._returning: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def read_connection(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection for reading: with SQLite all of its statements see one state of the data."""
        with _translate_errors():
            connection = await self._take_idle_reader() or await self._connect(ReadConnection(self._reader).open())
            is_well = False
            try:
                yield connection
                if self._can_keep_reader() and not connection.invalidated:
                    await connection.end_read()
                    self._rested.append(connection)
                    is_well = True
            finally:
                if not is_well:
                    # There is nothing to keep: to close it ends the transaction, in one step.
                    await connection.close()

    @asynccontextmanager
    async def write_transaction(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection whose changes are all kept at the end, or none of them."""
        with _translate_errors():
            # One that is there is taken before another is opened.
            if self._rested:
                await _return_to_pool(self._rested.pop())
            connection = await self._connect(self._engine.connect().start())
            try:
                async with connection.begin():
                    yield connection
            finally:
                await asyncio.shield(connection.close())

    @asynccontextmanager
    async def migration_transaction(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection that is not hurried, for changes of the tables: a failure is other than a database that is away."""
        async with AsyncExitStack() as opened:
            with _translate_errors():
                connection = await self._connect(self._create_migration_engine(opened).connect().start())
                # What was not committed is taken back by it.
                opened.push_async_callback(connection.close)
                transaction = await connection.begin()
            with _translate_migration_errors():
                yield connection
                await transaction.commit()

    def _create_migration_engine(self, opened: AsyncExitStack) -> AsyncEngine:
        if self.embedded:
            engine = _create_sqlite_engine(self.url, self._settings)
            # It changes a table by making it anew, and what refers to the old one would go along with it.
            event.listen(engine.sync_engine, "connect", _disable_foreign_keys)
        else:
            settings = msgspec.structs.replace(
                self._settings, connections=1, statement_ms=MIGRATION_STATEMENT_TIMEOUT_MS
            )
            engine = _create_postgresql_engine(self.url, settings)
        opened.push_async_callback(engine.dispose)
        return engine

    async def close(self) -> None:
        """Close all connections."""
        while self._rested:
            await _return_to_pool(self._rested.pop())
        if self._returning:
            await asyncio.wait(self._returning, timeout=self._patience)
        await self._engine.dispose()

    def _can_keep_reader(self) -> bool:
        """Say whether a connection may be kept for who reads next: nobody waits for one, nor would the next who comes."""
        is_empty = cast("QueuePool", self._engine.pool).checkedout() >= self._most
        return len(self._rested) < self._most // 2 and not self._opening and not is_empty

    async def _take_idle_reader(self) -> ReadConnection | None:
        """Give a connection that rested; one that was cut off meanwhile, or frozen, is found out where the pool gives it."""
        while self._rested:
            connection = self._rested.pop()
            if self.embedded or time.monotonic() - connection.rested_at < PING_AFTER_IDLE_SECONDS:
                return connection
            await _return_to_pool(connection)
        return None

    async def _connect(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        self._opening += 1
        try:
            return await (opening if self.embedded else self._connect_with_timeout(opening))
        finally:
            self._opening -= 1

    async def _connect_with_timeout(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        starting = asyncio.ensure_future(opening)
        try:
            done, _ = await asyncio.wait({starting}, timeout=self._patience)
        except asyncio.CancelledError:
            self._abandon_connection(starting)
            raise
        if not done:
            # Its end is not waited for: it would say goodbye to a server that does not answer.
            self._abandon_connection(starting)
            raise TimeoutError
        return starting.result()

    def _abandon_connection(self, starting: asyncio.Future[Any]) -> None:
        """Want a connection no longer; one that has come in this moment is given back."""
        starting.cancel()
        starting.add_done_callback(self._close_late_connection)

    def _close_late_connection(self, started: asyncio.Future[Any]) -> None:
        if started.cancelled() or started.exception():
            return
        returning = asyncio.ensure_future(started.result().close())
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)


async def _return_to_pool(connection: ReadConnection) -> None:
    """Give it back to the pool as old as it is: who takes it next must know whether to try it."""
    info = connection.info
    await connection.close()
    info["used"] = connection.rested_at


# Who asks is to blame for these, and not the store: a row or column that is not there, a statement that cannot be written.
PROGRAMMING_ERRORS = (exc.ArgumentError, exc.CompileError, exc.InvalidRequestError, exc.StatementError)
# But for what its driver says, and for what follows a connection that broke.
DATABASE_ERRORS = (exc.DBAPIError, exc.PendingRollbackError)


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
        # What follows the first line may show rows.
        said = str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__
        raise _migration_error(said) from error
    except UnavailableError as error:
        raise _migration_error(error.message) from error


def _migration_error(said: str) -> StartupError:
    return StartupError(f"the store cannot be migrated, and is as it was: {said}")


def parse_url(url: Secret) -> URL:
    """Read the address, and choose the driver that does not block."""
    try:
        parsed = make_url(url.reveal())
        return parsed.set(drivername=ASYNC_DRIVERS[parsed.get_backend_name()])
    except (exc.ArgumentError, KeyError):
        message = "store.url is not allowed: expected postgresql://user:password@host/database or sqlite:///file"
        raise SettingsError(message) from None


def _encode_json(value: object) -> str:
    """Write a document of any shape, in a fifth of the standard library's time; names of columns in it are no plain texts."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # Whole numbers may have more digits than it writes.
        return json.dumps(value)


def _max_connections(url: URL, settings: Store) -> int:
    """Say how many connections there may be."""
    return (
        min(settings.connections, MAX_SQLITE_CONNECTIONS)
        if url.get_backend_name() == "sqlite"
        else settings.connections
    )


def _create_sqlite_engine(url: URL, settings: Store) -> AsyncEngine:
    opening = partial(Connection, url.database or "", settings.acquire_ms / 1000)
    engine = create_async_engine(
        url,
        pool_size=_max_connections(url, settings),
        max_overflow=0,
        pool_timeout=settings.acquire_ms / 1000,
        hide_parameters=True,
        json_serializer=_encode_json,
        json_deserializer=msgspec.json.decode,
        async_creator=opening,
    )
    event.listen(engine.sync_engine, "connect", _set_sqlite_pragmas)
    event.listen(engine.sync_engine, "begin", _begin_sqlite_transaction)
    return engine


def _set_sqlite_pragmas(connection: Any, _record: object) -> None:  # noqa: ANN401 - as its driver has it
    cursor = connection.cursor()
    # FULL: what was acknowledged is on the disk, whatever happens to the machine.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-2048"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _disable_foreign_keys(connection: Any, _record: object) -> None:  # noqa: ANN401 - as above
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    cursor.close()


def _begin_sqlite_transaction(connection: Any) -> None:  # noqa: ANN401 - as above
    # One that begins by reading and writes later would fail where it could have waited.
    connection.connection.driver_connection.begin(writes=not connection.get_execution_options().get("reads"))


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
    # One that was opened this moment is well.
    event.listen(engine.sync_engine, "connect", _record_last_use)
    event.listen(engine.sync_engine, "checkin", _record_last_use)
    event.listen(engine.sync_engine, "checkout", _ping_idle_connection)
    return engine


def _record_last_use(_connection: object, record: Any) -> None:  # noqa: ANN401 - as above
    record.info["used"] = time.monotonic()


def _ping_idle_connection(connection: Any, record: Any, _proxy: object) -> None:  # noqa: ANN401 - as above
    """Notice one that was cut off, or frozen, before a statement waits for it; one that has just been used is well."""
    if time.monotonic() - record.info.get("used", -PING_AFTER_IDLE_SECONDS) < PING_AFTER_IDLE_SECONDS:
        return
    try:
        connection.ping()
    except connection.dbapi.Error as error:
        raise exc.DisconnectionError from error


def _conflict_error(error: exc.IntegrityError) -> ConflictError:
    said = str(error.orig).lower()
    if "foreign key" in said:
        return ConflictError("something else depends on it, or what it refers to is gone")
    return ConflictError("this slug is taken" if "slug" in said else "it exists already")


def _unavailable_error(error: BaseException) -> UnavailableError:
    said = str(getattr(error, "orig", error))
    if any(words in said for words in MISSING_TABLE_MESSAGES):
        return UnavailableError("the store has no tables yet; hint: penstock migrate, then penstock init")
    if getattr(getattr(error, "orig", None), "sqlstate", None) in TRANSIENT_SQLSTATES:
        return UnavailableError("others are changing the same at this moment; nothing was changed: try again")
    return UnavailableError(STORE_UNAVAILABLE_MESSAGE)


def create_private_file(url: URL) -> None:
    """Create the file of an embedded database so that nobody else can read it."""
    try:
        os.close(os.open(url.database or "", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"the store {url.database!r} cannot be opened: {error.strerror}"
        raise UnavailableError(message) from None
