"""What is kept is read back as it was, however the one who kept it ended, and takes little more room than it needs."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from penstock.errors import SettingsError
from penstock.snapshot.append_log import AppendLog, Chunk

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 200


def journal(folder: Path) -> AppendLog:
    return AppendLog(lambda place, flags: os.open(folder / str(place), flags, 0o600))


def pieces(**content: bytes) -> dict[str, Chunk]:
    return {name: Chunk.from_bytes(data) for name, data in content.items()}


def test_whatever_is_kept_is_what_is_read_back(tmp_path: Path):
    chance = random.Random(3)  # noqa: S311 - what is written is no secret
    content: dict[str, Chunk] = {}
    kept = journal(tmp_path)
    for number in range(ROUNDS):
        for _ in range(chance.randrange(3)):
            content[f"p{chance.randrange(20)}"] = Chunk.from_bytes(chance.randbytes(chance.randrange(500)))
        if content and chance.random() < 0.3:
            content.pop(chance.choice(sorted(content)))
        if chance.random() < 0.2:
            # Another process goes on with it.
            kept = journal(tmp_path)
        kept.save(b"head %d" % number, content)
        assert journal(tmp_path).load() == (b"head %d" % number, content)


def test_a_small_change_is_a_small_write(tmp_path: Path):
    kept = journal(tmp_path)
    kept.save(b"1", pieces(large=bytes(100_000), small=b"1"))
    (before,) = [path.stat().st_size for path in tmp_path.iterdir()]
    kept.save(b"2", pieces(large=bytes(100_000), small=b"2"))
    (after,) = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 0 < after - before < 500


def test_it_does_not_grow_for_ever(tmp_path: Path):
    kept = journal(tmp_path)
    for number in range(100):
        kept.save(b"%d" % number, pieces(one=os.urandom(10_000), other=bytes(10_000)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 3 * 21_000


def test_what_was_half_written_is_as_if_it_had_not_been(tmp_path: Path):
    first, second = pieces(a=b"1", b=b"2"), pieces(a=b"3")
    kept = journal(tmp_path)
    kept.save(b"first", first)
    (path,) = tmp_path.iterdir()
    whole = path.stat().st_size
    kept.save(b"second", second)
    content = path.read_bytes()
    for size in range(whole, len(content)):
        path.write_bytes(content[:size])
        assert journal(tmp_path).load() == (b"first", first)
    again = journal(tmp_path)
    again.save(b"third", second)
    assert journal(tmp_path).load() == (b"third", second)


def test_one_who_fails_to_write_leaves_what_was_there_and_writes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = journal(tmp_path)
    kept.save(b"1", pieces(a=b"1"))

    def full(_file: int, _data: bytes, _offset: int) -> int:
        message = "no space"
        raise OSError(message)

    with monkeypatch.context() as failing:
        failing.setattr("os.pwrite", full)
        with pytest.raises(OSError, match="no space"):
            kept.save(b"2", pieces(a=b"2"))
    assert journal(tmp_path).load() == (b"1", pieces(a=b"1"))
    kept.save(b"3", pieces(a=b"3"))
    assert journal(tmp_path).load() == (b"3", pieces(a=b"3"))


class Shut:
    """Seals that nobody opens."""

    def seal(self, content: bytes) -> bytes:
        return content

    def open(self, sealed: bytes) -> bytes:
        message = f"it stays shut: {len(sealed)} bytes"
        raise SettingsError(message)


def test_what_cannot_be_opened_is_said_and_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal(tmp_path).save(b"1", pieces(a=b"canary"))
    shut = AppendLog(lambda place, flags: os.open(tmp_path / str(place), flags, 0o600), Shut())
    assert shut.load() is None
    assert ["it stays shut" in record.getMessage() for record in caplog.records] == [True]
    assert "canary" not in caplog.text
    shut.save(b"2", pieces(a=b"2"))
    assert journal(tmp_path).load() == (b"2", pieces(a=b"2"))


def test_nothing_is_read_where_nothing_was_kept(tmp_path: Path):
    assert journal(tmp_path).load() is None
    assert "canary" not in repr(Chunk.from_bytes(b"canary"))
