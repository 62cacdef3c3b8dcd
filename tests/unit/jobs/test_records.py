"""The record file: whole batches, bounded size, private, and honest when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.jobs import records as module
from penstock.jobs.records import RecordFile, RecordWriter
from penstock.settings import Records


def named(folder: Path, **options: int) -> Records:
    return Records(path=str(folder / "deep" / "records.jsonl"), **options)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_batches_follow_each_other_and_only_the_owner_reads_them(tmp_path: Path):
    file = RecordFile(named(tmp_path))
    file.append(b'{"id":1}\n')
    file.append(b'{"id":2}')
    file.close()
    path = tmp_path / "deep" / "records.jsonl"
    assert path.read_text() == '{"id":1}\n{"id":2}\n'
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


def test_a_file_that_was_open_to_others_is_closed_to_them(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    path.touch(0o644)
    RecordFile(Records(path=str(path))).append(b"x")
    assert mode(path) == 0o600


def test_the_file_is_put_aside_by_size_and_the_oldest_goes(tmp_path: Path):
    file = RecordFile(named(tmp_path, rotate_bytes=4096, keep=2))
    for number in range(5):
        file.append(str(number).encode() * 3000)
    kept = sorted((tmp_path / "deep").iterdir())
    assert [path.name for path in kept] == ["records.jsonl", "records.jsonl.1", "records.jsonl.2"]
    assert [path.read_text()[0] for path in kept] == ["4", "3", "2"]


def test_without_anything_to_keep_the_file_starts_again(tmp_path: Path):
    file = RecordFile(named(tmp_path, rotate_bytes=4096, keep=0))
    file.append(b"a" * 3000)
    file.append(b"b" * 3000)
    assert [path.read_text()[0] for path in (tmp_path / "deep").iterdir()] == ["b"]


def test_a_file_that_somebody_moved_away_is_made_again(tmp_path: Path):
    file = RecordFile(named(tmp_path))
    path = tmp_path / "deep" / "records.jsonl"
    file.append(b"one")
    path.rename(path.with_suffix(".old"))
    file.append(b"two")
    assert path.read_text() == "two\n"


def test_a_batch_that_does_not_fit_on_the_disk_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RecordFile(named(tmp_path))
    file.append(b"whole")
    real = os.write
    left = [3]

    def write(number: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(number, bytes(data)[: left[0]])
        left[0] -= written
        return written

    with monkeypatch.context() as full:
        full.setattr(module.os, "write", write)
        with pytest.raises(OSError, match="No space"):
            file.append(b"broken")
    path = tmp_path / "deep" / "records.jsonl"
    assert path.read_text() == "whole\n"
    file.append(b"again")
    assert path.read_text() == "whole\nagain\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_engine_is_told_to_keep_what_the_disk_refuses():
    async def scene() -> None:
        writer = RecordWriter(Records(path="/dev/full/records.jsonl"))
        with pytest.raises(UnavailableError, match="cannot be written"):
            await writer.write(b"{}\n")
        assert (writer.written, writer.refused) == (0, 1)
        writer.close()

    asyncio.run(scene())


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        writer = RecordWriter(named(tmp_path))
        batch = b"x" * 1000 + b"\n"
        # The first two fill what may wait before the thread can have written anything that the loop noticed.
        results = await asyncio.gather(*(writer.write(batch) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), type(None), UnavailableError]
        await writer.write(batch)
        writer.close()
        assert (writer.written, writer.refused) == (3, 1)

    monkeypatch.setattr(module, "WAITING_BYTES", 2500)
    asyncio.run(scene())
    assert len((tmp_path / "deep" / "records.jsonl").read_bytes()) == 3 * 1001
