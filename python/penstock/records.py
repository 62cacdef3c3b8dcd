"""Takes the records of requests from the engines and appends them to a file of JSON lines, on threads of its own."""

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
# What other workers may have written since.
LOOK_BACK_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 512 * 1024
PAGE_BYTES = mmap.PAGESIZE
# Less than this costs little in the page cache.
MIN_DIRECT_WRITE_BYTES = 64 * 1024
# A disk that takes longer (a thread of low priority may wait for its core alone) is written to through the page cache
SLOW_SECONDS, DETOUR_SECONDS = 0.5, 5.0
# Length of the lines in bytes, and whether they were sent before without an answer.
FRAME_HEADER = struct.Struct("<QB")
WRITTEN, REFUSED = b"+", b"-"
# An engine that stops in the middle of a batch must not hold up the others.
STALL_TIMEOUT_SECONDS = 10
CLOSE_TIMEOUT_SECONDS = 2.0


class RecordBatch:
    """Whole lines on their way from an engine; what is still to come is read where it is to be."""

    def __init__(self, source: socket.socket, length: int, *, again: bool = False) -> None:
        """Know how much will come."""
        self._source = source
        self.left = length
        self.again = again

    def read_into(self, place: memoryview) -> int:
        """Read until the place is full or the batch complete; give how much was read."""
        most = min(len(place), self.left)
        got = 0
        while got < most:
            count = 0
            with suppress(BlockingIOError):
                count = self._source.recv_into(place[got:most], 0, socket.MSG_WAITALL)
            if not count:
                message = "the engine left in the middle of a batch"
                raise ConnectionError(message)
            got += count
        self.left -= got
        return got

    def discard_rest(self, place: memoryview) -> None:
        """Read the rest and forget it."""
        while self.left:
            self.read_into(place)


class LocalRecordBatch(RecordBatch):
    """Whole lines that are here already."""

    def __init__(self, lines: bytes, *, again: bool = False) -> None:
        """Know them."""
        self._lines = memoryview(lines)
        self.left = len(lines)
        self.again = again

    def read_into(self, place: memoryview) -> int:
        """Give as many bytes as there is room for."""
        most = min(len(place), self.left)
        at = len(self._lines) - self.left
        place[:most] = self._lines[at : at + most]
        self.left -= most
        return most


class RecordFile:
    """The file, put aside by size; a batch is in it whole or not at all."""

    def __init__(self, settings: Records) -> None:
        """Remember where and how large; the file is opened with the first batch."""
        self._path = os.path.abspath(settings.path)
        self._limit = settings.rotate_bytes
        self._keep = settings.keep
        self._file = -1
        self._direct = -1
        self._detour_until = 0.0
        # On a page's border, with room to begin anywhere within its first page.
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES + PAGE_BYTES))

    def append(self, batch: RecordBatch) -> None:
        """Write a batch; on failure take back what got in and raise. What was sent before may be there already."""
        size = self._open_current()
        # At the same place within a page as it will have in the file.
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
        """Close the file."""
        for number in (self._file, self._direct):
            if number >= 0:
                os.close(number)
        self._file = self._direct = -1

    def _open_current(self) -> int:
        """Have the file open that is at the path now, and give its size."""
        if self._file >= 0:
            mine = os.fstat(self._file)
            try:
                there = os.stat(self._path)
            except FileNotFoundError:
                there = None
            if there and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return mine.st_size
            self.close()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_MODE)
        os.fchmod(self._file, OWNER_ONLY_MODE)
        # Past the page cache a record costs a tenth; not every file system can.
        with suppress(OSError):
            self._direct = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        return os.fstat(self._file).st_size

    def _write_buffer(self, start: int, count: int, end: int) -> None:
        """Append a part of the buffer to a file that ends at `end`, whole pages of it past the page cache."""
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
        began = time.monotonic()
        try:
            return os.pwrite(self._direct, pages, end)
        except OSError:
            # The page cache may have room where this way has none, or the file system does not know this way.
            self._detour_until = began + DETOUR_SECONDS
            return 0
        finally:
            if time.monotonic() - began > SLOW_SECONDS:
                self._detour_until = began + DETOUR_SECONDS

    def _contains_batch(self, part: bytes, rest: int) -> bool:
        """Look for the first line of a batch, which no other has, in what was written last, put aside meanwhile or not."""
        first = part.partition(b"\n")[0]
        for name in (self._path, f"{self._path}.1"):
            with suppress(FileNotFoundError), open(name, "rb") as written:
                size = os.fstat(written.fileno()).st_size
                written.seek(max(0, size - len(part) - rest - LOOK_BACK_BYTES))
                if first in written.read():
                    return True
        return False

    def _rotate(self) -> None:
        """Move every file one number up; the last falls off."""
        self.close()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._keep + 1))]
        if not self._keep:
            os.unlink(self._path)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if os.path.exists(newer):
                os.replace(newer, older)


class RecordFeed:
    """Takes batches from every engine and answers each when it is in the file: an engine keeps what is refused."""

    def __init__(self, settings: Records) -> None:
        """Prepare; nothing is opened before the first batch."""
        self._records = RecordFile(settings)
        self._turn = threading.Lock()
        self._serving: dict[threading.Thread, socket.socket] = {}
        self._refusing = False
        self.written = 0
        self.refused = 0

    def listen(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Take every engine that comes, on a thread of its own: none waits for the loop, nor the loop for a disk.

        Gives what ends it: no engine is taken any more, and what was sent whole is written.
        """
        loop.add_reader(listener, self._accept_engine, listener)

        def stop_listening() -> None:
            loop.remove_reader(listener)
            self.close()

        return stop_listening

    def close(self) -> None:
        """Write what was sent whole, and close."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        serving = dict(self._serving)
        for source in serving.values():
            with suppress(OSError):
                source.shutdown(socket.SHUT_RD)
        for thread in serving:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._turn:
            self._records.close()

    def receive_batches(self, source: socket.socket) -> None:
        """Take batches from one engine until it leaves."""
        with source:
            while head := _receive_exactly(source, FRAME_HEADER.size):
                length, again = FRAME_HEADER.unpack(head)
                source.sendall(
                    WRITTEN if self._append_batch(RecordBatch(source, length, again=bool(again))) else REFUSED
                )

    def append_lines(self, lines: bytes, *, again: bool = False) -> bool:
        """Write lines of this process itself; those that may be there already are looked for. Say whether they are there."""
        return self._append_batch(LocalRecordBatch(lines, again=again))

    def _accept_engine(self, listener: socket.socket) -> None:
        source, _ = listener.accept()
        source.setblocking(True)
        # Not Python's own timeout: with it every wait would be a second system call.
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
            # The rest of the batch is on its way all the same.
            batch.discard_rest(memoryview(bytearray(BUFFER_BYTES)))
            return False
        if self._refusing:
            log.info("the record file is written again")
        self._refusing = False
        self.written += 1
        return True


def _receive_exactly(source: socket.socket, length: int) -> bytes:
    """Give that many bytes, or none where the other side is gone."""
    while True:
        with suppress(BlockingIOError):
            got = source.recv(length, socket.MSG_WAITALL)
            return got if len(got) == length else b""


def _write_all(file: int, lines: memoryview) -> None:
    while lines:
        lines = lines[os.write(file, lines) :]
