"""Record file and the feed that fills it. Batches are atomic, files are private and bounded in size, and a full disk is
reported.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock import records as module
from penstock.records import RecordFile, log_requests
from penstock.settings import Records

if TYPE_CHECKING:
    from pathlib import Path

LARGE_BATCH = b"".join(b'{"number": %07d}\n' % number for number in range(60_000))


def record_settings(folder: Path, **options: int) -> Records:
    return Records(path=str(folder / "deep" / "records.jsonl"), **options)


def permission_bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_log_level_debug_shows_host_and_reason_of_a_failure(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "penstock")
    attempts = [
        {
            "host": "a.example",
            "error": "upstream_connect_failed",
            "reason": "no connection to a.example:443: \nrefused",
        },
        {"host": "b.example", "status": 500},
    ]
    log_requests(msgspec.json.encode({"outcome": "failed", "attempts": attempts}) + b"\n")
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == r'request outcome=failed host=a.example reason="no connection to a.example:443: \nrefused"'


def test_log_level_debug_shows_one_line_per_request(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = RecordFile(record_settings(tmp_path))
    line = (
        b'{"id":"r-1","operation":"chat","response_status_code":502,"error":"upstream_connect_failed","ai_model":"m"}\n'
    )
    file.append(line)
    assert caplog.text == ""
    with caplog.at_level("DEBUG", "penstock"):
        file.append(line)
    text = "request operation=chat response_status_code=502 error=upstream_connect_failed ai_model=m id=r-1"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_batches_are_appended_and_private_to_the_owner(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path))
    file.append(b'{"id":1}\n')
    file.append(b'{"id":2}\n')
    file.close()
    path = tmp_path / "deep" / "records.jsonl"
    assert path.read_text() == '{"id":1}\n{"id":2}\n'
    assert permission_bits(path) == 0o600
    assert permission_bits(path.parent) == 0o700


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("before", [0, 1, 4095, 4096, 100_000])
def test_writes_exactly_the_bytes_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, direct: bool):
    file = RecordFile(record_settings(tmp_path))
    passed = []
    real = os.pwrite

    def pwrite(number: int, pages: memoryview, end: int) -> int:
        passed.append(len(pages))
        if not direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(number, pages, end)

    monkeypatch.setattr(module.os, "pwrite", pwrite)
    batches = [b"x" * before, LARGE_BATCH, b"short\n", LARGE_BATCH[:-1], LARGE_BATCH[:70_000]]
    for batch in filter(None, batches):
        file.append(batch)
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == b"".join(batches)
    # Whole pages bypass the page cache if the file system supports it; otherwise only the first write tries that.
    assert all(count % page_bytes() == 0 for count in passed)
    assert len(passed) == 1 if not direct else sum(passed) > len(LARGE_BATCH)


def page_bytes() -> int:
    return module.PAGE_BYTES


def test_slow_direct_writes_fall_back_to_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RecordFile(record_settings(tmp_path))
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tried = []
    real = os.pwrite

    def pwrite(number: int, pages: memoryview, end: int) -> int:
        tried.append(now[0])
        now[0] += 0.6
        return real(number, pages, end)

    monkeypatch.setattr(module.os, "pwrite", pwrite)
    for _ in range(2):
        file.append(LARGE_BATCH)
    assert tried == [100.0]
    now[0] = 106.0
    file.append(LARGE_BATCH)
    assert tried == [100.0, 106.0]
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == LARGE_BATCH * 3


def test_existing_file_becomes_private(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    path.touch(0o644)
    RecordFile(Records(path=str(path))).append(b"x")
    assert permission_bits(path) == 0o600


def test_rotates_by_size_and_deletes_the_oldest(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path, rotate_bytes=4096, max_rotated_files=2))
    for number in range(5):
        file.append(str(number).encode() * 3000)
    remaining = sorted((tmp_path / "deep").iterdir())
    assert [path.name for path in remaining] == ["records.jsonl", "records.jsonl.1", "records.jsonl.2"]
    assert [path.read_text()[0] for path in remaining] == ["4", "3", "2"]


def test_truncates_file_without_rotation(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path, rotate_bytes=4096, max_rotated_files=0))
    file.append(b"a" * 3000)
    file.append(LARGE_BATCH)
    assert [path.read_bytes() for path in (tmp_path / "deep").iterdir()] == [LARGE_BATCH]


def test_recreates_a_file_that_was_moved_away(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path))
    path = tmp_path / "deep" / "records.jsonl"
    file.append(b"one\n")
    path.rename(path.with_suffix(".old"))
    file.append(b"two\n")
    assert path.read_text() == "two\n"


def test_batch_on_a_full_disk_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RecordFile(record_settings(tmp_path))
    file.append(b"whole\n")
    real = os.write
    remaining = [3]

    def write(number: int, data: bytes) -> int:
        if not remaining[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(number, bytes(data)[: remaining[0]])
        remaining[0] -= written
        return written

    with monkeypatch.context() as full:
        full.setattr(module.os, "write", write)
        with pytest.raises(OSError, match="No space"):
            file.append(b"broken\n")
    path = tmp_path / "deep" / "records.jsonl"
    assert path.read_text() == "whole\n"
    file.append(b"again\n")
    assert path.read_text() == "whole\nagain\n"
