"""Append-only log for data that consists of many chunks, so that another process can read it. The first write contains
all chunks, later ones only changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger("penstock")

LENGTH, DIGEST = 8, 32
# If the appended frames exceed this multiple of the first frame's size, all chunks are written to the other file.
MAX_APPENDED_RATIO = 1


class Chunk(msgspec.Struct, frozen=True):
    """Some bytes and their SHA-256 digest."""

    data: bytes
    digest: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> Chunk:
        """Creates a chunk from bytes."""
        return cls(data, hashlib.sha256(data).digest())

    def __repr__(self) -> str:
        """Omits the bytes, because they may contain credentials."""
        return f"Chunk({self.digest.hex()[:12]})"


class Cipher(Protocol):
    """Encrypts and decrypts the frames of a log."""

    def seal(self, content: bytes) -> bytes:
        """Encrypts the content."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Decrypts the content. Raises a `PenstockError` if that fails."""
        ...


# The files outlive an upgrade, so the encoded names never change.
class Frame(msgspec.Struct, frozen=True):
    """One write to the log: either everything, or the changes since the previous frame."""

    number: int
    head: bytes
    chunks: dict[str, Chunk]
    removed_names: list[str]


class _LogState(NamedTuple):
    """Position in the log at which the next frame is appended."""

    file_index: int
    number: int
    # Size of the first frame in bytes.
    first_frame_bytes: int
    # Size of all complete frames in bytes.
    end: int
    digests: dict[str, bytes]


class _LoadedLog(NamedTuple):
    """Content of one of the two files."""

    state: _LogState
    head: bytes
    chunks: dict[str, Chunk]


class AppendLog:
    """Log in two alternating files, so that a process that dies while writing leaves the previous content intact."""

    def __init__(self, opened: Callable[[int, int], int], cipher: Cipher | None = None) -> None:
        """Stores the function that opens file 0 or 1 with flags, as `os.open` does. Opens nothing yet."""
        self._opened, self._cipher = opened, cipher
        self._known: _LogState | None = None

    def save(self, head: bytes, chunks: Mapping[str, Chunk]) -> None:
        """Writes the head, and the chunks that have changed since the last write."""
        if self._known is None:
            self.load()
        # Reset during the write: if it is interrupted, the next one must read the files again.
        state, self._known = self._known, None
        now = chunk_digests(chunks)
        if state is None or state.end > (1 + MAX_APPENDED_RATIO) * state.first_frame_bytes:
            file_index, number = (1 - state.file_index, state.number + 1) if state else (0, 1)
            size = self._write_frame(file_index, 0, Frame(number, head, dict(chunks), []))
            self._known = _LogState(file_index, number, size, size, now)
            return
        removed = [name for name in state.digests if name not in chunks]
        frame = Frame(state.number + 1, head, changed_chunks(chunks, state.digests), removed)
        size = self._write_frame(state.file_index, state.end, frame)
        self._known = state._replace(number=frame.number, end=state.end + size, digests=now)

    def load(self) -> tuple[bytes, dict[str, Chunk]] | None:
        """Returns the head and chunks that were saved last, or `None` if nothing readable was saved."""
        newest = max(filter(None, map(self._load_file, (0, 1))), key=lambda item: item.state.number, default=None)
        self._known = newest.state if newest else None
        return (newest.head, newest.chunks) if newest else None

    def _write_frame(self, file_index: int, start: int, frame: Frame) -> int:
        content = msgspec.msgpack.encode(frame)
        content = self._cipher.seal(content) if self._cipher else content
        written = len(content).to_bytes(LENGTH) + hashlib.sha256(content).digest() + content
        file = self._opened(file_index, os.O_RDWR | os.O_CREAT)
        try:
            # Removes a partial frame, which an interrupted write may have left after the complete ones.
            os.ftruncate(file, start)
            rest, at = memoryview(written), start
            while rest:
                size = os.pwrite(file, rest, at)
                rest, at = rest[size:], at + size
            os.fsync(file)
        finally:
            os.close(file)
        return len(written)

    def _load_file(self, file_index: int) -> _LoadedLog | None:
        try:
            return self._replay_frames(file_index, self._read_file(file_index))
        except FileNotFoundError:
            return None
        except (OSError, PenstockError, msgspec.DecodeError) as error:
            log.warning("the saved snapshot cannot be used: %s", error)
            return None

    def _read_file(self, file_index: int) -> bytes:
        file = self._opened(file_index, os.O_RDONLY)
        try:
            # Reads without the file position, because another process may share the open file.
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)

    def _replay_frames(self, file_index: int, content: bytes) -> _LoadedLog | None:
        written = list(_iter_complete_frames(content))
        if not written:
            return None
        opened = (self._cipher.open(sealed) if self._cipher else sealed for sealed, _ in written)
        frames = [msgspec.msgpack.decode(frame, type=Frame) for frame in opened]
        chunks: dict[str, Chunk] = {}
        for frame in frames:
            chunks = {name: chunk for name, chunk in chunks.items() if name not in frame.removed_names} | frame.chunks
        (_, first), (_, end), last = written[0], written[-1], frames[-1]
        return _LoadedLog(_LogState(file_index, last.number, first, end, chunk_digests(chunks)), last.head, chunks)


def chunk_digests(chunks: Mapping[str, Chunk]) -> dict[str, bytes]:
    """Returns the digest of each chunk, by name."""
    return {name: chunk.digest for name, chunk in chunks.items()}


def changed_chunks(chunks: Mapping[str, Chunk], before: Mapping[str, bytes]) -> dict[str, Chunk]:
    """Returns the chunks that are new or whose digest differs from that in `before`."""
    return {name: chunk for name, chunk in chunks.items() if before.get(name) != chunk.digest}


def _iter_complete_frames(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yields the content of each complete frame and the offset at which it ends."""
    start = 0
    while start + LENGTH + DIGEST <= len(content):
        digest_at = start + LENGTH
        data_at = digest_at + DIGEST
        end = data_at + int.from_bytes(content[start:digest_at])
        data = content[data_at:end]
        if end > len(content) or hashlib.sha256(data).digest() != content[digest_at:data_at]:
            return
        yield data, end
        start = end
