"""Consumer of the spool that fills the log store: records, feedback, amendments, and the locations of bodies.

It also passes the records to request metrics, the access log and the file of refused requests. So each record is read
only once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.engine import replace_inline_data
from penstock.logs import spool_format as spool
from penstock.logs import spool_reader
from penstock.logs.batch import RecordBatch
from penstock.logs.body_text import extract_text
from penstock.logs.guardrail_results import FEEDBACK_MARK, read_feedback
from penstock.logs.packs import PackedRecord
from penstock.logs.record_lines import amend_line, decode_fields, find_missing_usage, make_line_of_killed_request
from penstock.logs.spool_reader import RecordReader, SpoolFollower

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logs.engines.protocol import LogEngine
    from penstock.logs.observed_records import ObservedRecord, RecordObservers
    from penstock.logs.packs import PackWriter
    from penstock.logs.spool_format import PlainRecords
    from penstock.logs.spool_reader import SpoolEvent

log = logging.getLogger("penstock")

MAX_BATCH_RECORDS, MAX_BATCH_BYTES, MAX_BATCH_SECONDS = 10_000, 16 * spool.MEBIBYTE, 0.5
READ_EVENTS = 1000
# Prefix of the spool folders of edge workers, which write each record once. The control process may write a record
# again after it was killed.
EDGE_PREFIX = "edge-"
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
# Kinds of response bodies, of which the first that exists is indexed. A separate client response exists only if it was
# translated.
RESPONSE_KINDS = (spool.CLIENT_RESPONSE, spool.UPSTREAM_RESPONSE)
ID_BYTES = 16
_decode_packed = msgspec.json.Decoder(PackedRecord).decode


class PendingBatch:
    """Records of one writer that were read from the spool and are not inserted yet."""

    def __init__(self, node: str, reader: RecordReader) -> None:
        """Starts an empty batch at the reader's position."""
        self.batch = RecordBatch(node=node, writer=reader.name)
        self.reader = reader
        self.position = reader.position
        self.bytes = 0
        self.refused: list[bytes] = []
        self.is_refused_written = False
        # Amendments of records in earlier batches, for request metrics.
        self.late_usage: list[ObservedRecord] = []
        # Indexes of records that clients sent as logs. Request metrics do not count these, because another program made
        # the requests.
        self.external: set[int] = set()
        # Indexes, by record id, of records whose amendment was not in the spool yet.
        self.unfinished: dict[bytes, int] = {}
        self._index_by_id: dict[bytes, int] = {}
        # Plain records whose indexes are not in `_index_by_id` yet: the index of the first, and their ids. They are added
        # when an amendment needs them.
        self._unindexed: list[tuple[int, bytes]] = []

    @property
    def size(self) -> int:
        """Number of records and other items."""
        batch = self.batch
        return len(batch.records) + len(batch.amendments) + len(batch.feedback)

    @property
    def has_items(self) -> bool:
        """True if the batch has records, changes or refused requests to store."""
        return bool(self.size or self.refused)

    def add_feedback(self, event: SpoolEvent) -> None:
        """Adds the feedback of guardrails in a record or an amendment."""
        if FEEDBACK_MARK in event.payload:
            self.batch.feedback += read_feedback(uuid.UUID(bytes=event.id), event.payload)

    def add_line(self, record_id: bytes, line: bytes) -> None:
        """Adds a record."""
        self._index_by_id[record_id] = len(self.batch.records)
        self.batch.records.append(line)
        self.bytes += len(line)

    def add_plain(self, plain: PlainRecords) -> None:
        """Adds `PlainRecords`: records without bodies, flags and feedback, which need no further processing."""
        self._unindexed.append((len(self.batch.records), plain.ids))
        self.batch.records += plain.lines
        self.bytes += sum(map(len, plain.lines))

    def _find_index(self, record_id: bytes) -> int | None:
        known = self._index_by_id
        for first, ids in self._unindexed:
            for index, at in enumerate(range(0, len(ids), ID_BYTES), start=first):
                name = ids[at : at + ID_BYTES]
                # If an id repeats, its last record counts.
                known[name] = max(index, known.get(name, 0))
        self._unindexed = []
        return known.get(record_id)

    def amend(self, record_id: bytes, fields: dict[str, Any]) -> bool:
        """Changes a record of this batch, or adds an amendment of a record in an earlier batch. Returns true if the
        record is in this batch.
        """
        index = self._find_index(record_id)
        if index is None:
            self.batch.amendments.append({"id": str(uuid.UUID(bytes=record_id)), **fields})
            return False
        self.batch.records[index] = amend_line(self.batch.records[index], fields)
        self.unfinished.pop(record_id, None)
        return True

    def list_counted(self) -> list[bytes]:
        """Returns the records that request metrics and the access log get."""
        records = self.batch.records
        return [line for at, line in enumerate(records) if at not in self.external] if self.external else records


class StoreIngest:
    """Inserts the records of the spool into the log store. Runs in one thread. A failed batch is inserted again until
    it succeeds.
    """

    def __init__(
        self,
        engine: LogEngine,
        spool_folder: str,
        packs: PackWriter,
        publish: Callable[[list[bytes]], None] = lambda _lines: None,
        *,
        keeps_inline_data: bool = False,
        observers: RecordObservers | None = None,
    ) -> None:
        """Takes an open engine; reading starts after its saved positions. Unless `keeps_inline_data`, long base64 in
        bodies is replaced by its digest. Each batch is passed to `observers` after it was inserted.
        """
        self.inserted = 0
        self.invalid = 0
        self.failed = 0
        self.last_error = ""
        self.packs = packs
        self.follower = SpoolFollower(spool_folder, engine.positions(), RecordReader)
        # Called before each insertion, which takes at least 4 ms of CPU. The log worker sets a function that lets the
        # kernel preempt the insertion in time for other threads on its core.
        self.announce_burst: Callable[[], None] = lambda: None
        self._engine = engine
        self._publish = publish
        self._keeps_inline_data = keeps_inline_data
        self._observers = observers
        # Batches that were read from the spool and are not inserted yet. The batches of one list are inserted together.
        self._waiting: deque[list[PendingBatch]] = deque()
        self._retry_at = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS

    def run_once(self) -> int:
        """Inserts what each writer has written, in as few transactions as possible. Returns the number of items
        inserted.
        """
        if self._waiting and time.monotonic() < self._retry_at:
            return 0
        count = self._insert_waiting()
        if self._waiting:
            return count
        for reader in self.follower.find_writers():
            pending = self._fill_batch(reader)
            if not pending:
                continue
            if self._waiting and _can_join(self._waiting[-1], pending):
                self._waiting[-1].append(pending)
            else:
                count += self._insert_waiting()
                self._waiting.append([pending])
                if len(self._waiting) > 1:
                    # The log store does not accept inserts at the moment.
                    return count
        return count + self._insert_waiting()

    def _insert_waiting(self) -> int:
        """Inserts until nothing waits or an insertion fails. Returns the number of items inserted."""
        count = 0
        while self._waiting and self._insert(self._waiting[0]):
            count += sum(pending.size for pending in self._waiting.popleft())
        return count

    @property
    def is_failing(self) -> bool:
        """True while a batch waits to be inserted again."""
        return bool(self._waiting)

    def close(self) -> None:
        """Commits the open pack of bodies, then closes the spool reader."""
        self.packs.commit(is_final=True)
        self.follower.close()
        if self._observers:
            self._observers.close()

    def _fill_batch(self, reader: RecordReader) -> PendingBatch | None:
        deadline = time.monotonic() + MAX_BATCH_SECONDS
        pending = PendingBatch(reader.header.node, reader)
        pending.batch.may_repeat = reader.was_replaced or not reader.name.startswith(EDGE_PREFIX)
        while pending.size < MAX_BATCH_RECORDS and pending.bytes < MAX_BATCH_BYTES and time.monotonic() < deadline:
            events = reader.read(min(READ_EVENTS, MAX_BATCH_RECORDS - pending.size))
            pending.batch.node = reader.header.node
            # Adds the plain records before the events, because events may amend these records.
            for plain in reader.take_plain():
                pending.add_plain(plain)
            for event in events:
                self._process_event(pending, event)
            pending.position = reader.position
            if not reader.read_count:
                break
        reader.release_old_bodies()
        saved = self.follower.saved.get(reader.name)
        # The reader has finished a segment without records. Saving the position allows it to be deleted.
        has_moved_on = saved is None or saved.segment < pending.position.segment
        return pending if pending.has_items or has_moved_on else None

    def _process_event(self, pending: PendingBatch, event: SpoolEvent) -> None:
        match event.kind:
            # Records of requests without a valid key belong to no organisation that could query them. They are written
            # to a separate file.
            case spool.END | spool.EXTERNAL_LOG if not event.flags & spool.REFUSED:
                if event.kind == spool.EXTERNAL_LOG:
                    pending.external.add(len(pending.batch.records))
                elif event.flags & spool.AMENDMENT_FOLLOWS:
                    pending.unfinished[event.id] = len(pending.batch.records)
                pending.add_line(event.id, event.payload)
                pending.add_feedback(event)
                self._store_bodies(pending, event, event.payload)
            case spool.END if self._observers:
                pending.refused.append(event.payload)
                pending.bytes += len(event.payload)
            case spool_reader.KILLED:
                line = make_line_of_killed_request(event, pending.reader.load_bodies)
                pending.add_line(event.id, line)
                self._store_bodies(pending, event, line)
            case spool.AMEND:
                self._amend(pending, event.id, decode_fields(event.payload))
                pending.bytes += len(event.payload)
                pending.add_feedback(event)
            case spool_reader.UNAMENDED:
                self._amend(pending, event.id, find_missing_usage(event, pending.reader.load_bodies))
            case spool.FEEDBACK:
                fields: dict[str, Any] = decode_fields(event.payload)
                if fields:
                    pending.batch.feedback.append({"id": str(uuid.UUID(bytes=event.id)), **fields})
                    pending.bytes += len(event.payload)
            case _:
                pass

    def _amend(self, pending: PendingBatch, record_id: bytes, fields: dict[str, Any]) -> None:
        if fields and not pending.amend(record_id, fields) and self._observers:
            amended = self._observers.find_amended(record_id, fields)
            if amended:
                pending.late_usage.append(amended)

    def _store_bodies(self, pending: PendingBatch, event: SpoolEvent, line: bytes) -> None:
        if not event.request or not event.request.bodies:
            return
        bodies = pending.reader.load_bodies(event.request)
        try:
            record = _decode_packed(line)
        except msgspec.MsgspecError:
            return
        if not bodies:
            return
        if not self._keeps_inline_data:
            bodies = {kind: replace_inline_data(body) or body for kind, body in bodies.items()}
        record_id = uuid.UUID(bytes=event.id)
        location = self.packs.add(record, bodies, pending.batch.node, pending.reader.name, event.at)
        if location is None:
            pending.amend(event.id, {"body": "dropped"})
            return
        pending.batch.bodies[record_id] = location
        text = extract_search_text(bodies)
        if text:
            pending.batch.texts[record_id] = text
            pending.bytes += len(text)

    def _insert(self, group: list[PendingBatch]) -> bool:
        """Writes the packs, then inserts the records and the positions in one transaction."""
        batch = _join_batches(group)
        positions = {pending.reader.name: pending.position for pending in group}
        self.announce_burst()
        try:
            self.packs.flush()
            self._write_refused_requests(group)
            # If anything fails after this, the batch is inserted again, although the store may already have it.
            for pending in group:
                pending.batch.may_repeat = True
            self.invalid += self._engine.insert(batch, positions)
        except Exception as error:  # noqa: BLE001 - no error of any kind may lose the batch
            self._fail(error)
            return False
        if self.last_error:
            log.info("the log store can be written again")
        self.last_error, self._retry_seconds = "", FIRST_RETRY_SECONDS
        self.packs.commit()
        self.inserted += len(batch.records)
        self.follower.saved.update(positions)
        # The records are stored, so a failure of a reader must not insert them again.
        for show in (lambda: self._publish(batch.records), lambda: self._observe(group)):
            try:
                show()
            except Exception:
                log.exception("new records cannot be shown in live tails or request metrics")
        return True

    def _write_refused_requests(self, group: list[PendingBatch]) -> None:
        if not self._observers:
            return
        for pending in group:
            if not pending.is_refused_written:
                self._observers.write_refused_requests(pending.refused)
                pending.is_refused_written = True

    def _observe(self, group: list[PendingBatch]) -> None:
        observers = self._observers
        if not observers:
            return
        for pending in group:
            for record_id, index in pending.unfinished.items():
                observers.remember_unfinished(record_id, pending.batch.records[index])
            if observers.reads_lines:
                observers.observe_inserted(pending.list_counted(), pending.refused, pending.late_usage)

    def _fail(self, error: Exception) -> None:
        self.failed += 1
        if not self.last_error:
            log.error("the log store cannot be written: %s", error)
        self.last_error = str(error) or type(error).__name__
        self._retry_at = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)


def _can_join(group: list[PendingBatch], pending: PendingBatch) -> bool:
    """Returns true if the batch can be inserted together with the group: the node is the same, and the sum is not too
    large.
    """
    size = sum(other.size for other in group) + pending.size
    weight = sum(other.bytes for other in group) + pending.bytes
    is_same_node = group[0].batch.node == pending.batch.node
    return is_same_node and size <= MAX_BATCH_RECORDS and weight <= MAX_BATCH_BYTES


def _join_batches(group: list[PendingBatch]) -> RecordBatch:
    """Returns one batch with the content of all batches of the group. One larger insertion takes less time than
    several, because each has a fixed cost.
    """
    first = group[0].batch
    joined = RecordBatch(first.node, first.writer)
    joined.may_repeat = any(pending.batch.may_repeat for pending in group)
    for pending in group:
        joined.records += pending.batch.records
        joined.amendments += pending.batch.amendments
        joined.feedback += pending.batch.feedback
        joined.bodies |= pending.batch.bodies
        joined.texts |= pending.batch.texts
    return joined


def extract_search_text(bodies: dict[int, bytes]) -> str:
    """Returns the text of the client's request and of the response, for full-text search."""
    response = next((bodies[kind] for kind in RESPONSE_KINDS if bodies.get(kind)), b"")
    texts = (extract_text(bodies.get(spool.CLIENT_REQUEST, b"")), extract_text(response))
    return "\n".join(text for text in texts if text)
