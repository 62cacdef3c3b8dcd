"""Appends the records of requests to a file of JSON lines, away from the event loop."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.settings import Records

OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR
WAITING_BYTES = 64 * 1024 * 1024
# What other workers may have written since.
LOOK_BACK_BYTES = 16 * 1024 * 1024


class RecordFile:
    """The file, put aside by size; a batch is in it whole or not at all."""

    def __init__(self, settings: Records) -> None:
        """Remember where and how large; the file is opened with the first batch."""
        self._path = os.path.abspath(settings.path)  # noqa: PTH100
        self._limit = settings.rotate_bytes
        self._keep = settings.keep
        self._file = -1

    def append(self, batch: bytes, *, again: bool = False) -> None:
        """Write a batch; on failure take back what got in and raise. What was sent before may be there already."""
        lines = batch if batch.endswith(b"\n") else batch + b"\n"
        size = self._open()
        if again and self._holds(lines, size):
            return
        if size and size + len(lines) > self._limit:
            self._rotate()
            size = self._open()
        try:
            _write_all(self._file, lines)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        """Have the file open that is at the path now, and give its size."""
        if self._file >= 0:
            mine = os.fstat(self._file)
            try:
                there = os.stat(self._path)  # noqa: PTH116
            except FileNotFoundError:
                there = None
            if there and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return mine.st_size
            self.close()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        os.fchmod(self._file, OWNER_ONLY)
        return os.fstat(self._file).st_size

    def _holds(self, lines: bytes, size: int) -> bool:
        """Look for the first line of a batch, which no other has, in what was written last."""
        start = max(0, size - len(lines) - LOOK_BACK_BYTES)
        with open(self._path, "rb") as written:  # noqa: PTH123
            written.seek(start)
            return lines[: lines.index(b"\n") + 1] in written.read()

    def _rotate(self) -> None:
        """Move every file one number up; the last falls off."""
        self.close()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._keep + 1))]
        if not self._keep:
            os.unlink(self._path)  # noqa: PTH108
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if os.path.exists(newer):  # noqa: PTH110
                os.replace(newer, older)  # noqa: PTH105


class RecordWriter:
    """One thread that writes, and a bound on what waits for it."""

    def __init__(self, settings: Records) -> None:
        """Prepare the thread; it starts with the first batch."""
        self._records = RecordFile(settings)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        self._waiting = 0
        self.written = 0
        self.refused = 0

    async def write(self, batch: bytes, *, again: bool = False) -> None:
        """Return when the batch is in the file, raise when it is not: the engine then keeps it."""
        if self._waiting and self._waiting + len(batch) > WAITING_BYTES:
            self.refused += 1
            message = "the record writer is behind"
            raise UnavailableError(message)
        self._waiting += len(batch)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, partial(self._records.append, batch, again=again)
            )
        except OSError as error:
            self.refused += 1
            message = f"the record file cannot be written: {error.strerror or error}"
            raise UnavailableError(message) from error
        finally:
            self._waiting -= len(batch)
        self.written += 1

    def close(self) -> None:
        """Finish what waits, and close."""
        self._thread.shutdown(wait=True)
        self._records.close()


def _write_all(file: int, lines: bytes) -> None:
    rest = memoryview(lines)
    while rest:
        rest = rest[os.write(file, rest) :]
