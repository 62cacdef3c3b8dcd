"""Writer of a spool folder. The control process uses it for records that do not come from the engine."""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import StartupError
from penstock.logs.spool_format import (
    LOCK_FILE,
    SEGMENT_BYTES,
    SEGMENT_SUFFIX,
    SegmentHeader,
    decode_frames,
    decode_header,
    encode_frame,
    encode_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNER_ONLY_MODE = stat.S_IRUSR | stat.S_IWUSR
CONTROL_WRITER = "control"
# Number of parent folders that may be created together with the folder of a writer.
NEW_FOLDERS = 3


class NewFrame(NamedTuple):
    """A frame to append: kind, id of its record, payload, and flags."""

    kind: int
    record_id: bytes
    payload: bytes
    flags: int = 0


def segment_name(number: int) -> str:
    """Returns the file name of a segment."""
    return f"{number:016d}{SEGMENT_SUFFIX}"


def list_segments(folder: Path) -> list[int]:
    """Returns the numbers of the segments of a writer, in ascending order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(SEGMENT_SUFFIX) for name in names if name.endswith(SEGMENT_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def read_process_start(pid: int) -> int | None:
    """Returns the start time of a process, in clock ticks since the start of the system. Returns `None` if it does not
    run.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == b"Z" else int(fields[19])


@functools.cache
def read_boot_id() -> str:
    """Returns the boot id, which is new at each start of the system. Returns an empty string if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


class SpoolWriter:
    """Appends frames to numbered segments. The frames of one `append` call are written completely or not at all. May be
    used by several threads.
    """

    def __init__(
        self, spool: str, writer: str, node: str, segment_bytes: int = SEGMENT_BYTES, *, is_durable: bool = False
    ) -> None:
        """Stores the folder. Nothing is created or locked before the first frame. If `is_durable`, `append` returns
        only after the frames are on the disk.
        """
        self.folder = Path(spool) / writer
        self._node = node
        self._segment_bytes = segment_bytes
        self._is_durable = is_durable
        self._turn = threading.Lock()
        self._lock_file = -1
        self._file = -1
        self._size = 0

    def append(self, frames: Iterable[NewFrame]) -> None:
        """Appends frames. Raises `OSError` if they cannot be written, and `StartupError` if another process owns the
        folder.
        """
        data = b"".join(encode_frame(frame.kind, frame.flags, frame.record_id, frame.payload) for frame in frames)
        with self._turn:
            if self._file < 0 or self._size + len(data) > self._segment_bytes:
                self._open_segment()
            try:
                _write_all(self._file, data)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(data)
            if self._is_durable:
                os.fdatasync(self._file)

    def contains(self, record_id: bytes) -> bool:
        """Returns true if a segment that still exists has a frame of this record."""
        with self._turn:
            return any(self._segment_contains(number, record_id) for number in list_segments(self.folder))

    def close(self) -> None:
        """Closes the segment and releases the folder."""
        with self._turn:
            for file in (self._file, self._lock_file):
                if file >= 0:
                    os.close(file)
            self._file = self._lock_file = -1

    def _segment_contains(self, number: int, record_id: bytes) -> bool:
        try:
            data = (self.folder / segment_name(number)).read_bytes()
            header = decode_header(data)
        except (OSError, ValueError):
            return False
        if header is None or record_id not in data:
            return False
        frames = decode_frames(data[header[1] :], 0, len(data)).frames
        return any(frame_id == record_id for _, _, frame_id, _, _ in frames)

    def _open_segment(self) -> None:
        self._lock_folder()
        # The number is at least the Unix time, so that numbers grow even if the folder was deleted.
        last = max([self._read_last_number(), *list_segments(self.folder)])
        number = max(int(time.time()), last + 1)
        path = self.folder / segment_name(number)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY_MODE)
        try:
            head = encode_header(self._make_header())
            _write_all(file, head)
            # The last number is stored in the lock file, because consumed segments are deleted.
            os.pwrite(self._lock_file, b"%016d" % number, 0)
            if self._is_durable:
                _sync_folders(self.folder)
        except OSError:
            os.close(file)
            with suppress(OSError):
                path.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = file, len(head)

    def _make_header(self) -> SegmentHeader:
        pid, created_at = os.getpid(), int(time.time() * 1000)
        return SegmentHeader(
            self._node, self.folder.name, pid, read_process_start(pid) or 0, read_boot_id(), created_at
        )

    def _read_last_number(self) -> int:
        stored = os.pread(self._lock_file, 32, 0).strip()
        return int(stored) if stored.isdigit() else 0

    def _lock_folder(self) -> None:
        if self._lock_file >= 0:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            message = f"the spool folder {str(self.folder)!r} belongs to another process that still runs"
            raise StartupError(message) from None
        self._lock_file = file


def _sync_folders(folder: Path) -> None:
    """Flushes the directory entries of a folder, and of parent folders that may be new, to the disk."""
    for path in (folder, *folder.parents[:NEW_FOLDERS]):
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
