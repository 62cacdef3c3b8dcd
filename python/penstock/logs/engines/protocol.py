"""Interface of an engine of the log store, and its errors. The log worker calls it from threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from penstock.logs.batch import Position, RecordBatch
    from penstock.logs.query import LogQuery


class LogEngineError(Exception):
    """The log store failed. The operation may be repeated."""


class QueryTooLargeError(LogEngineError):
    """A query needs more time or memory than it may use. A narrower range of time or more filters may help."""


class LogEngine(Protocol):
    """Engine of the log store. All methods block; `run` may be called by several threads, the others by one."""

    def open(self) -> None:
        """Connects, then creates or migrates the schema. Raises `LogEngineError`."""
        ...

    def positions(self) -> dict[str, Position]:
        """Returns how far each spool of this node was inserted, by writer."""
        ...

    def insert(self, batch: RecordBatch, positions: Mapping[str, Position]) -> int:
        """Inserts a batch, and stores the positions up to which the spools were read. Inserting the batch again has no
        effect. Returns the number of invalid lines.
        """
        ...

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query. Raises `QueryTooLargeError`, or `query.LogFilterError` for a filter that is not valid."""
        ...

    def seal_days(self, now: dt.datetime) -> None:
        """Moves days before yesterday to their final storage. May take seconds per day."""
        ...

    def drop_before(self, records: dt.date, bodies: dt.date) -> None:
        """Deletes records of days before `records`, and the full-text index of days before `bodies`."""
        ...

    def close(self) -> None:
        """Closes files and connections."""
        ...
