"""Log store in memory, with one transaction per insert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.engines.protocol import LogEngineError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from penstock.logs.batch import Position, RecordBatch
    from penstock.logs.query import LogQuery


class MemoryEngine:
    """Engine whose writes fail while `failure` is set."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.batches: list[RecordBatch] = []
        self.saved: dict[str, Position] = {}
        self.failure = ""
        self.attempts = 0

    def open(self) -> None:
        return

    def positions(self) -> dict[str, Position]:
        return dict(self.saved)

    def insert(self, batch: RecordBatch, positions: Mapping[str, Position]) -> int:
        self.attempts += 1
        if self.failure:
            raise LogEngineError(self.failure)
        self.records += [msgspec.json.decode(line) for line in batch.records]
        self.batches.append(batch)
        self.saved |= positions
        return 0

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        raise NotImplementedError

    def seal_days(self, now: dt.datetime) -> None:
        raise NotImplementedError

    def drop_before(self, records: dt.date, bodies: dt.date) -> None:
        raise NotImplementedError

    def close(self) -> None:
        return
