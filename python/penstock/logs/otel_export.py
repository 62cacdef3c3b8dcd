"""Consumer of the spool that exports records as OpenTelemetry spans. While the collector does not respond, records wait
in the spool; beyond a limit the oldest ones are skipped and counted.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import __version__
from penstock.logs import spool_format as spool
from penstock.logs.batch import Position
from penstock.logs.otel_client import OtelClient, Outcome
from penstock.logs.otel_content import read_body_attributes
from penstock.logs.otel_spans import (
    SCOPE_NAME,
    build_spans,
    decode_record,
    encode_attributes,
    parse_time_ns,
)
from penstock.logs.record_lines import (
    AMENDMENT_WAIT_SECONDS,
    amend_line,
    decode_fields,
    make_line_of_killed_request,
)
from penstock.logs.spool_reader import KILLED, SpoolFollower, WriterReader
from penstock.logs.spool_writer import list_segments, segment_name
from penstock.settings.otel import parse_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.logs.spool_reader import SpoolEvent
    from penstock.settings import Settings
    from penstock.settings.otel import Otel

log = logging.getLogger("penstock")

POSITION_FILE = "otel-position.json"
MAX_WAITING_RECORDS, MAX_WAITING_BYTES = 8192, 16 * spool.MEBIBYTE
READ_EVENTS = 1000
# Maximum size of a payload. Collectors accept at least 20 MiB, but many proxies in front of them accept less.
MAX_PAYLOAD_BYTES = 4 * spool.MEBIBYTE
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
IDLE_SECONDS, LONGEST_IDLE_SECONDS = 0.05, 0.25
# Time to export the remaining records after the log worker was stopped, and maximum wait for the end of the thread.
LAST_EXPORT_SECONDS, JOIN_SECONDS = 2.5, 3.0
MEASURE_SECONDS = 1.0
# Maximum share of `records.spool_bytes` for records that only this consumer still needs. `MAX_SPOOL_SHARE` applies
# while the collector does not respond, and `MAX_SPOOL_SHARE_IF_SLOW` while it accepts less than arrives.
MAX_SPOOL_SHARE, MAX_SPOOL_SHARE_IF_SLOW = 0.5, 0.6
NANOSECONDS = 1_000_000_000
SERVICE_NAME = "service.name"
# Value of `source` in logs that clients sent. These are not exported, because they may come from the same collector.
EXTERNAL = "external"


class ExportState(msgspec.Struct):
    """Saved positions up to which each spool was exported."""

    positions: dict[str, Position] = {}


class WaitingRecord(msgspec.Struct, eq=False):
    """A record that is not exported yet. Its amendment may follow until `due`."""

    writer: str
    at: Position
    # Oldest spool segment with a frame of the record.
    segment: int
    is_killed: bool
    line: bytes
    due: float
    read_at: float
    ended_ns: int
    body_attributes: dict[str, Any] = {}


class ExportFollower(SpoolFollower[WriterReader]):
    """Follows the spool. Also prevents the deletion of segments with bodies of records that are not exported yet."""

    unread_segments: dict[str, int] = {}  # noqa: RUF012 - never changed in place, because another thread reads it

    def first_needed_segment(self, writer: str) -> int:
        """Number of the oldest segment of a writer that this consumer needs, now or after a restart."""
        needed = super().first_needed_segment(writer)
        return min(needed, self.unread_segments.get(writer, needed))


class OtelExporter:
    """Exports the records of the spool. Runs in one thread.

    The position is saved after the collector accepted a batch, so no record is lost. If the process ends between the
    two, the batch is sent again with the same span ids.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """Restores the position of the last batch."""
        self.exported = 0
        self.failed = 0
        self.skipped = 0
        self.rejected_spans = 0
        self.failures = 0
        self._settings = settings.otel
        self._clock = clock
        self._path = f"{settings.log_store_folder}/{POSITION_FILE}"
        self._state = self._load_state()
        self._spool_bytes = settings.records.spool_bytes
        self.follower = ExportFollower(
            settings.spool_folder, self._state.positions, partial(WriterReader, keeps_bodies=True)
        )
        self._client = OtelClient(settings.otel, settings.upstream.tls_ca)
        self._waiting: deque[WaitingRecord] = deque()
        self._waiting_bytes = 0
        self._by_id: dict[bytes, WaitingRecord] = {}
        self._batch_records = settings.otel.batch_records
        self._retry_at = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._is_failing = False
        self._reported_reason = ""
        self._measured_at = 0.0
        self._resource = {"attributes": encode_attributes(build_resource(settings.otel))}
        self._scope = {"name": SCOPE_NAME, "version": __version__}
        self._thread: threading.Thread | None = None

    # ── thread ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, stop: threading.Event) -> None:
        """Starts the thread, which works until `stop` is set. It is a daemon thread, so that a hanging collector does
        not delay the exit.
        """
        self._thread = threading.Thread(target=self._run, args=(stop,), name="otel", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until the thread ends, for at most `JOIN_SECONDS`."""
        if self._thread:
            self._thread.join(JOIN_SECONDS)

    def _run(self, stop: threading.Event) -> None:
        pause = IDLE_SECONDS
        while not stop.wait(pause):
            count = self._run_safely()
            pause = IDLE_SECONDS if count else min(LONGEST_IDLE_SECONDS, pause * 1.2)
        deadline = time.monotonic() + LAST_EXPORT_SECONDS
        while (seconds_left := deadline - time.monotonic()) > 0:
            if self._run_safely(final_seconds=seconds_left):
                continue
            if not self._waiting and not any(reader.open for reader in self.follower.readers.values()):
                break
            time.sleep(IDLE_SECONDS)
        self.close()

    def _run_safely(self, final_seconds: float | None = None) -> int:
        try:
            return self.run_once(final_seconds=final_seconds)
        except Exception:
            log.exception("the export of spans failed, and is repeated")
            time.sleep(min(1.0, final_seconds or 1.0))
            return 0

    # ── consumer ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_once(self, *, final_seconds: float | None = None) -> int:
        """Reads new events and sends at most one batch. Returns the number of events that were read plus the number of
        records that were finished.

        With `final_seconds`, it waits for no further records, and the batch may take at most that long.
        """
        now = self._clock()
        count = self._read(now)
        if batch := self._next_batch(now, is_final=final_seconds is not None):
            count += self._send(batch, final_seconds)
        elif not self._waiting:
            self._save_positions()
        return count + self._skip_excess(now)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics by name."""
        try:
            oldest_ns = self._waiting[0].ended_ns
        except IndexError:
            oldest_ns = 0
        lag = max(0.0, time.time() - oldest_ns / NANOSECONDS) if oldest_ns else 0.0
        return {
            "otel_records_exported": self.exported,
            "otel_records_failed": self.failed,
            "otel_records_skipped": self.skipped,
            "otel_spans_rejected": self.rejected_spans,
            "otel_export_failures": self.failures,
            "otel_lag_seconds": round(lag, 3),
        }

    def close(self) -> None:
        """Closes the connection and the spool."""
        self._client.close()
        self.follower.close()

    def _read(self, now: float) -> int:
        count = 0
        for reader in self.follower.find_writers():
            if self._is_full():
                break
            events = reader.read(min(MAX_WAITING_RECORDS - len(self._waiting), READ_EVENTS))
            for event in events:
                self._queue_or_amend(reader, event, now)
            if events:
                self.follower.unread_segments = self._find_unread_segments()
            reader.release_old_bodies()
            count += len(events)
        return count

    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING_RECORDS or self._waiting_bytes >= MAX_WAITING_BYTES

    def _queue_or_amend(self, reader: WriterReader, event: SpoolEvent, now: float) -> None:
        if event.kind == spool.AMEND:
            self._amend(event, now)
            return
        # Requests without a valid key belong to no organisation, so they are not exported.
        if event.kind not in {spool.END, KILLED} or event.flags & spool.REFUSED:
            return
        line = make_line_of_killed_request(event, reader.load_bodies) if event.kind == KILLED else event.payload
        try:
            record = decode_record(line)
        except msgspec.MsgspecError as error:
            self.failed += 1
            log.warning("a record cannot be exported as a span: %s", error)
            return
        if record.source == EXTERNAL:
            return
        waiting = WaitingRecord(
            reader.name,
            event.at,
            min(event.request.segment, event.at.segment) if event.request else event.at.segment,
            event.kind == KILLED,
            line,
            now + AMENDMENT_WAIT_SECONDS if event.flags & spool.AMENDMENT_FOLLOWS else now,
            now,
            parse_time_ns(record.created_at) + int((record.response_time or 0) * 1_000_000),
            self._read_bodies(reader, event),
        )
        self._waiting.append(waiting)
        self._waiting_bytes += _size(waiting)
        self._by_id[event.id] = waiting

    def _read_bodies(self, reader: WriterReader, event: SpoolEvent) -> dict[str, Any]:
        bodies = reader.load_bodies(event.request) if event.request and event.request.bodies else {}
        try:
            return read_body_attributes(bodies, with_content=self._settings.content)
        except Exception:
            # Clients choose the bodies. An unexpected one must not stop the export.
            log.exception("the bodies of a request cannot be read for its span")
            return {}

    def _amend(self, event: SpoolEvent, now: float) -> None:
        """Changes a record that waits. A span cannot be changed once it is exported."""
        if waiting := self._by_id.get(event.id):
            line = amend_line(waiting.line, decode_fields(event.payload))
            with suppress(msgspec.MsgspecError):
                decode_record(line)
                waiting.line = line
            waiting.due = now

    def _next_batch(self, now: float, *, is_final: bool) -> list[WaitingRecord]:
        """Returns the records to send now, the oldest first. It stops at a record whose amendment may still arrive."""
        if not self._waiting or now < self._retry_at:
            return []
        batch: list[WaitingRecord] = []
        for waiting in self._waiting:
            if len(batch) == self._batch_records or (waiting.due > now and not is_final):
                break
            batch.append(waiting)
        is_due = len(batch) == self._batch_records or self._is_full() or is_final
        is_due = is_due or now - self._waiting[0].read_at >= self._settings.batch_ms / 1000
        return batch if is_due else []

    def _send(self, batch: list[WaitingRecord], final_seconds: float | None) -> int:
        """Sends the records of a batch that fit into one payload. Returns the number of records that are done."""
        spans: list[bytes] = []
        size = count = 0
        for waiting in batch:
            encoded = list(map(msgspec.json.encode, build_spans(decode_record(waiting.line), waiting.body_attributes)))
            size += sum(map(len, encoded))
            if count and size > MAX_PAYLOAD_BYTES:
                break
            spans += encoded
            count += 1
        delivery = self._client.send(self._encode_payload(spans), final_seconds)
        match delivery.outcome:
            case Outcome.ACCEPTED:
                self._recover()
                self.exported += count
                self.rejected_spans += delivery.rejected_spans
                if delivery.rejected_spans:
                    self._report(f"it rejected {delivery.rejected_spans} spans: {delivery.reason}")
            case Outcome.RETRY:
                self._retry_later(delivery.reason, delivery.retry_after_seconds)
                return 0
            case Outcome.TOO_LARGE if count > 1:
                self._batch_records = max(1, count // 2)
                return 0
            case _:
                self.failed += count
                self._report(f"{delivery.reason}; {count} records are dropped")
        self._drop(count)
        self._save_positions()
        return count

    def _encode_payload(self, spans: Iterable[bytes]) -> bytes:
        scope_spans = [{"scope": self._scope, "spans": list(map(msgspec.Raw, spans))}]
        return msgspec.json.encode({"resourceSpans": [{"resource": self._resource, "scopeSpans": scope_spans}]})

    def _recover(self) -> None:
        if self._is_failing:
            log.info("the OpenTelemetry collector accepts spans again")
        self._is_failing, self._reported_reason = False, ""
        self._retry_seconds, self._batch_records = FIRST_RETRY_SECONDS, self._settings.batch_records

    def _retry_later(self, reason: str, after_seconds: float | None) -> None:
        self.failures += 1
        self._is_failing = True
        self._report(reason)
        # A random delay, so that several nodes do not retry at the same moment.
        backoff = self._retry_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - not for cryptography
        self._retry_at = self._clock() + (backoff if after_seconds is None else max(after_seconds, backoff))
        self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)

    def _report(self, reason: str) -> None:
        """Logs a reason once, until the reason changes."""
        if reason != self._reported_reason:
            log.error("the OpenTelemetry collector does not accept spans: %s", reason)
        self._reported_reason = reason

    # ── limits and position ───────────────────────────────────────────────────────────────────────────────────────────

    def _skip_excess(self, now: float) -> int:
        """While the export is late, skips records that are too old. If the spool is too large, skips all waiting
        records. Returns the number of skipped records.
        """
        if not self._waiting or not (self._is_failing or self._is_full()):
            return 0
        count = 0
        if self._is_failing:
            oldest_ns = (time.time() - self._settings.max_age_seconds) * NANOSECONDS
            for waiting in self._waiting:
                if waiting.ended_ns >= oldest_ns:
                    break
                count += 1
        if now - self._measured_at >= MEASURE_SECONDS:
            self._measured_at = now
            share = MAX_SPOOL_SHARE if self._is_failing else MAX_SPOOL_SHARE_IF_SLOW
            if self._measure_backlog() > self._spool_bytes * share:
                # Forces another measurement in the next round, because the backlog may still be too large.
                count, self._measured_at = len(self._waiting), 0.0
        if count:
            self.skipped += count
            self._drop(count)
            self._save_positions()
        return count

    def _measure_backlog(self) -> int:
        """Returns the number of bytes in the spool that are not exported."""
        total = 0
        for name in self.follower.readers:
            folder, saved = self.follower.folder / name, self.follower.saved.get(name, Position(0, 0))
            for number in list_segments(folder):
                with suppress(FileNotFoundError):
                    size = (folder / segment_name(number)).stat().st_size
                    total += size if number > saved.segment else 0
                    total += max(0, size - saved.offset) if number == saved.segment else 0
        return total

    def _drop(self, count: int) -> None:
        for _ in range(count):
            waiting = self._waiting.popleft()
            self._waiting_bytes -= _size(waiting)
        if len(self._by_id) > 2 * len(self._waiting):
            waiting_ids = set(map(id, self._waiting))
            self._by_id = {key: waiting for key, waiting in self._by_id.items() if id(waiting) in waiting_ids}

    def _find_unread_segments(self) -> dict[str, int]:
        unread_segments: dict[str, int] = {}
        for waiting in self._waiting:
            unread_segments[waiting.writer] = min(waiting.segment, unread_segments.get(waiting.writer, waiting.segment))
        return unread_segments

    def _save_positions(self) -> None:
        """Saves a position for each writer: that of its first waiting record, or the end of what was read."""
        positions = {name: reader.position for name, reader in self.follower.readers.items()}
        for waiting in reversed(self._waiting):
            positions[waiting.writer] = min(waiting.at, positions[waiting.writer])
        self._hold_killed(positions)
        if positions == self._state.positions:
            return
        draft = f"{self._path}.new"
        Path(draft).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(ExportState(positions)))
        os.replace(draft, self._path)
        self._state = ExportState(positions)
        self.follower.saved = positions
        self.follower.unread_segments = self._find_unread_segments()

    def _hold_killed(self, positions: dict[str, Position]) -> None:
        """Moves a saved position back to the end of the segment if it is that of a killed request. Killed requests have
        the position after their segment. A reader that starts there would not return them again.
        """
        for waiting in self._waiting:
            if waiting.is_killed and positions[waiting.writer] == waiting.at:
                number = waiting.at.segment - 1
                with suppress(FileNotFoundError):
                    size = (self.follower.folder / waiting.writer / segment_name(number)).stat().st_size
                    positions[waiting.writer] = Position(number, size)

    def _load_state(self) -> ExportState:
        try:
            return msgspec.json.decode(Path(self._path).read_bytes(), type=ExportState)
        except FileNotFoundError:
            return ExportState()
        except msgspec.MsgspecError as error:
            log.warning("%s cannot be read, so spans may be repeated: %s", self._path, error)
            return ExportState()


def build_resource(settings: Otel) -> dict[str, str]:
    """Returns the attributes of the resource: the service, its version, the node, and those of the settings."""
    configured = parse_pairs(settings.resource_attributes)
    own = {SERVICE_NAME: "penstock", "service.version": __version__, "host.name": os.uname().nodename}
    return {**own, **configured, **({SERVICE_NAME: settings.service_name} if settings.service_name else {})}


def _size(waiting: WaitingRecord) -> int:
    return len(waiting.line) + sum(len(value) for value in waiting.body_attributes.values() if isinstance(value, str))
