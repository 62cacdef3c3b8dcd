"""The record file: request records as JSON Lines, rotated by size."""

from __future__ import annotations

import logging
import mmap
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import Records

log = logging.getLogger("penstock")

OWNER_ONLY_MODE = stat.S_IRUSR | stat.S_IWUSR
# Size of the part at the end of the file that is searched for a record.
LOOK_BACK_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 512 * 1024
PAGE_BYTES = mmap.PAGESIZE
# Minimum size of a direct write. Smaller writes cost little in the page cache.
MIN_DIRECT_WRITE_BYTES = 64 * 1024
# If a direct write takes longer than `SLOW_SECONDS`, writes go through the page cache for `DETOUR_SECONDS`. A shorter
# limit would not work: a thread of low priority may wait up to half a second for a core.
SLOW_SECONDS, DETOUR_SECONDS = 0.5, 5.0
# Maximum size of the file for records of refused requests. It is small, because anyone can cause such records.
MAX_REFUSED_FILE_BYTES = 8 * 1024 * 1024

# Fields of a record that the process log repeats at the level debug.
LOGGED_FIELDS = (
    *("operation", "response_status_code", "response_time", "outcome", "error", "ai_org", "ai_model"),
    *("api_key_id", "trace_id", "id"),
)


class RecordFile:
    """The record file, rotated by size. Each batch is written completely or not at all."""

    def __init__(self, settings: Records) -> None:
        """Stores the path and size limit; the file is opened with the first batch."""
        self._path = os.path.abspath(settings.path)
        self._limit = settings.rotate_bytes
        self._max_rotated_files = settings.max_rotated_files
        # Callback after a rotation, before anything is written to the new file.
        self.on_rotated: Callable[[], None] | None = None
        self._file = -1
        self._direct = -1
        self._detour_until = 0.0
        # The buffer is aligned to a page. One extra page allows data to start at any offset within the first page.
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES + PAGE_BYTES))

    def append(self, lines: bytes) -> None:
        """Appends complete record lines. On failure, truncates what was written and raises `OSError`."""
        size = self._open_current()
        if size and size + len(lines) > self._limit:
            self._rotate()
            size = self._open_current()
            if self.on_rotated:
                self.on_rotated()
        end, remaining = size, memoryview(lines)
        try:
            while remaining:
                # Data has the same offset within a page as in the file, so that whole pages are aligned for direct I/O.
                start = end % PAGE_BYTES
                part = remaining[: len(self._buffer) - start]
                self._buffer[start : start + len(part)] = part
                self._write_buffer(start, len(part), end)
                end, remaining = end + len(part), remaining[len(part) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise
        if log.isEnabledFor(logging.DEBUG):
            log_requests(lines)

    def create(self) -> None:
        """Creates the file if it does not exist."""
        self._open_current()

    def get_state(self) -> tuple[int, int]:
        """Returns inode and size of the file at the path; zeros if there is none."""
        try:
            file_status = os.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return file_status.st_ino, file_status.st_size

    def truncate_to(self, inode: int, size: int) -> None:
        """Truncates the file to `size`, unless the path now belongs to another file."""
        found_inode, found_size = self.get_state()
        if found_inode == inode and found_size > size:
            os.truncate(self._path, size)

    def find_line(self, text: bytes) -> bytes:
        """Returns the last line that contains this text. Searches the end of the file, then the end of the last rotated
        file.
        """
        for name in (self._path, f"{self._path}.1"):
            with suppress(FileNotFoundError), open(name, "rb") as written:
                written.seek(max(0, os.fstat(written.fileno()).st_size - LOOK_BACK_BYTES))
                end = written.read()
                at = end.rfind(text)
                if at >= 0:
                    return end[end.rfind(b"\n", 0, at) + 1 : end.find(b"\n", at)]
        return b""

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
        # Direct I/O reduces the cost of a record to a tenth, but not every file system supports it.
        with suppress(OSError):
            self._direct = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        return os.fstat(self._file).st_size

    def _write_buffer(self, start: int, count: int, end: int) -> None:
        """Appends `count` bytes of the buffer to a file that ends at `end`. Writes whole pages with direct I/O."""
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
            # Writes use the page cache for some time, because it may have space where direct I/O has none. The file
            # system may also not support direct I/O.
            self._detour_until = started_at + DETOUR_SECONDS
            return 0
        finally:
            if time.monotonic() - started_at > SLOW_SECONDS:
                self._detour_until = started_at + DETOUR_SECONDS

    def _rotate(self) -> None:
        """Renames each file to the next number and deletes the last one."""
        self.close()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._max_rotated_files + 1))]
        if not self._max_rotated_files:
            os.unlink(self._path)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if os.path.exists(newer):
                os.replace(newer, older)


def refused_records_settings(settings: Records) -> Records:
    """Returns the settings of the file for records of requests without a valid key, such as `records-refused.jsonl`."""
    stem, suffix = os.path.splitext(settings.path)
    limit = min(settings.rotate_bytes, MAX_REFUSED_FILE_BYTES)
    return msgspec.structs.replace(settings, path=f"{stem}-refused{suffix}", rotate_bytes=limit, max_rotated_files=1)


def _write_all(file: int, lines: memoryview) -> None:
    while lines:
        lines = lines[os.write(file, lines) :]


def log_requests(lines: bytes) -> None:
    """Writes one line per record to the process log, at the level debug."""
    for line in lines.splitlines():
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue
        fields = {name: record.get(name) for name in LOGGED_FIELDS} | _last_failure(record)
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value not in {None, ""})
        log.debug("request %s", text)


def _last_failure(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the host and the reason of the last attempt that failed because of a network error."""
    for attempt in reversed(record.get("attempts") or ()):
        if "reason" in attempt:
            return {"host": attempt.get("host"), "reason": msgspec.json.encode(attempt["reason"]).decode()}
    return {}
