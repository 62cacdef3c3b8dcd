"""Append-only snapshot log. It reads back what was written, survives a crash of the writer, and stays compact."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.errors import SettingsError
from penstock.snapshot.append_log import AppendLog, Chunk, Frame

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 200


def open_log(folder: Path) -> AppendLog:
    return AppendLog(lambda location, flags: os.open(folder / str(location), flags, 0o600))


def make_chunks(**content: bytes) -> dict[str, Chunk]:
    return {name: Chunk.from_bytes(data) for name, data in content.items()}


def test_reads_back_what_was_written(tmp_path: Path):
    chance = random.Random(3)  # noqa: S311 - what is written is no secret
    content: dict[str, Chunk] = {}
    remaining = open_log(tmp_path)
    for number in range(ROUNDS):
        for _ in range(chance.randrange(3)):
            content[f"p{chance.randrange(20)}"] = Chunk.from_bytes(chance.randbytes(chance.randrange(500)))
        if content and chance.random() < 0.3:
            content.pop(chance.choice(sorted(content)))
        if chance.random() < 0.2:
            # Another process continues with the same log.
            remaining = open_log(tmp_path)
        remaining.save(b"head %d" % number, content)
        assert open_log(tmp_path).load() == (b"head %d" % number, content)


def test_small_change_is_a_small_write(tmp_path: Path):
    remaining = open_log(tmp_path)
    remaining.save(b"1", make_chunks(large=bytes(100_000), small=b"1"))
    (before,) = [path.stat().st_size for path in tmp_path.iterdir()]
    remaining.save(b"2", make_chunks(large=bytes(100_000), small=b"2"))
    (after,) = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 0 < after - before < 500


def test_log_size_is_bounded(tmp_path: Path):
    remaining = open_log(tmp_path)
    for number in range(100):
        remaining.save(b"%d" % number, make_chunks(one=os.urandom(10_000), other=bytes(10_000)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 3 * 21_000


def test_encoding_of_frames_is_that_of_earlier_releases():
    first = (
        b"\x84\xa6number\x01\xa4head\xc4\x01h"
        b"\xa6chunks\x82\xa1a\x82\xa4data\xc4\x011\xa6digest\xc4\x02d1"
        b"\xa1b\x82\xa4data\xc4\x012\xa6digest\xc4\x02d2\xadremoved_names\x90"
    )
    second = (
        b"\x84\xa6number\x02\xa4head\xc4\x01i"
        b"\xa6chunks\x81\xa1a\x82\xa4data\xc4\x013\xa6digest\xc4\x02d3\xadremoved_names\x91\xa1b"
    )
    frames = {
        first: Frame(1, b"h", {"a": Chunk(b"1", b"d1"), "b": Chunk(b"2", b"d2")}, []),
        second: Frame(2, b"i", {"a": Chunk(b"3", b"d3")}, ["b"]),
    }
    for encoded, frame in frames.items():
        assert msgspec.msgpack.decode(encoded, type=Frame) == frame
        assert msgspec.msgpack.encode(frame) == encoded


def test_partial_write_is_ignored(tmp_path: Path):
    first, second = make_chunks(a=b"1", b=b"2"), make_chunks(a=b"3")
    remaining = open_log(tmp_path)
    remaining.save(b"first", first)
    (path,) = tmp_path.iterdir()
    complete = path.stat().st_size
    remaining.save(b"second", second)
    content = path.read_bytes()
    for size in range(complete, len(content)):
        path.write_bytes(content[:size])
        assert open_log(tmp_path).load() == (b"first", first)
    again = open_log(tmp_path)
    again.save(b"third", second)
    assert open_log(tmp_path).load() == (b"third", second)


def test_failed_write_keeps_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    remaining = open_log(tmp_path)
    remaining.save(b"1", make_chunks(a=b"1"))

    def raise_no_space(_file: int, _data: bytes, _offset: int) -> int:
        message = "no space"
        raise OSError(message)

    with monkeypatch.context() as failing:
        failing.setattr("os.pwrite", raise_no_space)
        with pytest.raises(OSError, match="no space"):
            remaining.save(b"2", make_chunks(a=b"2"))
    assert open_log(tmp_path).load() == (b"1", make_chunks(a=b"1"))
    remaining.save(b"3", make_chunks(a=b"3"))
    assert open_log(tmp_path).load() == (b"3", make_chunks(a=b"3"))


class UnopenableCipher:
    """Cipher whose content can never be opened."""

    def seal(self, content: bytes) -> bytes:
        return content

    def open(self, sealed: bytes) -> bytes:
        message = f"it stays shut: {len(sealed)} bytes"
        raise SettingsError(message)


def test_unopenable_log_is_reported_and_rewritten(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    open_log(tmp_path).save(b"1", make_chunks(a=b"canary"))
    shut = AppendLog(lambda location, flags: os.open(tmp_path / str(location), flags, 0o600), UnopenableCipher())
    assert shut.load() is None
    assert ["it stays shut" in record.getMessage() for record in caplog.records] == [True]
    assert "canary" not in caplog.text
    shut.save(b"2", make_chunks(a=b"2"))
    assert open_log(tmp_path).load() == (b"2", make_chunks(a=b"2"))


def test_empty_log_loads_nothing(tmp_path: Path):
    assert open_log(tmp_path).load() is None
    assert "canary" not in repr(Chunk.from_bytes(b"canary"))
