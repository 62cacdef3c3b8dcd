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
MOST_ADDED = 1


class Piece(msgspec.Struct, frozen=True):
    """Some bytes, and what stands for them."""

    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes) -> Piece:
        """Make one of bytes."""
        return cls(data, hashlib.sha256(data).digest())

    def __repr__(self) -> str:
        """Leave the bytes out: they may hold credentials."""
        return f"Piece({self.digest.hex()[:12]})"


class Seal(Protocol):
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
    pieces: dict[str, Piece]
    gone: list[str]


class _Known(NamedTuple):
    """What the next frame is a change of."""

    place: int
    number: int
    # Bytes of the first frame, and of all that are whole.
    first: int
    end: int
    digests: dict[str, bytes]


class _Found(NamedTuple):
    """What one of the two places holds."""

    known: _Known
    head: bytes
    pieces: dict[str, Piece]


class Journal:
    """Two places, so that one who dies while writing leaves what was there before."""

    def __init__(self, opened: Callable[[int, int], int], seal: Seal | None = None) -> None:
        """Take what opens place 0 or 1 with flags, as `os.open` does; nothing is opened yet."""
        self._opened, self._seal = opened, seal
        self._known: _Known | None = None

    def keep(self, head: bytes, pieces: Mapping[str, Piece]) -> None:
        """Write it down; of the pieces those that are others than they were."""
        if self._known is None:
            self.last()
        # Should this be interrupted, what is there must be looked at anew.
        known, self._known = self._known, None
        now = digests(pieces)
        if known is None or known.end > (1 + MOST_ADDED) * known.first:
            place, number = (1 - known.place, known.number + 1) if known else (0, 1)
            size = self._write(place, 0, Frame(number, head, dict(pieces), []))
            self._known = _Known(place, number, size, size, now)
            return
        gone = [name for name in known.digests if name not in pieces]
        frame = Frame(known.number + 1, head, changed(pieces, known.digests), gone)
        size = self._write(known.place, known.end, frame)
        self._known = known._replace(number=frame.number, end=known.end + size, digests=now)

    def last(self) -> tuple[bytes, dict[str, Piece]] | None:
        """Read back what was kept last, if anything was that can be read."""
        found = max(filter(None, map(self._found, (0, 1))), key=lambda one: one.known.number, default=None)
        self._known = found.known if found else None
        return (found.head, found.pieces) if found else None

    def _write(self, place: int, start: int, frame: Frame) -> int:
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

    def _found(self, place: int) -> _Found | None:
        try:
            return self._folded(place, self._read(place))
        except FileNotFoundError:
            return None
        except (OSError, PenstockError, msgspec.DecodeError) as error:
            log.warning("the kept snapshot cannot be used: %s", error)
            return None

    def _read(self, place: int) -> bytes:
        file = self._opened(place, os.O_RDONLY)
        try:
            # Not from where somebody else read to, who may have the same file open.
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)

    def _folded(self, place: int, content: bytes) -> _Found | None:
        written = list(_frames(content))
        if not written:
            return None
        opened = (self._seal.open(sealed) if self._seal else sealed for sealed, _ in written)
        frames = [msgspec.msgpack.decode(frame, type=Frame) for frame in opened]
        pieces: dict[str, Piece] = {}
        for frame in frames:
            pieces = {name: piece for name, piece in pieces.items() if name not in frame.gone} | frame.pieces
        (_, first), (_, end), last = written[0], written[-1], frames[-1]
        return _Found(_Known(place, last.number, first, end, digests(pieces)), last.head, pieces)


def digests(pieces: Mapping[str, Piece]) -> dict[str, bytes]:
    """Give what stands for each of them."""
    return {name: piece.digest for name, piece in pieces.items()}


def changed(pieces: Mapping[str, Piece], before: Mapping[str, bytes]) -> dict[str, Piece]:
    """Give those that are others than stood for by these digests, or new."""
    return {name: piece for name, piece in pieces.items() if before.get(name) != piece.digest}


def _frames(content: bytes) -> Iterator[tuple[bytes, int]]:
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
