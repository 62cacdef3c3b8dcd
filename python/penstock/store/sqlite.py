"""SQLite driver for the embedded database. Runs short reads on the event loop and everything else on a thread, with one
thread hop where aiosqlite needs five.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import aiosqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    DatabaseOperation = Callable[[sqlite3.Connection], "Result"]

# Limit for reads on the event loop, in steps of SQLite's virtual machine: about one millisecond. Handing a statement to
# a thread costs more than most reads.
MAX_INLINE_VM_STEPS = 20_000
# Error codes after which a statement is repeated on the thread: it took too long, or another connection holds a lock.
RETRY_ON_THREAD_CODES = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY)
READING, WRITING = "BEGIN", "BEGIN IMMEDIATE"

Result = TypeVar("Result")


class StatementResult(NamedTuple):
    """Result of a statement, in the terms of the DB-API cursor."""

    description: Any = None
    rows: Sequence[Any] = ()
    rowcount: int = -1
    lastrowid: int | None = None


class Connection(aiosqlite.Connection):
    """SQLite connection. A transaction stays on the event loop while it only runs short reads; otherwise it moves to
    the thread until it ends.
    """

    def __init__(self, path: str, patience: float) -> None:
        """Prepares the connection; awaiting it opens the file."""
        super().__init__(self._open, iter_chunk_size=64)
        self._thread.daemon = True
        self._path = path
        self._patience = patience
        self._begin: str | None = None
        # True until the first read ends: the setup statements after opening may have to wait for locks.
        self._is_away = True

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=self._patience, isolation_level=None, check_same_thread=False)

    def begin(self, *, writes: bool) -> None:
        """Makes the next statement begin a transaction. A writing one takes the write lock at once, because upgrading a
        read transaction cannot always wait for it.
        """
        if writes:
            self._begin = WRITING
        elif not self._conn.in_transaction:
            self._begin = READING

    def cursor(self) -> Any:  # noqa: ANN401 - what the dialect expects of a driver is typed nowhere
        """Returns a cursor that fetches all rows when it executes."""
        return Cursor(self)

    async def fetch(self, sql: str, *parameters: object) -> Sequence[Any]:
        """Returns the rows of a query. Runs in the current transaction or begins a read transaction."""
        self.begin(writes=False)
        return (await self.run_operation(lambda connection: _fetch_result(connection.execute(sql, parameters)))).rows

    async def end_read(self) -> None:
        """Ends the read transaction, if there is one."""
        if self._begin or self._conn.in_transaction:
            await self.rollback()

    async def run_operation(self, operation: DatabaseOperation[StatementResult]) -> StatementResult:
        """Runs an operation, after beginning a transaction if one is due. Tries reads on the event loop first."""
        begin, self._begin = self._begin, None
        if not self._is_away:
            if begin != WRITING:
                try:
                    return _begin_and_run(begin, operation, self._conn)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in RETRY_ON_THREAD_CODES:
                        raise
                # The transaction has already begun.
                begin = None
            self._move_to_thread()
        return await self._run_on_thread(partial(_begin_and_run, begin), operation)

    async def commit(self) -> None:
        """Commits the transaction."""
        await self._end_transaction(sqlite3.Connection.commit)

    async def rollback(self) -> None:
        """Rolls the transaction back."""
        await self._end_transaction(sqlite3.Connection.rollback)

    async def _run_on_thread(
        self,
        do: Callable[[DatabaseOperation[Result], sqlite3.Connection], Result],
        operation: DatabaseOperation[Result],
    ) -> Result:
        execute: Any = self._execute  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return await execute(do, operation, self._conn)

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
    """Cursor that executes a statement and fetches all of its rows at once."""

    def __init__(self, connection: Connection) -> None:
        """Creates a cursor of the connection."""
        self._connection = connection
        self._done = StatementResult()
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        """Returns the cursor, which needs no opening."""
        return self

    @property
    def description(self) -> Any:  # noqa: ANN401 - as above
        """Columns of the rows; `None` if the statement returns no rows."""
        return self._done.description

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed."""
        return self._done.rowcount

    @property
    def lastrowid(self) -> int | None:
        """SQLite row id of the inserted row."""
        return self._done.lastrowid

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Executes a statement."""
        self._done = await self._connection.run_operation(
            lambda connection: _fetch_result(connection.execute(sql, parameters))
        )

    async def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Executes a statement once for each parameter set."""
        self._done = await self._connection.run_operation(
            lambda connection: _fetch_result(connection.executemany(sql, parameters))
        )

    async def fetchall(self) -> Sequence[Any]:
        """Returns all rows of the last statement."""
        return self._done.rows

    async def close(self) -> None:
        """Does nothing: the cursor holds no resources."""


def _begin_and_run(
    begin: str | None, operation: DatabaseOperation[StatementResult], connection: sqlite3.Connection
) -> StatementResult:
    if begin:
        connection.execute(begin)
    return operation(connection)


def _fetch_result(cursor: sqlite3.Cursor) -> StatementResult:
    rows = cursor.fetchall() if cursor.description else ()
    done = StatementResult(cursor.description, rows, cursor.rowcount, cursor.lastrowid)
    cursor.close()
    return done


def _interrupt_statement() -> int:
    return 1
