"""The embedded database: short reads are done on the spot, all else on a thread, in one turn where the driver takes five."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import aiosqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    DatabaseOperation = Callable[[sqlite3.Connection], "Result"]

# Of SQLite's machine: about a millisecond. To hand a statement to a thread and take it back costs more than most reads.
MAX_INLINE_VM_STEPS = 20_000
# What was done on the spot is done again on the thread: it took too long, or somebody else holds a lock.
RETRY_ON_THREAD_CODES = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY)
READING, WRITING = "BEGIN", "BEGIN IMMEDIATE"

Result = TypeVar("Result")


class StatementResult(NamedTuple):
    """What a statement came to."""

    description: Any = None
    rows: Sequence[Any] = ()
    rowcount: int = -1
    lastrowid: int | None = None


class Connection(aiosqlite.Connection):
    """A transaction stays on the event loop while it only reads, and shortly; or it goes to the thread, until its end."""

    def __init__(self, path: str, patience: float) -> None:
        """Prepare; awaiting it opens the file."""
        super().__init__(self._open, iter_chunk_size=64)
        self._thread.daemon = True
        self._path = path
        self._patience = patience
        self._begin: str | None = None
        # Until somebody begins to read: what is prepared at the opening may wait for others.
        self._is_away = True

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=self._patience, isolation_level=None, check_same_thread=False)

    def begin(self, *, writes: bool) -> None:
        """Have the next statement begin a transaction; one that reads first and writes later could not always wait."""
        if writes:
            self._begin = WRITING
        elif not self._conn.in_transaction:
            self._begin = READING

    def cursor(self) -> Any:  # noqa: ANN401 - what the dialect expects of a driver is typed nowhere
        """Give a cursor that does all at once."""
        return Cursor(self)

    async def fetch(self, sql: str, *parameters: object) -> Sequence[Any]:
        """Give the rows of a query, in the transaction that is there, or begins with it."""
        self.begin(writes=False)
        return (await self.run_operation(lambda connection: _fetch_result(connection.execute(sql, parameters)))).rows

    async def end_read(self) -> None:
        """End what reading began."""
        if self._begin or self._conn.in_transaction:
            await self.rollback()

    async def run_operation(self, work: DatabaseOperation[StatementResult]) -> StatementResult:
        """Do something in a transaction that may begin with it."""
        begin, self._begin = self._begin, None
        if not self._is_away:
            if begin != WRITING:
                try:
                    return _begin_and_run(begin, work, self._conn)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in RETRY_ON_THREAD_CODES:
                        raise
                # It has begun.
                begin = None
            self._move_to_thread()
        return await self._run_on_thread(partial(_begin_and_run, begin), work)

    async def commit(self) -> None:
        """Keep what was changed."""
        await self._end_transaction(sqlite3.Connection.commit)

    async def rollback(self) -> None:
        """Keep nothing."""
        await self._end_transaction(sqlite3.Connection.rollback)

    async def _run_on_thread(
        self, do: Callable[[DatabaseOperation[Result], sqlite3.Connection], Result], work: DatabaseOperation[Result]
    ) -> Result:
        execute: Any = self._execute  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return await execute(do, work, self._conn)

    def _move_to_thread(self) -> None:
        self._is_away = True
        self._conn.set_progress_handler(None, 0)
        self._conn.execute(f"PRAGMA busy_timeout={int(self._patience * 1000)}")

    async def _end_transaction(self, end: DatabaseOperation[None]) -> None:
        self._begin = None
        if self._is_away:
            await self._run_on_thread(self._return_to_event_loop, end)
        else:
            end(self._conn)

    def _return_to_event_loop(self, end: DatabaseOperation[None], connection: sqlite3.Connection) -> None:
        end(connection)
        self._conn.set_progress_handler(_interrupt_statement, MAX_INLINE_VM_STEPS)
        self._conn.execute("PRAGMA busy_timeout=0")
        self._is_away = False


class Cursor:
    """Runs a statement and takes all of its rows."""

    def __init__(self, connection: Connection) -> None:
        """Know the connection."""
        self._connection = connection
        self._done = StatementResult()
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        """Be open."""
        return self

    @property
    def description(self) -> Any:  # noqa: ANN401 - as above
        """The columns of the rows, if there are any."""
        return self._done.description

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return self._done.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The number of the row that was added."""
        return self._done.lastrowid

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        self._done = await self._connection.run_operation(
            lambda connection: _fetch_result(connection.execute(sql, parameters))
        )

    async def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each of these."""
        self._done = await self._connection.run_operation(
            lambda connection: _fetch_result(connection.executemany(sql, parameters))
        )

    async def fetchall(self) -> Sequence[Any]:
        """Give the rows."""
        return self._done.rows

    async def close(self) -> None:
        """Be closed: nothing is held."""


def _begin_and_run(
    begin: str | None, work: DatabaseOperation[StatementResult], connection: sqlite3.Connection
) -> StatementResult:
    if begin:
        connection.execute(begin)
    return work(connection)


def _fetch_result(cursor: sqlite3.Cursor) -> StatementResult:
    rows = cursor.fetchall() if cursor.description else ()
    done = StatementResult(cursor.description, rows, cursor.rowcount, cursor.lastrowid)
    cursor.close()
    return done


def _interrupt_statement() -> int:
    return 1
