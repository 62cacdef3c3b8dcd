"""Reader of spool folders. Each consumer follows all writers from its own position, and reads each frame
exactly once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from penstock.engine import mask_body_secrets
from penstock.logs import spool_format as spool
from penstock.logs.batch import Position
from penstock.logs.spool_writer import list_segments, read_boot_id, read_process_start, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.engine import BudgetSums

log = logging.getLogger("penstock")

READ_BYTES = 4 * spool.MEBIBYTE
# Time before a damaged frame is skipped in a segment that is still written. The writer may be about to complete it.
BROKEN_GRACE_SECONDS = 2.0
# After `QUIET_SECONDS` without new frames, the lock of a writer is also checked, because its process id may be in use
# by another process. `GONE_CHECK_SECONDS` is the minimum time between two checks.
QUIET_SECONDS, GONE_CHECK_SECONDS = 2.0, 0.2
# Maximum number of segments before the current one that are not deleted because of open requests. Bodies in older
# segments are dropped.
MAX_HELD_SEGMENTS = 16
# Kinds of the events for a request that was open when its writer exited, and for a record whose amendment was not
# written then. No frames have these kinds.
KILLED, UNAMENDED = 0, -1
# Kinds of frames that end a request.
END_FRAME_KINDS = frozenset({spool.END, spool.EXTERNAL_LOG})


class BodyReference(NamedTuple):
    """Location in the spool of one part of a body."""

    kind: int
    segment: int
    offset: int
    length: int


class OpenRequest(msgspec.Struct):
    """Frames of a request whose `END` frame has not been read yet."""

    segment: int
    begin: bytes = b""
    flags: int = 0
    bodies: list[BodyReference] = []


class SpoolEvent(NamedTuple):
    """A frame for the consumer, or a `KILLED` or `UNAMENDED` request, whose writer exited before its end or its
    amendment. `request` has earlier frames of the same request, if it has bodies.
    """

    kind: int
    flags: int
    id: bytes
    payload: bytes
    request: OpenRequest | None
    at: Position


class WriterReader:
    """Reads the folder of one writer."""

    def __init__(self, folder: Path, done: Position | None, *, keeps_bodies: bool = False) -> None:
        """Starts at the first existing segment. Frames before `done` return no events: they only restore which requests
        are open.
        """
        self.folder = folder
        self.name = folder.name
        self.header = spool.SegmentHeader()
        self.open: dict[bytes, OpenRequest] = {}
        # Ended requests whose amendment follows, with the payload of their `END` frame as `begin`.
        self.unamended: dict[bytes, OpenRequest] = {}
        self.broken_segments = 0
        self.dropped_bodies = 0
        # Number of events that the last `read` returned, or of records that it summed.
        self.read_count: int = 0
        # True if the folder was replaced by another one since it was last read, so that it is read from the start.
        self.was_replaced = False
        self._keeps_bodies = keeps_bodies
        numbers = list_segments(folder)
        self._done = self._check_position(done, numbers)
        self._segment = numbers[0] if numbers else self._done.segment
        self._offset = 0
        self._file = -1
        self._bodies_file, self._bodies_segment = -1, -1
        self._skips = False
        self._broken_since = 0.0
        self._grown_at = time.monotonic()
        self._gone = False
        self._gone_checked_at = 0.0

    @property
    def position(self) -> Position:
        """Position up to which the events have been returned."""
        return max(Position(self._segment, self._offset), self._done)

    @property
    def first_needed_segment(self) -> int:
        """Number of the oldest segment that this consumer still needs, including those of open requests."""
        requests = (*self.open.values(), *self.unamended.values())
        return min((request.segment for request in requests), default=self._segment)

    def read(self, limit: int) -> list[SpoolEvent]:
        """Returns the next events, at most about `limit`; an empty list if there is nothing to read for now. Raises
        OSError only if it has no events.
        """
        events: list[SpoolEvent] = []
        self.read_count = 0
        try:
            self._read_events(events, limit)
        except OSError:
            # The position is already after these events, so they must not be lost. The next call fails again.
            if not self.read_count:
                raise
        return events

    def _read_events(self, events: list[SpoolEvent], limit: int) -> None:
        while self.read_count < limit:
            # Newer segments are listed before the read: if one exists, nothing more is written to this segment, so its
            # end is final.
            later = [number for number in list_segments(self.folder) if number > self._segment]
            is_open = self._file >= 0 or self._open_segment()
            is_final = bool(later) or (is_open and self._is_writer_gone())
            if is_open and self._read_chunk(events, limit - self.read_count, is_final=is_final):
                continue
            if not is_final or not self._finish_segment(events, later[0] if later else None):
                return

    def load_bodies(self, request: OpenRequest) -> dict[int, bytes]:
        """Returns the bodies of a request by frame kind, with secrets masked. Omits bodies whose segment was deleted."""
        chunks: dict[int, list[bytes]] = {}
        try:
            for part in request.bodies:
                file = self._open_for_bodies(part.segment)
                chunks.setdefault(part.kind, []).append(os.pread(file, part.length, part.offset))
        except OSError:
            self.dropped_bodies += 1
            return {}
        bodies = {kind: b"".join(parts) for kind, parts in chunks.items()}
        # The edge masks the bodies of requests that it has complete. Others arrive in pieces, and responses may
        # repeat what the client sent. Of a head, the edge has masked the headers that may not be shown.
        return {
            kind: body if kind == spool.UPSTREAM_HEAD else mask_body_secrets(body) or body
            for kind, body in bodies.items()
        }

    def release_old_bodies(self) -> None:
        """Drops bodies in segments that are far behind, so that long requests do not prevent the deletion of
        segments.
        """
        earlier = [number for number in list_segments(self.folder) if number < self._segment]
        if len(earlier) <= MAX_HELD_SEGMENTS:
            return
        oldest = earlier[-MAX_HELD_SEGMENTS]
        for request in self.open.values():
            if request.segment < oldest:
                request.segment = self._segment
                request.flags |= spool.BODIES_DROPPED
                self.dropped_bodies += bool(request.bodies)
                request.bodies = []
        self.unamended = {name: request for name, request in self.unamended.items() if request.segment >= oldest}

    def close(self) -> None:
        """Closes the current segment, and the one from which bodies were last read."""
        for file in (self._file, self._bodies_file):
            if file >= 0:
                os.close(file)
        self._file = self._bodies_file = -1

    def _open_for_bodies(self, number: int) -> int:
        """Returns the file descriptor of a segment for reading bodies. The last one stays open, because the next
        request usually has the same.
        """
        if number != self._bodies_segment or self._bodies_file < 0:
            file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            if self._bodies_file >= 0:
                os.close(self._bodies_file)
            self._bodies_file, self._bodies_segment = file, number
        return self._bodies_file

    def _path(self, number: int) -> Path:
        return self.folder / segment_name(number)

    def _check_position(self, done: Position | None, numbers: list[int]) -> Position:
        if done is None:
            return Position(numbers[0] if numbers else 1, 0)
        last = numbers[-1] if numbers else 0
        size = 0
        with suppress(FileNotFoundError):
            size = self._path(done.segment).stat().st_size
        if numbers and (done.segment > last + 1 or (done.segment == last and 0 < size < done.offset)):
            log.warning("the spool of %s was replaced; it is read from its start", self.name)
            self.was_replaced = True
            return Position(numbers[0], 0)
        return done

    def _open_segment(self) -> bool:
        try:
            file = os.open(self._path(self._segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self._file, self._offset, self._skips = file, 0, False
        self._gone, self._grown_at = False, time.monotonic()
        return True

    def _read_chunk(self, events: list[SpoolEvent], limit: int, *, is_final: bool) -> bool:
        """Reads and decodes one chunk. Returns false if nothing more can be read at the moment."""
        if not self._offset:
            return self._read_header()
        data = os.pread(self._file, READ_BYTES, self._offset)
        if self._skips:
            self._offset += len(data)
            return bool(data)
        decoded = self._accept_chunk(data, events, limit)
        is_too_long = len(data) == READ_BYTES and decoded.needed > READ_BYTES and not decoded.is_broken
        if is_too_long and decoded.end == self._offset:
            data = os.pread(self._file, decoded.needed, self._offset)
            decoded = self._accept_chunk(data, events, limit)
        if decoded.end > self._offset:
            self._offset, self._grown_at, self._broken_since = decoded.end, time.monotonic(), 0.0
            self._gone = False
            return True
        if decoded.is_broken:
            return self._skip_broken(decoded, is_final=is_final)
        if data and is_final:
            log.info("the last frame of segment %d of %s is incomplete", self._segment, self.name)
        return False

    def _read_header(self) -> bool:
        try:
            header = _load_header(self._file)
        except (ValueError, msgspec.MsgspecError) as error:
            self._abandon_segment(str(error))
            return True
        if header:
            self.header, self._offset = header
        return bool(header)

    def _done_offset(self) -> int:
        """Returns the offset in this segment before which all events were consumed."""
        done = self._done
        return 0 if done.segment < self._segment else done.offset if done.segment == self._segment else sys.maxsize

    def _accept_chunk(self, data: bytes, events: list[SpoolEvent], limit: int) -> spool.DecodedFrames:
        """Decodes the frames of a chunk, and adds the events of up to `limit` of them."""
        decoded = spool.decode_frames(data, self._offset, limit)
        before = len(events)
        self._accept_frames(decoded.frames, events)
        self.read_count += len(events) - before
        return decoded

    def _accept_frames(self, frames: list[spool.Frame], events: list[SpoolEvent]) -> None:
        segment, requests, done = self._segment, self.open, self._done_offset()
        for kind, flags, record_id, payload, start in frames:
            if kind == spool.BEGIN:
                requests[record_id] = OpenRequest(segment, payload, flags)
            elif kind in spool.BODY_NAMES:
                request = requests.get(record_id)
                if request is None:
                    request = requests[record_id] = OpenRequest(segment)
                request.flags |= flags
                if self._keeps_bodies:
                    offset = start + spool.FRAME_HEADER.size
                    request.bodies.append(BodyReference(kind, segment, offset, len(payload)))
            else:
                request = requests.pop(record_id, None) if kind in END_FRAME_KINDS else None
                if kind == spool.AMEND:
                    self.unamended.pop(record_id, None)
                elif kind == spool.END and flags & spool.AMENDMENT_FOLLOWS:
                    first, bodies = (request.segment, request.bodies) if request else (segment, [])
                    self.unamended[record_id] = OpenRequest(first, payload, flags, bodies)
                if start >= done:
                    events.append(SpoolEvent(kind, flags, record_id, payload, request, Position(segment, start)))

    def _skip_broken(self, decoded: spool.DecodedFrames, *, is_final: bool) -> bool:
        """Skips a damaged frame if its length is plausible, otherwise the rest of the segment. In a segment that is
        still written, first waits for `BROKEN_GRACE_SECONDS`.
        """
        now = time.monotonic()
        if not is_final:
            self._broken_since = self._broken_since or now
            if now - self._broken_since < BROKEN_GRACE_SECONDS:
                return False
        self._broken_since = 0.0
        after = self._offset + decoded.needed
        if decoded.needed and self._has_frame_at(after):
            self.broken_segments += 1
            log.error("a frame of segment %d of %s at byte %d is damaged", self._segment, self.name, self._offset)
            self._offset = after
        else:
            self._abandon_segment(f"it is damaged at byte {self._offset}")
        return True

    def _has_frame_at(self, offset: int) -> bool:
        size = os.fstat(self._file).st_size
        if offset == size:
            return True
        head = os.pread(self._file, spool.FRAME_HEADER.size, offset)
        if len(head) < spool.FRAME_HEADER.size:
            return False
        length: int = spool.FRAME_HEADER.unpack(head)[0]
        if offset + len(head) + length > size:
            return False
        data = os.pread(self._file, len(head) + length, offset)
        return bool(spool.decode_frames(data, offset, 1).frames)

    def _abandon_segment(self, reason: str) -> None:
        self.broken_segments += 1
        log.error("the rest of segment %d of %s is skipped: %s", self._segment, self.name, reason)
        self._skips = True
        self._offset = max(self._offset, 1)

    def _finish_segment(self, events: list[SpoolEvent], following: int | None) -> bool:
        """Moves to the next segment: `following`, or one that a later writer will create. Returns false if the writer
        may still append to this segment.

        If another process wrote the next segment, the requests that are still open are ended as killed. A position
        after this segment therefore means that they were ended.
        """
        is_other_process = True
        if following is not None:
            try:
                header = self._load_header_of(following)
            except (ValueError, msgspec.MsgspecError):
                header = self.header
            if header is None:
                return False
            is_other_process = not _is_same_process(self.header, header)
        self.close()
        # Uses the position after this segment, because the number of the next one may still be unknown.
        ended = Position(self._segment + 1, 0)
        self._segment, self._offset = following or self._segment + 1, 0
        if is_other_process:
            self._end_open_requests(events, ended)
        return following is not None

    def _load_header_of(self, number: int) -> spool.SegmentHeader | None:
        file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = _load_header(file)
        finally:
            os.close(file)
        return header[0] if header else None

    def _end_open_requests(self, events: list[SpoolEvent], at: Position) -> None:
        """Adds the events of a process that no longer runs: `KILLED` for each open request, and `UNAMENDED` for each
        record that waits for its amendment. They have the position after the last segment of that process.
        """
        # If `done` is at this position or after it, the requests were already ended when `done` was saved.
        if at > self._done:
            ended = [
                SpoolEvent(kind, request.flags, record_id, request.begin, request, at)
                for kind, requests in ((KILLED, self.open), (UNAMENDED, self.unamended))
                for record_id, request in requests.items()
                if request.begin
            ]
            events += ended
            self.read_count += len(ended)
        self.open, self.unamended = {}, {}

    def _is_writer_gone(self) -> bool:
        now = time.monotonic()
        if self._gone or now - self._gone_checked_at < GONE_CHECK_SECONDS:
            return self._gone
        self._gone_checked_at = now
        if not self.header.process_start or not self._offset:
            # Without a process start time in the header, only the lock shows whether the writer is alive.
            self._gone = self._is_lock_free()
        elif not _is_running(self.header):
            self._gone = True
        elif now - self._grown_at > QUIET_SECONDS:
            self._gone = self._is_lock_free()
        return self._gone

    def _is_lock_free(self) -> bool:
        try:
            file = os.open(self.folder / spool.LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True


class BudgetReader(WriterReader):
    """Reads the folder of one writer, and adds the usage of its records to sums. `read` returns only the events of killed
    requests.
    """

    def __init__(self, folder: Path, done: Position | None, sums: BudgetSums) -> None:
        """Stores the sums to which the records after `done` are added."""
        super().__init__(folder, done)
        self._sums = sums

    def _accept_chunk(self, data: bytes, events: list[SpoolEvent], limit: int) -> spool.DecodedFrames:
        """Adds up to `limit` records of a chunk to the sums, instead of events."""
        del events
        added = self._sums.add_frames(data, self._offset, limit, self._done_offset())
        opened, ended, count, end, is_broken, needed = added
        for record_id in ended:
            self.open.pop(record_id, None)
        for record_id, flags, begin in opened:
            self.open[record_id] = OpenRequest(self._segment, begin, flags)
        self.read_count += count
        return spool.DecodedFrames([], end, is_broken, needed)


class RecordReader(WriterReader):
    """Reads the folder of one writer for the log store. To save Python code for each plain record, `read` returns
    no events for them, and `take_plain` returns them together.
    """

    def __init__(self, folder: Path, done: Position | None) -> None:
        """Starts like `WriterReader`, and loads bodies."""
        super().__init__(folder, done, keeps_bodies=True)
        self._plain: list[spool.PlainRecords] = []

    def take_plain(self) -> list[spool.PlainRecords]:
        """Returns the plain records of the last `read`, in the order of the spool."""
        plain, self._plain = self._plain, []
        return plain

    def _accept_chunk(self, data: bytes, events: list[SpoolEvent], limit: int) -> spool.DecodedFrames:
        """Decodes the frames of a chunk, and adds the events of those that are no plain records."""
        plain, decoded = spool.split_frames(data, self._offset, limit, self._done_offset())
        before = len(events)
        self._accept_frames(decoded.frames, events)
        self.read_count += len(plain.lines) + len(events) - before
        if plain.lines:
            self._plain.append(plain)
        return decoded


Reader = TypeVar("Reader", bound=WriterReader)


class SpoolFollower(Generic[Reader]):
    """Follows all writers of a spool for one consumer."""

    def __init__(
        self,
        folder: str,
        positions: Mapping[str, Position],
        make_reader: Callable[[Path, Position | None], Reader],
    ) -> None:
        """Starts after the saved positions. `make_reader` makes the reader of a folder."""
        self.folder = Path(folder)
        self._positions = dict(positions)
        self._make_reader = make_reader
        self.readers: dict[str, Reader] = {}
        # Position of each writer up to which the consumer has saved its results.
        self.saved: dict[str, Position] = dict(positions)
        # Oldest segment of each writer that was needed when the readers were closed.
        self._needed_at_close: dict[str, int] = {}

    def find_writers(self) -> Iterator[Reader]:
        """Yields the reader of each writer that has a folder."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.is_dir())
        except FileNotFoundError:
            return
        for name in names:
            if name not in self.readers:
                self.readers[name] = self._make_reader(self.folder / name, self._positions.get(name))
            yield self.readers[name]

    def first_needed_segment(self, writer: str) -> int:
        """Number of the oldest segment of a writer that this consumer needs, now or after a restart."""
        reader, saved = self.readers.get(writer), self.saved.get(writer)
        needed = reader.first_needed_segment if reader else self._needed_at_close.get(writer)
        if needed is None or saved is None:
            return 0
        return min(saved.segment, needed)

    def close(self) -> None:
        """Closes all readers. If the consumer goes on, new readers start after the events that were returned."""
        readers, self.readers = self.readers, {}
        for name, reader in readers.items():
            # A reader that is only opened again would return all events since it was made once more.
            self._positions[name] = reader.position
            self._needed_at_close[name] = reader.first_needed_segment
            reader.close()


def find_recent_segment(folder: Path, since: float) -> float:
    """Returns the number of the first segment that was written to at or after a time, in seconds since 1970; infinity
    if there is no segment. The last segment always counts as recent, because its last write is unknown.
    """
    numbers = list_segments(folder)
    last = numbers[-1] if numbers else float("inf")
    # Numbers are Unix times in seconds, and a segment ends when the next one begins.
    return next((first for first, following in pairwise(numbers) if following >= since), last)


def delete_segments(folder: Path, needed: float) -> int:
    """Deletes the segments of a writer before `needed`, and returns the number of bytes freed."""
    freed = 0
    for number in list_segments(folder):
        if number < needed:
            with suppress(FileNotFoundError):
                path = folder / segment_name(number)
                freed += path.stat().st_size
                path.unlink()
    return freed


def _load_header(file: int) -> tuple[spool.SegmentHeader, int] | None:
    return spool.decode_header(os.pread(file, spool.MAX_HEADER_BYTES + 64, 0))


def _is_same_process(first: spool.SegmentHeader, second: spool.SegmentHeader) -> bool:
    """Returns true if one process wrote both segments. Also compares the start times, because process ids may be used
    again; in a container they are the same at each start.
    """
    return bool(first.process_start) and _process_of(first) == _process_of(second)


def _process_of(header: spool.SegmentHeader) -> tuple[int, int, str]:
    return header.pid, header.process_start, header.boot_id


def _is_running(header: spool.SegmentHeader) -> bool:
    """Returns true if the process that wrote a segment still runs."""
    return header.boot_id == read_boot_id() and read_process_start(header.pid) == header.process_start
