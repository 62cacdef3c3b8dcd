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

from penstock.errors import AWAY, ConflictError, SettingsError, StartError, UnavailableError
from penstock.store.fast_reads import Reading
from penstock.store.sqlite import Connection
from penstock.store.value_errors import refuse_unfit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator

    from sqlalchemy import URL, QueuePool
    from sqlalchemy.ext.asyncio import AsyncEngine

    from penstock.settings import Store
    from penstock.settings.secret import Secret

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
# Readers do not wait for each other in SQLite either, but each connection is a thread.
SQLITE_CONNECTIONS = 3
# A connection that nobody used for so long is asked whether it is still there.
TRIED_AFTER = 0.25
NO_TABLES = ("no such table", "does not exist")
# PostgreSQL's names of failures that are only those of a moment: a conflict of transactions, a deadlock, too long a wait.
CROWDED = frozenset({"40001", "40P01", "55P03"})
# A statement of a migration may rewrite a large table: it ends by itself, or with what it waits for.
STATEMENT_OF_MIGRATION_MS = 3_600_000

Opened = TypeVar("Opened", bound=AsyncConnection)


class Database:
    """Opens connections inside transactions; a failure of the database is never one of the caller."""

    def __init__(self, settings: Store, url: Secret) -> None:
        """Prepare; nothing is opened before the first use."""
        self.url = parse(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        self._settings = settings
        # How long to wait for others who write: less than a statement may take, which would look like a store that is away.
        self.turn_ms = settings.statement_ms * 4 // 5
        self._patience = settings.acquire_ms / 1000
        self._engine = _sqlite(self.url, settings) if self.embedded else _postgresql(self.url, settings)
        # Each statement of PostgreSQL's sees what was kept by then, within a transaction too: for reading none is begun.
        without = {"reads": True} if self.embedded else {"isolation_level": "AUTOCOMMIT"}
        event.listen(self._engine.sync_engine, "handle_error", refuse_unfit)
        self._reader = self._engine.execution_options(**without)
        # Connections that were read with, for who reads next: to take one out of the pool costs as much as most queries.
        self._rested: list[Reading] = []
        self._most = _most(self.url, settings)
        self._opening = 0
        self._returning: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection for reading: with SQLite all of its statements see one state of the data."""
        with _told():
            connection = await self._awake() or await self._connection(Reading(self._reader).open())
            is_well = False
            try:
                yield connection
                if self._may_rest() and not connection.invalidated:
                    await connection.rest()
                    self._rested.append(connection)
                    is_well = True
            finally:
                if not is_well:
                    # There is nothing to keep: to close it ends the transaction, in one step.
                    await connection.close()

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection whose changes are all kept at the end, or none of them."""
        with _told():
            # One that is there is taken before another is opened.
            if self._rested:
                await _lay_back(self._rested.pop())
            connection = await self._connection(self._engine.connect().start())
            try:
                async with connection.begin():
                    yield connection
            finally:
                await asyncio.shield(connection.close())

    @asynccontextmanager
    async def migrating(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection that is not hurried, for changes of the tables: a failure is other than a database that is away."""
        async with AsyncExitStack() as opened:
            with _told():
                connection = await self._connection(self._unhurried(opened).connect().start())
                # What was not committed is taken back by it.
                opened.push_async_callback(connection.close)
                transaction = await connection.begin()
            with _failing():
                yield connection
                await transaction.commit()

    def _unhurried(self, opened: AsyncExitStack) -> AsyncEngine:
        if self.embedded:
            engine = _sqlite(self.url, self._settings)
            # It changes a table by making it anew, and what refers to the old one would go along with it.
            event.listen(engine.sync_engine, "connect", _let_go)
        else:
            settings = msgspec.structs.replace(self._settings, connections=1, statement_ms=STATEMENT_OF_MIGRATION_MS)
            engine = _postgresql(self.url, settings)
        opened.push_async_callback(engine.dispose)
        return engine

    async def close(self) -> None:
        """Close all connections."""
        while self._rested:
            await _lay_back(self._rested.pop())
        if self._returning:
            await asyncio.wait(self._returning, timeout=self._patience)
        await self._engine.dispose()

    def _may_rest(self) -> bool:
        """Say whether a connection may be kept for who reads next: nobody waits for one, nor would the next who comes."""
        is_empty = cast("QueuePool", self._engine.pool).checkedout() >= self._most
        return len(self._rested) < self._most // 2 and not self._opening and not is_empty

    async def _awake(self) -> Reading | None:
        """Give a connection that rested; one that was cut off meanwhile, or frozen, is found out where the pool gives it."""
        while self._rested:
            connection = self._rested.pop()
            if self.embedded or time.monotonic() - connection.rested_at < TRIED_AFTER:
                return connection
            await _lay_back(connection)
        return None

    async def _connection(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        self._opening += 1
        try:
            return await (opening if self.embedded else self._in_time(opening))
        finally:
            self._opening -= 1

    async def _in_time(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        starting = asyncio.ensure_future(opening)
        try:
            done, _ = await asyncio.wait({starting}, timeout=self._patience)
        except asyncio.CancelledError:
            self._drop(starting)
            raise
        if not done:
            # Its end is not waited for: it would say goodbye to a server that does not answer.
            self._drop(starting)
            raise TimeoutError
        return starting.result()

    def _drop(self, starting: asyncio.Future[Any]) -> None:
        """Want a connection no longer; one that has come in this moment is given back."""
        starting.cancel()
        starting.add_done_callback(self._give_back)

    def _give_back(self, started: asyncio.Future[Any]) -> None:
        if started.cancelled() or started.exception():
            return
        returning = asyncio.ensure_future(started.result().close())
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)


async def _lay_back(connection: Reading) -> None:
    """Give it back to the pool as old as it is: who takes it next must know whether to try it."""
    info = connection.info
    await connection.close()
    info["used"] = connection.rested_at


# Who asks is to blame for these, and not the store: a row or column that is not there, a statement that cannot be written.
OURS = (exc.ArgumentError, exc.CompileError, exc.InvalidRequestError, exc.StatementError)
# But for what its driver says, and for what follows a connection that broke.
ITS = (exc.DBAPIError, exc.PendingRollbackError)


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise _conflict(error) from error
    except (exc.SQLAlchemyError, OSError, TimeoutError) as error:
        if isinstance(error, OURS) and not isinstance(error, ITS):
            raise
        raise _unavailable(error) from error


@contextmanager
def _failing() -> Generator[None]:
    try:
        yield
    except (exc.SQLAlchemyError, OSError, TimeoutError) as error:
        # What follows the first line may show rows.
        said = str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__
        raise _unmigrated(said) from error
    except UnavailableError as error:
        raise _unmigrated(error.message) from error


def _unmigrated(said: str) -> StartError:
    return StartError(f"the store cannot be migrated, and is as it was: {said}")


def parse(url: Secret) -> URL:
    """Read the address, and choose the driver that does not block."""
    try:
        parsed = make_url(url.reveal())
        return parsed.set(drivername=DRIVERS[parsed.get_backend_name()])
    except (exc.ArgumentError, KeyError):
        message = "store.url is not allowed: expected postgresql://user:password@host/database or sqlite:///file"
        raise SettingsError(message) from None


def _as_json(value: object) -> str:
    """Write a document of any shape, in a fifth of the standard library's time; names of columns in it are no plain texts."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # Whole numbers may have more digits than it writes.
        return json.dumps(value)


def _most(url: URL, settings: Store) -> int:
    """Say how many connections there may be."""
    return min(settings.connections, SQLITE_CONNECTIONS) if url.get_backend_name() == "sqlite" else settings.connections


def _sqlite(url: URL, settings: Store) -> AsyncEngine:
    opening = partial(Connection, url.database or "", settings.acquire_ms / 1000)
    engine = create_async_engine(
        url,
        pool_size=_most(url, settings),
        max_overflow=0,
        pool_timeout=settings.acquire_ms / 1000,
        hide_parameters=True,
        json_serializer=_as_json,
        json_deserializer=msgspec.json.decode,
        async_creator=opening,
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - as its driver has it
    cursor = connection.cursor()
    # FULL: what was acknowledged is on the disk, whatever happens to the machine.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-2048"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _let_go(connection: Any, _record: object) -> None:  # noqa: ANN401 - as above
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:  # noqa: ANN401 - as above
    # One that begins by reading and writes later would fail where it could have waited.
    connection.connection.driver_connection.begin(writes=not connection.get_execution_options().get("reads"))


def _postgresql(url: URL, settings: Store) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=_most(url, settings),
        max_overflow=0,
        pool_timeout=settings.acquire_ms / 1000,
        hide_parameters=True,
        json_serializer=_as_json,
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
    event.listen(engine.sync_engine, "connect", _note_use)
    event.listen(engine.sync_engine, "checkin", _note_use)
    event.listen(engine.sync_engine, "checkout", _try_idle)
    return engine


def _note_use(_connection: object, record: Any) -> None:  # noqa: ANN401 - as above
    record.info["used"] = time.monotonic()


def _try_idle(connection: Any, record: Any, _proxy: object) -> None:  # noqa: ANN401 - as above
    """Notice one that was cut off, or frozen, before a statement waits for it; one that has just been used is well."""
    if time.monotonic() - record.info.get("used", -TRIED_AFTER) < TRIED_AFTER:
        return
    try:
        connection.ping()
    except connection.dbapi.Error as error:
        raise exc.DisconnectionError from error


def _conflict(error: exc.IntegrityError) -> ConflictError:
    said = str(error.orig).lower()
    if "foreign key" in said:
        return ConflictError("something else depends on it, or what it refers to is gone")
    return ConflictError("this slug is taken" if "slug" in said else "it exists already")


def _unavailable(error: BaseException) -> UnavailableError:
    said = str(getattr(error, "orig", error))
    if any(words in said for words in NO_TABLES):
        return UnavailableError("the store has no tables yet; hint: penstock migrate, then penstock init")
    if getattr(getattr(error, "orig", None), "sqlstate", None) in CROWDED:
        return UnavailableError("others are changing the same at this moment; nothing was changed: try again")
    return UnavailableError(AWAY)


def make_private(url: URL) -> None:
    """Create the file of an embedded database so that nobody else can read it."""
    try:
        os.close(os.open(url.database or "", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"the store {url.database!r} cannot be opened: {error.strerror}"
        raise UnavailableError(message) from None
