"""Request records. Receives them from the engines and appends them to a JSON Lines file, on separate threads."""

from __future__ import annotations

import logging
import mmap
import os
import socket
import stat
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.settings import Records

log = logging.getLogger("penstock")

OWNER_ONLY_MODE = stat.S_IRUSR | stat.S_IWUSR
# Part of the file that is searched for a resent batch, because other workers may have written since.
LOOK_BACK_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 512 * 1024
PAGE_BYTES = mmap.PAGESIZE
# Smaller writes cost little in the page cache.
MIN_DIRECT_WRITE_BYTES = 64 * 1024
# If a direct write takes longer than `SLOW_SECONDS`, writes go through the page cache for `DETOUR_SECONDS`. A thread of
# low priority may wait that long for its core alone.
SLOW_SECONDS, DETOUR_SECONDS = 0.5, 5.0
# Frame header: length of the lines in bytes, and true if they were sent before without a reply.
FRAME_HEADER = struct.Struct("<QB")
WRITTEN, REFUSED = b"+", b"-"
# An engine that stalls in the middle of a batch must not block the others.
STALL_TIMEOUT_SECONDS = 10
CLOSE_TIMEOUT_SECONDS = 2.0


class RecordBatch:
    """Complete record lines that an engine is sending. Reads the remaining bytes directly into the destination buffer."""

    def __init__(self, source: socket.socket, length: int, *, again: bool = False) -> None:
        """Stores the socket and the number of bytes to read."""
        self._source = source
        self.left = length
        self.again = again

    def read_into(self, buffer: memoryview) -> int:
        """Reads until the buffer is full or the batch is complete. Returns the number of bytes read."""
        most = min(len(buffer), self.left)
        got = 0
        while got < most:
            count = 0
            with suppress(BlockingIOError):
                count = self._source.recv_into(buffer[got:most], 0, socket.MSG_WAITALL)
            if not count:
                message = "the engine disconnected in the middle of a batch"
                raise ConnectionError(message)
            got += count
        self.left -= got
        return got

    def discard_rest(self, buffer: memoryview) -> None:
        """Reads and discards the rest of the batch."""
        while self.left:
            self.read_into(buffer)


class LocalRecordBatch(RecordBatch):
    """Complete record lines of this process, already in memory."""

    def __init__(self, lines: bytes, *, again: bool = False) -> None:
        """Stores the lines."""
        self._lines = memoryview(lines)
        self.left = len(lines)
        self.again = again

    def read_into(self, buffer: memoryview) -> int:
        """Copies as many bytes as the buffer has space for. Returns their number."""
        most = min(len(buffer), self.left)
        at = len(self._lines) - self.left
        buffer[:most] = self._lines[at : at + most]
        self.left -= most
        return most


class RecordFile:
    """The record file, rotated by size. Each batch is written completely or not at all."""

    def __init__(self, settings: Records) -> None:
        """Stores the path and size limit; the file is opened with the first batch."""
        self._path = os.path.abspath(settings.path)
        self._limit = settings.rotate_bytes
        self._keep = settings.keep
        self._file = -1
        self._direct = -1
        self._detour_until = 0.0
        # Aligned to a page, with one extra page so that data can start at any offset within the first page.
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES + PAGE_BYTES))

    def append(self, batch: RecordBatch) -> None:
        """Appends a batch. On failure, truncates what was written and raises. Skips a resent batch that is already in
        the file.
        """
        size = self._open_current()
        # The same offset within a page as in the file, so that whole pages are aligned for direct I/O.
        start = size % PAGE_BYTES
        got = batch.read_into(self._buffer[start:])
        if batch.again and self._contains_batch(bytes(self._buffer[start : start + got]), batch.left):
            batch.discard_rest(self._buffer)
            return
        if size and size + got + batch.left > self._limit:
            self._rotate()
            size = self._open_current()
        end = size
        try:
            while got:
                self._write_buffer(start, got, end)
                end += got
                start = end % PAGE_BYTES
                got = batch.read_into(self._buffer[start:])
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def close(self) -> None:
        """Closes the file."""
        for number in (self._file, self._direct):
            if number >= 0:
                os.close(number)
        self._file = self._direct = -1

    def _open_current(self) -> int:
        """Opens the file that is now at the path, unless it is already open. Returns its size in bytes."""
        if self._file >= 0:
            opened_stat = os.fstat(self._file)
            try:
                path_stat = os.stat(self._path)
            except FileNotFoundError:
                path_stat = None
            if path_stat and (path_stat.st_dev, path_stat.st_ino) == (opened_stat.st_dev, opened_stat.st_ino):
                return opened_stat.st_size
            self.close()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_MODE)
        os.fchmod(self._file, OWNER_ONLY_MODE)
        # With direct I/O a record costs a tenth, but not every file system supports it.
        with suppress(OSError):
            self._direct = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        return os.fstat(self._file).st_size

    def _write_buffer(self, start: int, count: int, end: int) -> None:
        """Appends part of the buffer to a file that ends at `end`. Whole pages bypass the page cache."""
        first = -start % PAGE_BYTES
        pages = max(0, count - first) // PAGE_BYTES * PAGE_BYTES
        view = self._buffer[start : start + count]
        if (
            start != end % PAGE_BYTES
            or pages < MIN_DIRECT_WRITE_BYTES
            or self._direct < 0
            or time.monotonic() < self._detour_until
        ):
            _write_all(self._file, view)
            return
        _write_all(self._file, view[:first])
        written = self._write_direct(view[first : first + pages], end + first)
        _write_all(self._file, view[first + written :])

    def _write_direct(self, pages: memoryview, end: int) -> int:
        started_at = time.monotonic()
        try:
            return os.pwrite(self._direct, pages, end)
        except OSError:
            # The page cache may have space where direct I/O has none, or the file system may not support direct I/O.
            self._detour_until = started_at + DETOUR_SECONDS
            return 0
        finally:
            if time.monotonic() - started_at > SLOW_SECONDS:
                self._detour_until = started_at + DETOUR_SECONDS

    def _contains_batch(self, part: bytes, rest: int) -> bool:
        """Returns true if the end of the file, or of the last rotated one, contains the first line of a batch. No two
        batches have the same first line.
        """
        first = part.partition(b"\n")[0]
        for name in (self._path, f"{self._path}.1"):
            with suppress(FileNotFoundError), open(name, "rb") as written:
                size = os.fstat(written.fileno()).st_size
                written.seek(max(0, size - len(part) - rest - LOOK_BACK_BYTES))
                if first in written.read():
                    return True
        return False

    def _rotate(self) -> None:
        """Renames each file to the next number and deletes the last one."""
        self.close()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._keep + 1))]
        if not self._keep:
            os.unlink(self._path)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if os.path.exists(newer):
                os.replace(newer, older)


class RecordFeed:
    """Receives batches from all engines and acknowledges each when it is in the file. An engine keeps a batch that was
    rejected.
    """

    def __init__(self, settings: Records) -> None:
        """Prepares the record file; nothing is opened before the first batch."""
        self._records = RecordFile(settings)
        self._turn = threading.Lock()
        self._serving: dict[threading.Thread, socket.socket] = {}
        self._refusing = False
        self.written = 0
        self.refused = 0

    def listen(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Serves each engine that connects on its own thread, so that engines do not wait for the event loop, nor the
        loop for a disk.

        Returns a function that stops accepting engines and writes the batches that were sent completely.
        """
        loop.add_reader(listener, self._accept_engine, listener)

        def stop_listening() -> None:
            loop.remove_reader(listener)
            self.close()

        return stop_listening

    def close(self) -> None:
        """Writes batches that were sent completely, and closes the file."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        sources_by_thread = dict(self._serving)
        for source in sources_by_thread.values():
            with suppress(OSError):
                source.shutdown(socket.SHUT_RD)
        for thread in sources_by_thread:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._turn:
            self._records.close()

    def receive_batches(self, source: socket.socket) -> None:
        """Receives batches from one engine until it disconnects."""
        with source:
            while head := _receive_exactly(source, FRAME_HEADER.size):
                length, again = FRAME_HEADER.unpack(head)
                source.sendall(
                    WRITTEN if self._append_batch(RecordBatch(source, length, again=bool(again))) else REFUSED
                )

    def append_lines(self, lines: bytes, *, again: bool = False) -> bool:
        """Appends record lines of this process. If `again` is true, skips lines that are already in the file. Returns
        true if the lines are in the file.
        """
        return self._append_batch(LocalRecordBatch(lines, again=again))

    def _accept_engine(self, listener: socket.socket) -> None:
        source, _ = listener.accept()
        source.setblocking(True)
        # Not Python's own socket timeout, which adds a second system call to every wait.
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", STALL_TIMEOUT_SECONDS, 0))
        thread = threading.Thread(target=self._serve_engine, args=(source,), name="records", daemon=True)
        self._serving[thread] = source
        thread.start()

    def _serve_engine(self, source: socket.socket) -> None:
        with suppress(ConnectionError):
            self.receive_batches(source)
        self._serving.pop(threading.current_thread(), None)

    def _append_batch(self, batch: RecordBatch) -> bool:
        try:
            with self._turn:
                self._records.append(batch)
        except ConnectionError:
            raise
        except OSError as error:
            self.refused += 1
            if not self._refusing:
                log.error("the record file cannot be written: %s", error.strerror or error)  # noqa: TRY400 - says it all
            self._refusing = True
            # The engine sends the rest of the batch anyway, so it must be read.
            batch.discard_rest(memoryview(bytearray(BUFFER_BYTES)))
            return False
        if self._refusing:
            log.info("the record file can be written again")
        self._refusing = False
        self.written += 1
        return True


def _receive_exactly(source: socket.socket, length: int) -> bytes:
    """Returns exactly that many bytes, or none if the peer has disconnected."""
    while True:
        with suppress(BlockingIOError):
            got = source.recv(length, socket.MSG_WAITALL)
            return got if len(got) == length else b""


def _write_all(file: int, lines: memoryview) -> None:
    while lines:
        lines = lines[os.write(file, lines) :]
