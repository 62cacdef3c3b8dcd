"""Record file and the feed that fills it. Batches are atomic, files are private and bounded in size, and a full disk is
reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from penstock import records as module
from penstock.records import RecordBatch, RecordFeed, RecordFile
from penstock.settings import Records
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE_BATCH = b"".join(b'{"number": %07d}\n' % number for number in range(60_000))


def record_settings(folder: Path, **options: int) -> Records:
    return Records(path=str(folder / "deep" / "records.jsonl"), **options)


def permission_bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def append_batch(file: RecordFile, lines: bytes, *, again: bool = False, cut: int | None = None) -> None:
    """Sends a batch through a socket as an engine does. With `cut`, the sender disconnects after that many bytes."""
    ours, theirs = socket.socketpair()

    def send_lines() -> None:
        with ours, contextlib.suppress(BrokenPipeError):
            ours.sendall(lines[:cut])

    sending = threading.Thread(target=send_lines)
    sending.start()
    with theirs:
        try:
            file.append(RecordBatch(theirs, len(lines), again=again))
        finally:
            theirs.shutdown(socket.SHUT_RD)
            sending.join()


def test_batches_are_appended_and_private_to_the_owner(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path))
    append_batch(file, b'{"id":1}\n')
    append_batch(file, b'{"id":2}\n')
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
        append_batch(file, batch)
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
        append_batch(file, LARGE_BATCH)
    assert tried == [100.0]
    now[0] = 106.0
    append_batch(file, LARGE_BATCH)
    assert tried == [100.0, 106.0]
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == LARGE_BATCH * 3


def test_existing_file_becomes_private(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    path.touch(0o644)
    append_batch(RecordFile(Records(path=str(path))), b"x")
    assert permission_bits(path) == 0o600


def test_rotates_by_size_and_deletes_the_oldest(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path, rotate_bytes=4096, keep=2))
    for number in range(5):
        append_batch(file, str(number).encode() * 3000)
    kept = sorted((tmp_path / "deep").iterdir())
    assert [path.name for path in kept] == ["records.jsonl", "records.jsonl.1", "records.jsonl.2"]
    assert [path.read_text()[0] for path in kept] == ["4", "3", "2"]


def test_truncates_if_no_rotated_files_are_kept(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path, rotate_bytes=4096, keep=0))
    append_batch(file, b"a" * 3000)
    append_batch(file, LARGE_BATCH)
    assert [path.read_bytes() for path in (tmp_path / "deep").iterdir()] == [LARGE_BATCH]


def test_recreates_a_file_that_was_moved_away(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path))
    path = tmp_path / "deep" / "records.jsonl"
    append_batch(file, b"one\n")
    path.rename(path.with_suffix(".old"))
    append_batch(file, b"two\n")
    assert path.read_text() == "two\n"


def test_resent_batch_is_not_written_twice(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path))
    for again in (False, True, True):
        append_batch(file, LARGE_BATCH, again=again)
        append_batch(file, b"one\ntwo\n", again=again)
    append_batch(file, b"three\n", again=True)
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == LARGE_BATCH + b"one\ntwo\nthree\n"


def test_resent_batch_in_a_rotated_file_is_not_rewritten(tmp_path: Path):
    file = RecordFile(record_settings(tmp_path, rotate_bytes=4096, keep=1))
    append_batch(file, b"one" * 1000 + b"\n")
    append_batch(file, b"two" * 1000 + b"\n")
    assert (tmp_path / "deep" / "records.jsonl.1").exists()
    append_batch(file, b"one" * 1000 + b"\n", again=True)
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == b"two" * 1000 + b"\n"


def test_batch_on_a_full_disk_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RecordFile(record_settings(tmp_path))
    append_batch(file, b"whole\n")
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
            append_batch(file, b"broken\n")
    path = tmp_path / "deep" / "records.jsonl"
    assert path.read_text() == "whole\n"
    append_batch(file, b"again\n")
    assert path.read_text() == "whole\nagain\n"


@pytest.mark.parametrize("cut", [0, 10, 300_000])
def test_interrupted_batch_leaves_no_trace(tmp_path: Path, cut: int):
    file = RecordFile(record_settings(tmp_path))
    append_batch(file, b"whole\n")
    with pytest.raises(ConnectionError):
        append_batch(file, LARGE_BATCH, cut=cut)
    append_batch(file, b"again\n")
    assert (tmp_path / "deep" / "records.jsonl").read_text() == "whole\nagain\n"


# ── record feed ────────────────────────────────────────────────────────────────────────────────────────────────────


class FakeEngine:
    """Sends batches to the feed as the engine does."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_batch(self, lines: bytes, *, again: bool = False) -> bytes:
        self.socket.sendall(struct.pack("<QB", len(lines), again) + lines)
        return self.socket.recv(1)


@contextlib.contextmanager
def running_feed(folder: Path, settings: Records) -> Iterator[RecordFeed]:
    """Runs a feed on a socket in the folder, with an event loop of its own."""
    feed = RecordFeed(settings)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "s"))
    listener.listen()
    loop = asyncio.new_event_loop()
    close = feed.listen(listener, loop)
    running = threading.Thread(target=loop.run_forever)
    running.start()
    try:
        yield feed
    finally:
        loop.call_soon_threadsafe(close)
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()
        listener.close()


def test_engine_gets_an_ack_once_its_batch_is_written(tmp_path: Path):
    with running_feed(tmp_path, record_settings(tmp_path)) as feed:
        with contextlib.ExitStack() as here:
            engines = [here.enter_context(FakeEngine(tmp_path / "s")) for _ in range(3)]
            for number in range(30):
                line = b'{"id": %d}\n' % number
                assert engines[number % 3].send_batch(line) == b"+"
                assert (tmp_path / "deep" / "records.jsonl").read_bytes().endswith(line)
        assert (feed.written, feed.refused) == (30, 0)


def test_concurrent_batches_do_not_interleave(tmp_path: Path):
    parts = [LARGE_BATCH.replace(b"number", b"part-%d" % number) for number in range(4)]

    def send_part(part: bytes) -> None:
        with FakeEngine(tmp_path / "s") as engine:
            engine.send_batch(part)

    with running_feed(tmp_path, record_settings(tmp_path)):
        threads = [threading.Thread(target=send_part, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    written = (tmp_path / "deep" / "records.jsonl").read_bytes()
    assert len(written) == sum(map(len, parts))
    assert all(part in written for part in parts)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_engine_gets_a_nack_if_the_disk_rejects_the_batch(caplog: pytest.LogCaptureFixture):
    path = Path("/tmp") / f"penstock-feed-{os.getpid()}"
    path.mkdir()
    try:
        with running_feed(path, Records(path="/dev/full/records.jsonl")) as feed, FakeEngine(path / "s") as engine:
            # The first batch is much larger than one read; the protocol must stay in step.
            assert [engine.send_batch(LARGE_BATCH), engine.send_batch(b"{}\n")] == [b"-", b"-"]
            assert (feed.written, feed.refused) == (0, 2)
    finally:
        (path / "s").unlink()
        path.rmdir()
    assert len(caplog.records) == 1


def test_stalled_engine_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STALL_TIMEOUT_SECONDS", 1)
    with (
        running_feed(tmp_path, record_settings(tmp_path)) as feed,
        FakeEngine(tmp_path / "s") as stuck,
        FakeEngine(tmp_path / "s") as other,
    ):
        stuck.socket.sendall(struct.pack("<QB", 1000, 0) + b"half")
        assert other.send_batch(b"whole\n") == b"+"
        assert stuck.socket.recv(1) == b""
        # An idle connection stays open.
        time.sleep(1.2)
        assert other.send_batch(b"more\n") == b"+"
        assert feed.written == 2
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == b"whole\nmore\n"


def test_shutdown_writes_complete_batches_only(tmp_path: Path):
    with contextlib.ExitStack() as engines:
        with running_feed(tmp_path, record_settings(tmp_path)) as feed:
            engine = engines.enter_context(FakeEngine(tmp_path / "s"))
            assert engine.send_batch(b"first\n") == b"+"
            engine.socket.sendall(struct.pack("<QB", 5, 0) + b"last\n")
            wait_for("it is written", lambda: feed.written == 2 or None, 5)
        assert engine.socket.recv(10) == b"+"
        assert engine.socket.recv(10) == b""
    assert (tmp_path / "deep" / "records.jsonl").read_bytes() == b"first\nlast\n"
