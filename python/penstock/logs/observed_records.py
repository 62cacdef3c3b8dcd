"""Records as request metrics and the access log receive them, and the observers that `StoreIngest` calls after an
insertion.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.logs.access_log import AccessLog
from penstock.logs.record_lines import PREVIOUS_COST, amend_line, encode_amendment
from penstock.logs.request_metrics import RequestMetrics
from penstock.records import RecordFile, log_requests, refused_records_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from penstock.settings import Settings

log = logging.getLogger("penstock")

# Maximum number of records that are stored until their amendment with the usage arrives, usually within a second. If
# there are more, the usage of the oldest is not counted.
MAX_UNFINISHED_RECORDS = 4096


class ObservedLine(Protocol):
    """A record line, or an amendment with the record that it amends."""

    @property
    def line(self) -> bytes:
        """JSON of the record."""
        ...

    @property
    def is_refused(self) -> bool:
        """True if the request had no valid key."""
        ...

    @property
    def original(self) -> bytes:
        """JSON of the record that this line amends; empty for a record."""
        ...


class ObservedRecord(NamedTuple):
    """The `ObservedLine` of a record that `StoreIngest` has inserted."""

    line: bytes
    is_refused: bool = False
    original: bytes = b""


class RecordObservers:
    """Passes records to request metrics, the access log, and the file of refused requests. `StoreIngest` uses it if
    there is no record file.
    """

    def __init__(self, settings: Settings) -> None:
        """Prepares the metrics, the access log, and the file of refused requests."""
        self.metrics = RequestMetrics(settings)
        self._access_log = AccessLog(settings)
        self._counts_usage = settings.metrics.enabled
        self.reads_lines = settings.metrics.enabled or settings.log.access or log.isEnabledFor(logging.DEBUG)
        """False if neither metrics nor a log uses the lines of records with a valid key."""
        self._refused_file = RecordFile(refused_records_settings(settings.records))
        self._unfinished: dict[bytes, bytes] = {}
        self.dropped = 0
        self._is_failing = False

    def observe(self, lines: Sequence[ObservedLine]) -> None:
        """Counts and logs records that were stored."""
        self.metrics.observe(lines)
        self._access_log.observe(lines)

    def observe_inserted(self, records: list[bytes], refused: list[bytes], late_usage: list[ObservedRecord]) -> None:
        """Observes records that were inserted into the log store, refused requests, and amendments of earlier records.
        Also writes the records to the process log at level debug, as the consumer of the record file does.
        """
        self.metrics.count(records, refused, [(late.line, late.original) for late in late_usage])
        if self._access_log.is_enabled:
            self._access_log.observe([ObservedRecord(line) for line in records])
            self._access_log.observe([ObservedRecord(line, is_refused=True) for line in refused])
        if log.isEnabledFor(logging.DEBUG):
            log_requests(b"\n".join([*records, *(late.line for late in late_usage)]))

    def write_refused_requests(self, lines: Sequence[bytes]) -> None:
        """Appends records of requests without a valid key to their file. If that fails, they are dropped and counted:
        other records must not wait for them.
        """
        if not lines:
            return
        try:
            self._refused_file.append(b"\n".join([*lines, b""]))
        except OSError as error:
            if not self._is_failing:
                log.error("records of refused requests cannot be written: %s", error.strerror or error)  # noqa: TRY400
            self._is_failing = True
            self.dropped += len(lines)
        else:
            self._is_failing = False

    def remember_unfinished(self, record_id: bytes, line: bytes) -> None:
        """Stores a record whose amendment will be in a later batch."""
        if not self._counts_usage:
            return
        while len(self._unfinished) >= MAX_UNFINISHED_RECORDS:
            del self._unfinished[next(iter(self._unfinished))]
        self._unfinished[record_id] = line

    def find_amended(self, record_id: bytes, fields: Mapping[str, Any]) -> ObservedRecord | None:
        """Returns an amendment together with its record. Returns `None` if `remember_unfinished` did not store the
        record, or if the amendment corrects a stored cost.
        """
        original = None if PREVIOUS_COST in fields else self._unfinished.pop(record_id, None)
        if original is None:
            return None
        amendment = encode_amendment(record_id, fields)
        self._unfinished[record_id] = amend_line(original, dict(fields))
        return ObservedRecord(amendment, original=original)

    def close(self) -> None:
        """Closes the file."""
        self._refused_file.close()
