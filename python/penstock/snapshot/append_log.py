"""Append-only log for data made of many chunks. Writes everything first and then only the changes, so the data outlives
its process.
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
# If the appended frames exceed this multiple of the first frame, everything is written anew.
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
        return f"Piece({self.digest.hex()[:12]})"


class Cipher(Protocol):
    """Encrypts and decrypts the frames of a log."""

    def seal(self, content: bytes) -> bytes:
        """Encrypts the content."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Decrypts the content. Raises a `PenstockError` if that fails."""
        ...


class Frame(msgspec.Struct, frozen=True):
    """One write to the log: either everything, or the changes since the previous frame."""

    number: int
    head: bytes
    pieces: dict[str, Chunk]
    gone: list[str]


class _LogState(NamedTuple):
    """State of the log that the next frame is appended to."""

    file_index: int
    number: int
    # Size of the first frame, and of all complete frames, in bytes.
    first_frame_bytes: int
    end: int
    digests: dict[str, bytes]


class _LoadedLog(NamedTuple):
    """Content of one of the two files."""

    state: _LogState
    head: bytes
    chunks: dict[str, Chunk]


class AppendLog:
    """Log in two alternating files, so that a process that dies while writing leaves the previous content intact."""

    def __init__(self, opened: Callable[[int, int], int], seal: Cipher | None = None) -> None:
        """Stores the function that opens file 0 or 1 with flags, as `os.open` does. Opens nothing yet."""
        self._opened, self._seal = opened, seal
        self._known: _LogState | None = None

    def save(self, head: bytes, pieces: Mapping[str, Chunk]) -> None:
        """Writes the head and those chunks that changed since the last write."""
        if self._known is None:
            self.load()
        # If the write is interrupted, the next one must read the files again.
        known, self._known = self._known, None
        now = chunk_digests(pieces)
        if known is None or known.end > (1 + MAX_APPENDED_RATIO) * known.first_frame_bytes:
            place, number = (1 - known.file_index, known.number + 1) if known else (0, 1)
            size = self._write_frame(place, 0, Frame(number, head, dict(pieces), []))
            self._known = _LogState(place, number, size, size, now)
            return
        gone = [name for name in known.digests if name not in pieces]
        frame = Frame(known.number + 1, head, changed_chunks(pieces, known.digests), gone)
        size = self._write_frame(known.file_index, known.end, frame)
        self._known = known._replace(number=frame.number, end=known.end + size, digests=now)

    def load(self) -> tuple[bytes, dict[str, Chunk]] | None:
        """Returns the head and chunks that were saved last, or `None` if nothing readable was saved."""
        found = max(filter(None, map(self._load_file, (0, 1))), key=lambda one: one.state.number, default=None)
        self._known = found.state if found else None
        return (found.head, found.chunks) if found else None

    def _write_frame(self, place: int, start: int, frame: Frame) -> int:
        content = msgspec.msgpack.encode(frame)
        content = self._seal.seal(content) if self._seal else content
        written = len(content).to_bytes(LENGTH) + hashlib.sha256(content).digest() + content
        file = self._opened(place, os.O_RDWR | os.O_CREAT)
        try:
            # A partial frame of an interrupted write may follow the complete ones.
            os.ftruncate(file, start)
            rest, at = memoryview(written), start
            while rest:
                size = os.pwrite(file, rest, at)
                rest, at = rest[size:], at + size
            os.fsync(file)
        finally:
            os.close(file)
        return len(written)

    def _load_file(self, place: int) -> _LoadedLog | None:
        try:
            return self._replay_frames(place, self._read_file(place))
        except FileNotFoundError:
            return None
        except (OSError, PenstockError, msgspec.DecodeError) as error:
            log.warning("the saved snapshot cannot be used: %s", error)
            return None

    def _read_file(self, place: int) -> bytes:
        file = self._opened(place, os.O_RDONLY)
        try:
            # Does not use the file position, because another reader may share the open file.
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)

    def _replay_frames(self, place: int, content: bytes) -> _LoadedLog | None:
        written = list(_iter_complete_frames(content))
        if not written:
            return None
        opened = (self._seal.open(sealed) if self._seal else sealed for sealed, _ in written)
        frames = [msgspec.msgpack.decode(frame, type=Frame) for frame in opened]
        pieces: dict[str, Chunk] = {}
        for frame in frames:
            pieces = {name: piece for name, piece in pieces.items() if name not in frame.gone} | frame.pieces
        (_, first), (_, end), last = written[0], written[-1], frames[-1]
        return _LoadedLog(_LogState(place, last.number, first, end, chunk_digests(pieces)), last.head, pieces)


def chunk_digests(pieces: Mapping[str, Chunk]) -> dict[str, bytes]:
    """Returns the digest of each chunk, by name."""
    return {name: piece.digest for name, piece in pieces.items()}


def changed_chunks(pieces: Mapping[str, Chunk], before: Mapping[str, bytes]) -> dict[str, Chunk]:
    """Returns the chunks that are new or whose digest differs from that in `before`."""
    return {name: piece for name, piece in pieces.items() if before.get(name) != piece.digest}


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
