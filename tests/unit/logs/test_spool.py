"""Spool reader and writer: torn and damaged segments, replay from a position, and writers that were killed."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from penstock.engine import BudgetSums
from penstock.errors import StartupError
from penstock.logs import spool_format as spool
from penstock.logs import spool_reader as module
from penstock.logs.batch import Position
from penstock.logs.spool_reader import (
    KILLED,
    UNAMENDED,
    BudgetReader,
    RecordReader,
    SpoolEvent,
    SpoolFollower,
    WriterReader,
    delete_segments,
    find_recent_segment,
)
from penstock.logs.spool_writer import NewFrame, SpoolWriter, list_segments, segment_name


def make_id(number: int) -> bytes:
    return uuid.UUID(int=number).bytes


def request_frames(number: int) -> list[NewFrame]:
    name = make_id(number)
    return [
        NewFrame(spool.BEGIN, name, b'{"path":"/v1/chat/completions"}'),
        NewFrame(spool.CLIENT_REQUEST, name, b"question %d" % number),
        NewFrame(spool.UPSTREAM_RESPONSE, name, b"ans"),
        NewFrame(spool.UPSTREAM_RESPONSE, name, b"wer %d" % number, spool.BODY_CUT),
        NewFrame(spool.END, name, b'{"id":%d}' % number),
    ]


def make_reader(folder: Path, done: Position | None = None) -> WriterReader:
    return WriterReader(folder / "edge-1", done, keeps_bodies=True)


def read_all(reader: WriterReader) -> list[SpoolEvent]:
    events: list[SpoolEvent] = []
    while batch := reader.read(1000):
        events += batch
    return events


def payloads(events: list[SpoolEvent]) -> list[bytes]:
    return [event.payload for event in events]


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes readers look for their writer's process at each read."""
    monkeypatch.setattr(module, "GONE_CHECK_SECONDS", 0)


@pytest.fixture
def writer_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every writer look as if its process had ended."""
    monkeypatch.setattr(module, "_is_running", lambda _pid: False)


def test_returns_ends_with_the_bodies_of_their_requests(tmp_path: Path):
    writer = SpoolWriter(str(tmp_path), "edge-1", "node-1")
    # Frames of concurrent requests interleave.
    writer.append(frame for pair in zip(request_frames(1), request_frames(2), strict=True) for frame in pair)
    reader = make_reader(tmp_path)
    events = read_all(reader)
    assert payloads(events) == [b'{"id":1}', b'{"id":2}']
    for number, event in enumerate(events, start=1):
        assert event.request
        assert event.request.flags == spool.BODY_CUT
        bodies = reader.load_bodies(event.request)
        assert bodies == {2: b"question %d" % number, 4: b"answer %d" % number}
    assert reader.header.node == "node-1"
    assert (reader.open, read_all(reader)) == ({}, [])


SECRET_TOOL = b'"tools":[{"type":"mcp","authorization":"C-1","headers":{"X-Key":"C-2"},"server_url":"https://u:C-3@h"}]'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'data: {%s}\n\ndata: {"response":{%s,"id":"cut' % (SECRET_TOOL, SECRET_TOOL), b'"id":"cut'),
        (b'{%s,"input":"cut' % SECRET_TOOL, b'"input":"cut'),
    ],
)
def test_secrets_are_masked_in_streams_and_cut_bodies(tmp_path: Path, body: bytes, expected: bytes):
    name = make_id(1)
    parts = [NewFrame(spool.CLIENT_RESPONSE, name, body[at : at + 16]) for at in range(0, len(body), 16)]
    writer = SpoolWriter(str(tmp_path), "edge-1", "node-1")
    writer.append([NewFrame(spool.BEGIN, name, b"{}"), *parts, NewFrame(spool.END, name, b"{}")])
    reader = make_reader(tmp_path)
    request = read_all(reader)[0].request
    assert request
    stored = reader.load_bodies(request)[spool.CLIENT_RESPONSE]
    assert b"C-" not in stored
    assert expected in stored
    reader.close()
    writer.close()


def test_segments_are_private_and_rotate_by_size(tmp_path: Path):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n", segment_bytes=400)
    for number in range(6):
        writer.append(request_frames(number))
    folder = tmp_path / "edge-1"
    numbers = list_segments(folder)
    assert numbers == list(range(numbers[0], numbers[0] + 6))
    modes = [oct(path.stat().st_mode & 0o777) for path in (folder, folder / segment_name(numbers[0]))]
    assert modes == ["0o700", "0o600"]
    assert payloads(read_all(make_reader(tmp_path))) == [b'{"id":%d}' % number for number in range(6)]


def test_events_before_a_failed_read_are_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n", segment_bytes=400)
    for number in range(4):
        writer.append(request_frames(number))
    third, open_file = segment_name(list_segments(tmp_path / "edge-1")[2]), os.open

    def fail(path: Path, flags: int) -> int:
        if path.name == third:
            raise OSError(errno.EIO, "Input/output error")
        return open_file(path, flags)

    reader = make_reader(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert payloads(reader.read(10)) == [b'{"id":0}', b'{"id":1}']
        with pytest.raises(OSError, match="Input/output"):
            reader.read(10)
    assert payloads(reader.read(10)) == [b'{"id":2}', b'{"id":3}']


def test_second_writer_of_a_folder_is_refused(tmp_path: Path):
    first, second = (SpoolWriter(str(tmp_path), "edge-1", "n") for _ in range(2))
    first.append(request_frames(1))
    with pytest.raises(StartupError, match="belongs to another process"):
        second.append(request_frames(2))
    first.close()
    second.append(request_frames(2))
    assert len(list_segments(tmp_path / "edge-1")) == 2


def test_failed_append_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    writer.append(request_frames(1))
    real, left = os.write, [30]

    def fill_disk(file: int, data: memoryview) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        return real(file, data[: left.pop()])

    monkeypatch.setattr(os, "write", fill_disk)
    with pytest.raises(OSError, match="No space"):
        writer.append(request_frames(2))
    monkeypatch.setattr(os, "write", real)
    writer.append(request_frames(3))
    assert payloads(read_all(make_reader(tmp_path))) == [b'{"id":1}', b'{"id":3}']


def cut_segments(tmp_path: Path) -> tuple[bytes, list[int]]:
    """Returns a complete segment of three requests, and the offset behind the last frame of each."""
    writer = SpoolWriter(str(tmp_path / "whole"), "edge-1", "n")
    ends = []
    path = tmp_path / "absent"
    for number in range(3):
        writer.append(request_frames(number))
        (path,) = (tmp_path / "whole" / "edge-1").glob("*.seg")
        ends.append(path.stat().st_size)
    return path.read_bytes(), ends


@pytest.mark.usefixtures("writer_exited")
def test_segment_torn_at_any_byte_yields_exactly_what_is_complete(tmp_path: Path):
    whole, ends = cut_segments(tmp_path)
    for length in range(len(whole) + 1):
        folder = tmp_path / str(length) / "edge-1"
        folder.mkdir(parents=True)
        (folder / segment_name(1)).write_bytes(whole[:length])
        events = read_all(WriterReader(folder, None, keeps_bodies=True))
        complete = sum(end <= length for end in ends)
        assert payloads([event for event in events if event.kind == spool.END]) == [
            b'{"id":%d}' % number for number in range(complete)
        ], length
        # A request that has begun and not ended counts as killed. Here that is at most one request.
        assert sum(event.kind == KILLED for event in events) <= 1


def test_torn_frame_of_a_live_writer_is_awaited(tmp_path: Path):
    whole, ends = cut_segments(tmp_path)
    folder = tmp_path / "edge-1"
    folder.mkdir()
    path = folder / segment_name(1)
    reader = make_reader(tmp_path)
    events = []
    with path.open("wb", buffering=0) as file, (folder / spool.LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for at in range(0, len(whole), 7):
            file.write(whole[at : at + 7])
            events += reader.read(1000)
    assert payloads(events) == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
    assert reader.position == Position(1, ends[-1])


@pytest.mark.usefixtures("writer_exited")
def test_every_flipped_bit_loses_at_most_that_frame_or_the_rest(tmp_path: Path):
    whole, _ = cut_segments(tmp_path)
    for at in range(len(whole)):
        folder = tmp_path / str(at) / "edge-1"
        folder.mkdir(parents=True)
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        (folder / segment_name(1)).write_bytes(damaged)
        (folder / segment_name(2)).write_bytes(whole)
        reader = WriterReader(folder, None, keeps_bodies=True)
        ends = [event.payload for event in read_all(reader) if event.kind == spool.END]
        # The next segment is always read, and nothing damaged is returned.
        assert ends[-3:] == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
        assert set(ends) <= {b'{"id":0}', b'{"id":1}', b'{"id":2}'}


def test_damaged_frame_in_a_live_segment_is_skipped_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    writer.append(request_frames(1))
    (path,) = (tmp_path / "edge-1").glob("*.seg")
    before = path.stat().st_size
    writer.append(request_frames(2)[-1:])
    writer.append(request_frames(3))
    data = bytearray(path.read_bytes())
    data[before + 30] ^= 1
    path.write_bytes(data)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reader = make_reader(tmp_path)
    assert payloads(read_all(reader)) == [b'{"id":1}']
    now[0] += module.BROKEN_GRACE_SECONDS / 2
    assert read_all(reader) == []
    now[0] += module.BROKEN_GRACE_SECONDS
    assert payloads(read_all(reader)) == [b'{"id":3}']
    assert reader.broken_segments == 1
    assert "is damaged" in caplog.text


def test_replay_from_any_position_repeats_nothing_and_keeps_bodies(tmp_path: Path):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n", segment_bytes=900)
    for number in range(0, 12, 2):
        writer.append(frame for pair in zip(*map(request_frames, (number, number + 1)), strict=True) for frame in pair)
    reader, all_events, positions = make_reader(tmp_path), [], []
    while batch := reader.read(1):
        all_events += batch
        positions.append((reader.position, len(all_events)))
    for position, count in positions:
        again = make_reader(tmp_path, position)
        events = read_all(again)
        assert payloads(all_events[:count]) + payloads(events) == payloads(all_events)
        assert all(event.request and len(again.load_bodies(event.request)) == 2 for event in events)


def fork_killed_writer(spool_folder: Path, numbers: list[int]) -> None:
    """Writes begins and bodies in another process, which then exits without an end."""
    code = (
        "import sys, uuid; from penstock.logs.spool_writer import *; "
        "w = SpoolWriter(sys.argv[1], 'edge-1', 'n'); "
        '[w.append([NewFrame(1, uuid.UUID(int=int(n)).bytes, b\'{"path":"/x"}\'), '
        "NewFrame(2, uuid.UUID(int=int(n)).bytes, b'body')]) for n in sys.argv[2:]]"
    )
    subprocess.run([sys.executable, "-c", code, spool_folder, *map(str, numbers)], check=True)


@pytest.mark.parametrize("restarts_first", [False, True])
def test_open_requests_of_a_killed_writer_end_exactly_once(tmp_path: Path, restarts_first: bool):
    fork_killed_writer(tmp_path, [1, 2])
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    if restarts_first:
        writer.append(request_frames(9)[:-1])
    reader = make_reader(tmp_path)
    events = read_all(reader)
    assert [(event.kind, event.id) for event in events] == [(KILLED, make_id(1)), (KILLED, make_id(2))]
    assert events[0].request
    assert reader.load_bodies(events[0].request) == {2: b"body"}
    saved = reader.position
    again = make_reader(tmp_path, saved)
    assert read_all(again) == []
    writer.append(request_frames(9)[-1:] if restarts_first else request_frames(9))
    assert payloads(read_all(again)) == [b'{"id":9}']
    assert payloads(read_all(make_reader(tmp_path, saved))) == [b'{"id":9}']
    assert len(payloads(read_all(make_reader(tmp_path)))) == 3


def test_reused_process_id_is_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    writer.append(request_frames(1)[:1])
    reader = make_reader(tmp_path)
    assert read_all(reader) == []
    # The process with this id started at another time.
    monkeypatch.setattr(module, "read_process_start", lambda _pid: 1)
    assert [event.kind for event in read_all(reader)] == [KILLED]


def test_only_the_lock_tells_of_a_process_without_a_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.logs.spool_writer.read_process_start", lambda _pid: None)
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    writer.append(request_frames(1)[:1])
    reader = make_reader(tmp_path)
    assert read_all(reader) == []
    writer.close()
    assert [event.kind for event in read_all(reader)] == [KILLED]


@pytest.mark.parametrize("step", [-86_400, -3, 3, 86_400])
def test_steps_of_the_clock_do_not_end_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    writer.append(request_frames(1)[:1])
    reader = make_reader(tmp_path)
    assert read_all(reader) == []
    set_time = time.time() + step
    monkeypatch.setattr(time, "time", lambda: set_time)
    assert read_all(reader) == []
    writer.append(request_frames(1)[1:])
    assert [event.kind for event in read_all(reader)] == [spool.END]


def test_consumed_segments_are_deleted_and_numbers_are_not_used_again(tmp_path: Path):
    fork_killed_writer(tmp_path, [1])
    follower = SpoolFollower(str(tmp_path), {}, WriterReader)
    (reader,) = follower.find_writers()
    assert len(reader.read(10)) == 1
    assert follower.first_needed_segment("edge-1") == 0
    follower.saved["edge-1"] = reader.position
    (first,) = list_segments(tmp_path / "edge-1")
    assert delete_segments(tmp_path / "edge-1", follower.first_needed_segment("edge-1")) > 0
    assert list_segments(tmp_path / "edge-1") == []
    SpoolWriter(str(tmp_path), "edge-1", "n").append(request_frames(5))
    (second,) = list_segments(tmp_path / "edge-1")
    assert second > first
    restarted = SpoolFollower(str(tmp_path), follower.saved, WriterReader)
    (again,) = restarted.find_writers()
    assert payloads(again.read(10)) == payloads(reader.read(10)) == [b'{"id":5}']
    assert delete_segments(tmp_path / "edge-1", restarted.first_needed_segment("edge-1")) == 0
    assert list_segments(tmp_path / "edge-1") == [second]


def test_open_request_keeps_its_segment_until_it_is_too_old(tmp_path: Path):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n", segment_bytes=200)
    writer.append(request_frames(1)[:2])
    for number in range(10, 10 + module.MAX_HELD_SEGMENTS + 2):
        writer.append(request_frames(number))
    reader = make_reader(tmp_path)
    read_all(reader)
    assert reader.first_needed_segment == list_segments(tmp_path / "edge-1")[0]
    reader.release_old_bodies()
    assert (reader.first_needed_segment, reader.dropped_bodies) == (list_segments(tmp_path / "edge-1")[-1], 1)
    writer.append(request_frames(1)[-1:])
    (event,) = read_all(reader)
    assert event.request
    assert (event.request.flags, event.request.bodies) == (spool.BODIES_DROPPED, [])


def test_replaced_spool_is_read_from_its_start(tmp_path: Path):
    SpoolWriter(str(tmp_path), "edge-1", "n").append(request_frames(1))
    for stale in (Position(10**12, 10), Position(list_segments(tmp_path / "edge-1")[0], 10_000_000)):
        assert payloads(read_all(make_reader(tmp_path, stale))) == [b'{"id":1}']


def test_writer_finds_records_that_it_wrote_before(tmp_path: Path):
    first = SpoolWriter(str(tmp_path), "control", "n")
    first.append(request_frames(1))
    first.close()
    second = SpoolWriter(str(tmp_path), "control", "n")
    assert (second.contains(make_id(1)), second.contains(make_id(2))) == (True, False)


def test_durable_writer_syncs_new_folders_and_each_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    SpoolWriter(str(tmp_path / "spool"), "edge-1", "n").append(request_frames(1))
    assert synced == []
    writer = SpoolWriter(str(tmp_path / "spool"), "edge-2", "n", is_durable=True)
    for _ in range(2):
        writer.append(request_frames(1))
    (segment,) = writer.folder.glob("*.seg")
    assert synced[:3] == ["edge-2", "spool", tmp_path.name]
    assert synced[4:] == [segment.name] * 2


def test_last_segment_and_those_written_to_lately_are_recent(tmp_path: Path):
    assert find_recent_segment(tmp_path, 0) == float("inf")
    for number in (100, 200, 300):
        (tmp_path / segment_name(number)).touch()
    # A segment was written to until the next one began.
    segments = {since: find_recent_segment(tmp_path, since) for since in (50, 200, 201, 300, 301, 10**9)}
    assert segments == {50: 100, 200: 100, 201: 200, 300: 200, 301: 300, 10**9: 300}


def mixed_frames() -> list[NewFrame]:
    """Frames of requests of all kinds: plain, with bodies, amended, rejected, with feedback, and still open. All records
    count for a budget.
    """
    budgets = b'"total_units":3,"limits":{"budgets":[{"id":"b","group":"g","period_start":1,"type":"tokens"}]}'

    def frame(kind: int, number: int, more: bytes = b"", flags: int = 0) -> NewFrame:
        return NewFrame(kind, make_id(number), b'{"n":%d,%b%b}' % (number, budgets, more), flags)

    return [
        *(frame(kind, 1) for kind in (spool.BEGIN, spool.END)),
        *(frame(spool.BEGIN, number) for number in (2, 3, 4, 5, 6)),
        frame(spool.END, 3, flags=spool.AMENDMENT_FOLLOWS),
        NewFrame(spool.CLIENT_REQUEST, make_id(2), b"question"),
        frame(spool.AMEND, 3),
        *(frame(spool.END, number) for number in (2, 4)),
        frame(spool.END, 5, b',"hook_results":{"feedback":{"value":1}}'),
        *(frame(kind, 7, flags=spool.REFUSED) for kind in (spool.BEGIN, spool.END)),
        *(frame(kind, 8) for kind in (spool.BEGIN, spool.END)),
    ]


def test_record_without_its_amendment_is_reported_when_the_writer_exited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = SpoolWriter(str(tmp_path), "edge-1", "n")
    frames = [request_frames(number) for number in (1, 2)]
    writer.append(frame for request in frames for frame in [*request[:-1], request[-1]._replace(flags=8)])
    reader = make_reader(tmp_path)
    assert [event.kind for event in read_all(reader)] == [spool.END, spool.END]
    writer.append([NewFrame(spool.AMEND, make_id(2), b"{}")])
    # Only the segments of a record that waits for its amendment are needed.
    assert reader.first_needed_segment == list_segments(tmp_path / "edge-1")[0]
    position = reader.position
    monkeypatch.setattr(module, "_is_running", lambda _pid: False)
    # A restarted process finds out, too, from the frames before its position.
    for again in (reader, make_reader(tmp_path, position)):
        events = read_all(again)
        assert [(event.kind, event.id) for event in events] == [(spool.AMEND, make_id(2)), (UNAMENDED, make_id(1))]
        request = events[1].request
        assert request
        assert again.load_bodies(request) == {2: b"question 1", 4: b"answer 1"}
        assert events[1].payload == b'{"id":1}'
        assert read_all(make_reader(tmp_path, again.position)) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.usefixtures("writer_exited")
def test_records_are_read_once_in_plain_form_or_as_events(tmp_path: Path, limit: int):
    SpoolWriter(str(tmp_path), "edge-1", "n").append(mixed_frames())
    expected = sorted((event.id, event.kind, event.payload) for event in read_all(make_reader(tmp_path)))
    assert len(expected) == 9
    records: list[tuple[bytes, int, bytes]] = []
    position, plain_count = None, 0
    for _ in range(40):
        # Each read is that of a restarted process.
        reader = RecordReader(tmp_path / "edge-1", position)
        records += [(event.id, event.kind, event.payload) for event in reader.read(limit)]
        for ids, lines in reader.take_plain():
            assert len(ids) == 16 * len(lines)
            plain_count += len(lines)
            records += [(ids[16 * at : 16 * at + 16], spool.END, line) for at, line in enumerate(lines)]
        position = reader.position
    assert sorted(records) == expected
    assert limit < 100 or plain_count == 3


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.usefixtures("writer_exited")
def test_usage_of_each_record_is_summed_once(tmp_path: Path, limit: int):
    SpoolWriter(str(tmp_path), "edge-1", "n").append(mixed_frames())
    requests = tokens = 0
    position = None
    for _ in range(40):
        sums = BudgetSums()
        reader = BudgetReader(tmp_path / "edge-1", position, sums)
        # A restarted process reads some frames again that the last one has added, but does not add them again.
        while True:
            killed = reader.read(limit)
            for event in killed:
                sums.add_record(event.payload, event.flags)
            if killed or reader.position != position or not reader.read_count:
                break
        for row in sums.take():
            assert row[:4] == ("b", "g", 1, "tokens")
            requests, tokens = requests + row[4], tokens + row[5]
        position = reader.position
    # Seven records, the request that was killed, and an amendment. The record that it amends has no usage.
    assert (requests, tokens) == (8, 3 * 8)
