"""Keeps what is made of many pieces where it outlives its process: whole at first, and then what changed."""

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
# What was added may be so many times as much as the whole: then the whole is written anew.
MAX_APPENDED_RATIO = 1


class Chunk(msgspec.Struct, frozen=True):
    """Some bytes, and what stands for them."""

    data: bytes
    digest: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> Chunk:
        """Make one of bytes."""
        return cls(data, hashlib.sha256(data).digest())

    def __repr__(self) -> str:
        """Leave the bytes out: they may hold credentials."""
        return f"Piece({self.digest.hex()[:12]})"


class Cipher(Protocol):
    """Makes bytes unreadable for others, and readable again."""

    def seal(self, content: bytes) -> bytes:
        """Close them."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Open them, or raise a `PenstockError`."""
        ...


class Frame(msgspec.Struct, frozen=True):
    """What is written at one time: everything, or what became other than it was."""

    number: int
    head: bytes
    pieces: dict[str, Chunk]
    gone: list[str]


class _LogState(NamedTuple):
    """What the next frame is a change of."""

    file_index: int
    number: int
    # Bytes of the first frame, and of all that are whole.
    first_frame_bytes: int
    end: int
    digests: dict[str, bytes]


class _LoadedLog(NamedTuple):
    """What one of the two places holds."""

    state: _LogState
    head: bytes
    chunks: dict[str, Chunk]


class AppendLog:
    """Two places, so that one who dies while writing leaves what was there before."""

    def __init__(self, opened: Callable[[int, int], int], seal: Cipher | None = None) -> None:
        """Take what opens place 0 or 1 with flags, as `os.open` does; nothing is opened yet."""
        self._opened, self._seal = opened, seal
        self._known: _LogState | None = None

    def save(self, head: bytes, pieces: Mapping[str, Chunk]) -> None:
        """Write it down; of the pieces those that are others than they were."""
        if self._known is None:
            self.load()
        # Should this be interrupted, what is there must be looked at anew.
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
        """Read back what was kept last, if anything was that can be read."""
        found = max(filter(None, map(self._load_file, (0, 1))), key=lambda one: one.state.number, default=None)
        self._known = found.state if found else None
        return (found.head, found.chunks) if found else None

    def _write_frame(self, place: int, start: int, frame: Frame) -> int:
        content = msgspec.msgpack.encode(frame)
        content = self._seal.seal(content) if self._seal else content
        written = len(content).to_bytes(LENGTH) + hashlib.sha256(content).digest() + content
        file = self._opened(place, os.O_RDWR | os.O_CREAT)
        try:
            # Behind what is whole there may be the half of what was begun.
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
            log.warning("the kept snapshot cannot be used: %s", error)
            return None

    def _read_file(self, place: int) -> bytes:
        file = self._opened(place, os.O_RDONLY)
        try:
            # Not from where somebody else read to, who may have the same file open.
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
    """Give what stands for each of them."""
    return {name: piece.digest for name, piece in pieces.items()}


def changed_chunks(pieces: Mapping[str, Chunk], before: Mapping[str, bytes]) -> dict[str, Chunk]:
    """Give those that are others than stood for by these digests, or new."""
    return {name: piece for name, piece in pieces.items() if before.get(name) != piece.digest}


def _iter_complete_frames(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Give those that are whole, and where each ends."""
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
