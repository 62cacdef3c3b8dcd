"""Consumer of the spool that writes the record file, as JSON Lines. Each record is in it once, even if the process was
killed.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs import spool_format as spool
from penstock.logs.batch import Position
from penstock.logs.record_lines import (
    AMENDMENT_WAIT_SECONDS,
    PREVIOUS_COST,
    amend_line,
    decode_fields,
    encode_amendment,
    find_missing_usage,
    make_line_of_killed_request,
)
from penstock.logs.spool_reader import KILLED, UNAMENDED, SpoolEvent, SpoolFollower, WriterReader
from penstock.records import RecordFile, refused_records_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import Records

log = logging.getLogger("penstock")

MAX_BATCH_RECORDS, MAX_BATCH_BYTES = 10_000, 16 * spool.MEBIBYTE
STATE_SUFFIX = ".position"
RETRY_SECONDS = 1.0


class FileState(msgspec.Struct):
    """Inode and size of the record files when the positions were saved."""

    files: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    positions: dict[str, Position] = {}


class WaitingLine(msgspec.Struct):
    """A line that is not written yet, because its amendment may follow until `due`."""

    writer: str
    at: Position
    line: bytes
    is_refused: bool
    due: float
    original: bytes = b""
    """JSON of the record that this line amends, if that record was found."""


class RecordFileConsumer:
    """Appends the records of the spool to the record file, and those of rejected requests to a separate file.

    A state file has the spool positions and the size of the record file after each batch. After a restart, lines beyond
    that size are removed and written again.
    """

    def __init__(
        self,
        settings: Records,
        spool_folder: str,
        on_written: Callable[[list[WaitingLine]], None] = lambda _written: None,
    ) -> None:
        """Restores the state of the last batch. `on_written` is called with the lines of each batch after its state was
        saved.
        """
        self._on_written = on_written
        self.written = 0
        self.failed = 0
        self._path = os.path.abspath(settings.path) + STATE_SUFFIX
        self._files = (RecordFile(settings), RecordFile(refused_records_settings(settings)))
        self._state = self._load_state()
        for file in self._files:
            file.on_rotated = self._save_rotation
        self._truncate_unsaved()
        self.follower = SpoolFollower(spool_folder, self._state.positions, WriterReader)
        self._waiting: list[WaitingLine] = []
        self._by_id: dict[bytes, WaitingLine] = {}
        self._waiting_bytes = 0
        self._failing_until = 0.0

    def run_once(self, *, is_final: bool = False) -> int:
        """Reads new events and writes due records. Returns the number of events read."""
        now = time.monotonic()
        count = 0
        for reader in self.follower.find_writers():
            free_slots = MAX_BATCH_RECORDS - len(self._waiting)
            if free_slots <= 0 or self._waiting_bytes >= MAX_BATCH_BYTES:
                break
            events = reader.read(free_slots)
            reader.release_old_bodies()
            count += len(events)
            for event in events:
                self._process_event(reader, event, now)
        if is_final or now >= self._failing_until:
            self._flush(now, is_final=is_final)
        return count

    def close(self) -> None:
        """Closes all files."""
        self.follower.close()
        for file in self._files:
            file.close()

    def _process_event(self, reader: WriterReader, event: SpoolEvent, now: float) -> None:
        due = now
        if event.kind in {spool.AMEND, UNAMENDED}:
            is_amendment = event.kind == spool.AMEND
            fields = decode_fields(event.payload) if is_amendment else find_missing_usage(event, reader.load_bodies)
            if fields:
                self._amend(reader.name, event, fields, now)
            return
        if event.kind == KILLED:
            line = make_line_of_killed_request(event, reader.load_bodies)
        elif event.kind == spool.END:
            line = event.payload
            if event.flags & spool.AMENDMENT_FOLLOWS:
                due = now + AMENDMENT_WAIT_SECONDS
        else:
            return
        waiting = WaitingLine(reader.name, event.at, line, bool(event.flags & spool.REFUSED), due)
        self._waiting.append(waiting)
        self._waiting_bytes += len(line)
        self._by_id[event.id] = waiting

    def _amend(self, writer: str, event: SpoolEvent, fields: dict[str, Any], now: float) -> None:
        if waiting := self._by_id.get(event.id):
            waiting.line, waiting.due = amend_line(waiting.line, fields), now
            return
        # The record was already written. After a restart, it may already include the amendment, so the file is
        # searched. Corrections of costs are never included, and the file is not searched for them, because there may be
        # millions.
        name = str(uuid.UUID(bytes=event.id))
        original = b"" if PREVIOUS_COST in fields else self._files[0].find_line(name.encode())
        written = decode_fields(original)
        if written.get("id") != name or any(written.get(key) != value for key, value in fields.items()):
            line = encode_amendment(event.id, fields)
            original = original if written.get("id") == name else b""
            self._waiting.append(WaitingLine(writer, event.at, line, is_refused=False, due=now, original=original))
            self._waiting_bytes += len(line)

    def _flush(self, now: float, *, is_final: bool) -> None:
        is_full = len(self._waiting) >= MAX_BATCH_RECORDS or self._waiting_bytes >= MAX_BATCH_BYTES
        count = 0
        for waiting in self._waiting:
            if waiting.due > now and not is_final and not is_full:
                break
            count += 1
        unwritten = self._waiting[count:]
        positions = {name: reader.position for name, reader in self.follower.readers.items()}
        for waiting in reversed(unwritten):
            positions[waiting.writer] = min(waiting.at, positions[waiting.writer])
        if not count and not self._has_moved_on(positions):
            return
        written = self._waiting[:count]
        batches = [[waiting.line for waiting in written if waiting.is_refused == kind] for kind in (False, True)]
        try:
            self._save_sizes(batches)
            for file, lines in zip(self._files, batches, strict=True):
                if lines:
                    file.append(b"\n".join([*lines, b""]))
            self._save(FileState((self._files[0].get_state(), self._files[1].get_state()), positions))
        except OSError as error:
            self._fail(error)
            return
        if self._failing_until:
            log.info("the record file can be written again")
            self._failing_until = 0.0
        self.written += count
        self._waiting = unwritten
        self._waiting_bytes = sum(len(waiting.line) for waiting in unwritten)
        remaining = set(map(id, unwritten))
        self._by_id = {key: waiting for key, waiting in self._by_id.items() if id(waiting) in remaining}
        self.follower.saved = positions
        if written:
            self._on_written(written)

    def _has_moved_on(self, positions: dict[str, Position]) -> bool:
        """Returns true if a segment without records was finished, so that it can be deleted."""
        saved = self._state.positions
        return any(name not in saved or saved[name].segment < at.segment for name, at in positions.items())

    def _fail(self, error: OSError) -> None:
        self.failed += 1
        if not self._failing_until:
            log.error("the record file cannot be written: %s", error.strerror or error)
        self._failing_until = time.monotonic() + RETRY_SECONDS
        with suppress(OSError):
            self._truncate_unsaved()

    def _truncate_unsaved(self) -> None:
        for file, (inode, size) in zip(self._files, self._state.files, strict=True):
            file.truncate_to(inode, size)

    def _save_sizes(self, batches: list[list[bytes]]) -> None:
        """Creates the files that are written next. Saves their sizes if something else created or changed them."""
        for file, lines in zip(self._files, batches, strict=True):
            if lines:
                file.create()
        sizes = (self._files[0].get_state(), self._files[1].get_state())
        if sizes != self._state.files:
            self._save(FileState(sizes, self._state.positions))

    def _save_rotation(self) -> None:
        """Saves that a file is new and empty. The saved positions remain those of the last batch."""
        sizes = list(self._state.files)
        for index, file in enumerate(self._files):
            inode, size = file.get_state()
            if inode != sizes[index][0]:
                sizes[index] = (inode, size)
        self._save(FileState((sizes[0], sizes[1]), self._state.positions))

    def _save(self, state: FileState) -> None:
        draft = f"{self._path}.new"
        os.makedirs(os.path.dirname(draft), mode=0o700, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(state))
        os.replace(draft, self._path)
        self._state = state

    def _load_state(self) -> FileState:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=FileState)
        except FileNotFoundError:
            return FileState()
        except msgspec.MsgspecError as error:
            log.warning("%s cannot be read, so records may be repeated: %s", self._path, error)
            return FileState()
