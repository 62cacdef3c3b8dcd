"""Record file as a consumer of the spool: once per record across restarts, rotations, full disks and late usage."""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from penstock.logs import spool_format as spool
from penstock.logs import spool_reader
from penstock.logs.record_file import RecordFileConsumer
from penstock.logs.record_lines import AMENDMENT_WAIT_SECONDS
from penstock.logs.spool_writer import NewFrame, SpoolWriter
from penstock.settings import Records

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class KilledError(BaseException):
    """Stands for the end of the process."""


def make_consumer(folder: Path, **options: Any) -> RecordFileConsumer:
    return RecordFileConsumer(Records(path=str(folder / "records.jsonl"), **options), str(folder / "spool"))


def frames_of(number: int, *, flags: int = 0, **fields: Any) -> list[NewFrame]:
    name = uuid.UUID(int=number)
    record = {"id": str(name), "response_status_code": 200, "total_units": 1, **fields}
    return [
        NewFrame(spool.BEGIN, name.bytes, b"{}"),
        NewFrame(spool.END, name.bytes, json.dumps(record).encode(), flags),
    ]


def early_end(number: int) -> list[NewFrame]:
    name = uuid.UUID(int=number)
    record = {"id": str(name), "response_status_code": 200}
    return [NewFrame(spool.END, name.bytes, json.dumps(record).encode(), spool.AMENDMENT_FOLLOWS)]


def amendment(number: int, **fields: Any) -> NewFrame:
    return NewFrame(spool.AMEND, uuid.UUID(int=number).bytes, json.dumps(fields).encode())


def read_lines(folder: Path, name: str = "records.jsonl") -> list[dict[str, Any]]:
    paths = [folder / name, *(folder / f"{name}.{number}" for number in range(1, 100))]
    lines = [path.read_bytes().splitlines() for path in reversed(paths) if path.exists()]
    return [json.loads(line) for group in lines for line in group]


def ids(lines: list[dict[str, Any]]) -> list[int]:
    return [uuid.UUID(line["id"]).int for line in lines]


class Killer:
    """Ends the process during one of its system calls. If that is a write, the file contains a part of its bytes."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._real = {name: getattr(os, name) for name in ("write", "replace", "open")}

    def install(self, patches: pytest.MonkeyPatch) -> None:
        for name in self._real:
            patches.setattr(os, name, self._wrap(name))

    def _wrap(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                if name == "write":
                    self._real["write"](arguments[0], bytes(arguments[1])[:10])
                raise KilledError
            return self._real[name](*arguments, **options)

        return call


def test_kill_at_any_write_repeats_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kills = 0
    for at in range(1, 60):
        folder, killer = tmp_path / str(at), Killer(at)
        writer = SpoolWriter(str(folder / "spool"), "edge-1", "n")
        consumer = make_consumer(folder, rotate_bytes=4096, max_rotated_files=50)
        for number in range(0, 60, 4):
            writer.append(
                frame for index in range(number, number + 4) for frame in frames_of(index, metadata="x" * 200)
            )
            try:
                with monkeypatch.context() as patches:
                    killer.install(patches)
                    consumer.run_once()
            except KilledError:
                kills += 1
                consumer = make_consumer(folder, rotate_bytes=4096, max_rotated_files=50)
        consumer.run_once()
        assert ids(read_lines(folder)) == list(range(60)), at
    assert kills > 50


def test_usage_of_a_killed_writer_is_an_amendment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    (end,) = early_end(1)
    payload = json.dumps({**json.loads(end.payload), "pending_usage": {"total_units": 7}}).encode()
    writer.append([end._replace(payload=payload)])
    consumer.run_once(is_final=True)
    monkeypatch.setattr(spool_reader, "GONE_CHECK_SECONDS", 0)
    monkeypatch.setattr(spool_reader, "_is_running", lambda _pid: False)
    consumer.run_once(is_final=True)
    record, amended = read_lines(tmp_path)
    assert record["pending_usage"] == {"total_units": 7}
    assert amended == {"id": record["id"], "is_amendment": True, "total_units": 7}


def test_usage_that_follows_is_part_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    writer.append([*early_end(1), *frames_of(2)])
    consumer.run_once()
    assert read_lines(tmp_path) == []
    # A restart does not lose what was read but not written.
    consumer = make_consumer(tmp_path)
    consumer.run_once()
    writer.append([amendment(1, total_units=9)])
    consumer.run_once()
    assert [(line["id"], line["total_units"]) for line in read_lines(tmp_path)] == [
        (str(uuid.UUID(int=1)), 9),
        (str(uuid.UUID(int=2)), 1),
    ]
    assert ids(read_lines(tmp_path)) == [1, 2]
    make_consumer(tmp_path).run_once(is_final=True)
    assert ids(read_lines(tmp_path)) == [1, 2]


def test_record_is_written_without_usage_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    name = uuid.UUID(int=1)
    writer.append(early_end(1))
    consumer.run_once()
    assert read_lines(tmp_path) == []
    now[0] += AMENDMENT_WAIT_SECONDS
    consumer.run_once()
    assert ids(read_lines(tmp_path)) == [1]
    # Usage that is settled later is a line of its own, once.
    writer.append([amendment(1, total_units=9)])
    consumer.run_once()
    assert read_lines(tmp_path)[1:] == [{"id": str(name), "is_amendment": True, "total_units": 9}]
    (tmp_path / "records.jsonl.position").unlink()
    make_consumer(tmp_path)._amend("edge-1", next(iter(make_events(tmp_path))), {"total_units": 9}, now[0])
    assert len(read_lines(tmp_path)) == 2


def test_record_without_usage_is_written_at_once_unless_an_amendment_follows(tmp_path: Path):
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    name = uuid.UUID(int=1)
    line = json.dumps({"id": str(name), "response_status_code": 200}).encode()
    writer.append([NewFrame(spool.END, name.bytes, line)])
    consumer.run_once()
    assert ids(read_lines(tmp_path)) == [1]


def make_events(folder: Path) -> list[Any]:
    consumer = make_consumer(folder)
    (reader,) = consumer.follower.find_writers()
    return [event for event in reader.read(100) if event.kind == spool.AMEND]


def test_refused_records_have_a_file_of_their_own(tmp_path: Path):
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    writer.append([*frames_of(1), *frames_of(2, flags=spool.REFUSED)])
    consumer.run_once()
    assert ids(read_lines(tmp_path)) == [1]
    assert ids(read_lines(tmp_path, "records-refused.jsonl")) == [2]


def test_full_disk_is_reported_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    writer.append(frames_of(1))
    consumer.run_once()
    writer.append([*frames_of(2), *frames_of(3, flags=spool.REFUSED)])
    real = os.write

    def fail(file: int, data: Any) -> int:
        if "refused" in os.readlink(f"/proc/self/fd/{file}"):  # noqa: PTH115 - no path of a file
            raise OSError(28, "No space left on device")
        return real(file, data)

    with monkeypatch.context() as patches:
        patches.setattr(os, "write", fail)
        consumer.run_once()
    assert "the record file cannot be written: No space left on device" in caplog.text
    # Both files are as they were before the batch.
    assert ids(read_lines(tmp_path)) == [1]
    consumer._failing_until = 0.001
    consumer.run_once()
    assert ids(read_lines(tmp_path)) == [1, 2]
    assert ids(read_lines(tmp_path, "records-refused.jsonl")) == [3]
    assert consumer.failed == 1


def test_lines_of_other_programs_are_not_deleted(tmp_path: Path):
    writer, consumer = SpoolWriter(str(tmp_path / "spool"), "edge-1", "n"), make_consumer(tmp_path)
    writer.append(frames_of(1))
    consumer.run_once()
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"id":"00000000-0000-0000-0000-000000000063"}\n')
    writer.append(frames_of(2))
    consumer.run_once()
    make_consumer(tmp_path)
    assert ids(read_lines(tmp_path)) == [1, 99, 2]
