"""Packs of bodies: locations, replay, sizes, uploads with the breaker, and retention."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from penstock.errors import NotFoundError, UnavailableError
from penstock.logs import packs as module
from penstock.logs.batch import BodyLocation, Position
from penstock.logs.breaker import BreakerState, StorageBreaker
from penstock.logs.messages import DAMAGED
from penstock.logs.packs import PackedRecord, PackStore, PackWriter

if TYPE_CHECKING:
    from pathlib import Path

BODIES = {2: b'{"question": 1}', 4: b"\xff\x00 binary", 5: b""}
NAMED_BODIES = {"client_request": BODIES[2], "upstream_response": BODIES[4], "client_response": b""}


def make_record(number: int = 1, workspace: str = "w-1", created_at: str = "2026-11-26T09:15:00.123Z") -> PackedRecord:
    return PackedRecord(f"r-{number}", "o-1", workspace, "red", created_at)


class FakeBucket:
    """Bucket in memory that fails while `failure` is set."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.failure = ""

    async def put_bytes(self, name: str, content: bytes) -> None:
        self.calls.append(f"put {name}")
        if self.failure:
            raise UnavailableError(self.failure)
        self.content[name] = content

    async def read_range(self, name: str, offset: int, length: int) -> bytes:
        if name not in self.content:
            raise NotFoundError(name)
        return self.content[name][offset : offset + length]

    async def list_folders(self, start: str) -> list[str]:
        below = [name[len(start) :] for name in self.content if name.startswith(start)]
        return sorted({name.split("/")[0] for name in below if "/" in name})

    async def list_names(self, start: str, *, is_direct: bool = False) -> list[str]:
        names = sorted(name for name in self.content if name.startswith(start))
        return [name for name in names if not is_direct or "/" not in name[len(start) :]][:3]

    async def delete(self, *names: str) -> None:
        for name in names:
            del self.content[name]

    async def delete_below(self, folder: str) -> int:
        names = [name for name in self.content if name.startswith(f"{folder}/")]
        for name in names:
            del self.content[name]
        return len(names)

    async def probe(self) -> None:
        self.calls.append("probe")
        if self.failure:
            raise UnavailableError(self.failure)


class SlowBucket(FakeBucket):
    """Bucket that stores a blob when the test sets `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.free = asyncio.Event(), asyncio.Event()

    async def put_bytes(self, name: str, content: bytes) -> None:
        self.started.set()
        await self.free.wait()
        await super().put_bytes(name, content)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_store(
    folder: Path, bucket: FakeBucket | None = None, layout: str = "packs", limit: int = 10**9
) -> tuple[PackWriter, PackStore, Clock]:
    clock = Clock()
    writer = PackWriter(str(folder), layout, is_remote=bucket is not None, limit_bytes=limit, clock=clock)
    return writer, PackStore(writer, bucket, StorageBreaker(5, 60, clock)), clock


def strip_process(key: str) -> str:
    """Removes the part of a key that each process chooses anew."""
    return re.sub(r"-[0-9a-f]{8}\.pack$", ".pack", key)


def add(writer: PackWriter, number: int, workspace: str = "w-1", **fields: str) -> BodyLocation:
    location = writer.add(make_record(number, workspace, **fields), BODIES, "node", "edge-1", Position(7, number))
    assert location
    return location


@pytest.mark.parametrize("layout", ["packs", "v1", "v2"])
def test_bodies_are_read_back_from_their_locations(tmp_path: Path, layout: str):
    writer, store, _ = make_store(tmp_path, layout=layout)
    locations = [add(writer, number) for number in range(3)]
    writer.flush()
    writer.commit()
    for location in locations:
        assert asyncio.run(store.read(location)) == NAMED_BODIES
    expected = {
        "packs": "packs/2026-11-26/09/o-1/w-1/node-edge-1-7-0.pack",
        "v1": "30/o-1/r-0.json",
        "v2": "30/o-1/red/2026/11/26/09/r-0.json",
    }
    assert strip_process(locations[0].key) == expected[layout]
    assert (tmp_path / locations[0].key).stat().st_mode & 0o777 == 0o600


def test_packs_are_separate_by_workspace_and_hour(tmp_path: Path):
    writer, _, _ = make_store(tmp_path)
    keys = [
        add(writer, 1).key,
        add(writer, 2, "w-2").key,
        add(writer, 3, created_at="2026-11-26T10:00:00Z").key,
        add(writer, 4).key,
    ]
    assert len(set(keys)) == 3
    assert keys[3] == keys[0]


def test_names_cannot_leave_the_folder(tmp_path: Path):
    writer, _, _ = make_store(tmp_path)
    location = writer.add(PackedRecord("../x", "../../o", "..", None, "bad"), BODIES, "n/../..", "e", Position(1, 1))
    assert location
    assert strip_process(location.key) == "packs/1970-01-01/00/.._.._o/_/n_.._..-e-1-1.pack"


def test_pack_is_closed_at_its_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PACK_BYTES", 5000)
    writer, store, _ = make_store(tmp_path, FakeBucket())
    bodies = [{2: os.urandom(2000)} for _ in range(5)]
    locations = [writer.add(make_record(), body, "n", "e", Position(1, at)) for at, body in enumerate(bodies)]
    ends = [strip_process(location.key)[-8:] if location else "" for location in locations]
    assert ends == ["1-0.pack", "1-0.pack", "1-2.pack", "1-2.pack", "1-4.pack"]
    writer.flush()
    writer.commit()
    assert [strip_process(file.key)[-8:] for file in writer.sealed] == ["1-0.pack", "1-2.pack"]
    for location, body in zip(locations, bodies, strict=True):
        assert location
        assert asyncio.run(store.read(location)) == {"client_request": body[2]}


def test_replay_after_a_crash_changes_no_earlier_pack(tmp_path: Path):
    _, store, _ = make_store(tmp_path)
    locations: list[BodyLocation] = []
    for _ in range(2):
        # The first run ends before its records were inserted, or before their position was.
        writer, _, _ = make_store(tmp_path)
        locations += [add(writer, number) for number in range(20)]
        writer.flush()
    assert len({(location.key, location.offset) for location in locations}) == 40
    for location in locations:
        assert asyncio.run(store.read(location)) == NAMED_BODIES


def test_replay_during_an_upload_loses_no_body(tmp_path: Path):
    first, _, _ = make_store(tmp_path, FakeBucket())
    old = [add(first, number) for number in range(3)]
    first.flush()
    bucket = SlowBucket()
    writer, store, _ = make_store(tmp_path, bucket)

    async def scenario() -> None:
        upload = asyncio.create_task(store.upload_next())
        await bucket.started.wait()
        new = [add(writer, number) for number in range(2)]
        writer.flush()
        bucket.free.set()
        assert await upload
        new += [add(writer, number) for number in range(2, 9)]
        writer.flush()
        writer.commit(is_final=True)
        for _ in range(2):
            for location in (*old, *new):
                assert await store.read(location) == NAMED_BODIES
            await store.upload_rest(5)

    asyncio.run(scenario())
    assert (len(bucket.content), list(tmp_path.rglob("*.pack")), writer.waiting_bytes) == (2, [], 0)


@pytest.mark.parametrize("layout", ["packs", "v1"])
def test_bodies_that_cannot_be_decoded_are_damaged(tmp_path: Path, layout: str):
    writer, store, _ = make_store(tmp_path, layout=layout)
    locations = [add(writer, number) for number in range(2)]
    writer.flush()
    for location in locations:
        path = tmp_path / location.key
        for content in (bytes(path.stat().st_size), b"[]", b""):
            path.write_bytes(content)
            assert asyncio.run(store.read(location)) == {DAMAGED: b""}


def test_uploads_complete_packs_and_deletes_the_local_files(tmp_path: Path):
    bucket = FakeBucket()
    writer, store, clock = make_store(tmp_path, bucket)
    location = add(writer, 1)
    writer.flush()
    writer.commit()

    async def scenario() -> None:
        assert not await store.upload_next()
        # Until then the bodies are read from the local file.
        assert await store.read(location) == NAMED_BODIES
        clock.now += module.MAX_PACK_AGE_SECONDS
        writer.commit()
        assert await store.upload_next()
        assert await store.read(location) == NAMED_BODIES
        assert not await store.upload_next()

    asyncio.run(scenario())
    assert (list(bucket.content), list(tmp_path.rglob("*.pack")), writer.waiting_bytes) == ([location.key], [], 0)
    assert add(writer, 2).key != location.key


def test_packs_of_an_earlier_process_are_uploaded(tmp_path: Path):
    writer, _, _ = make_store(tmp_path, FakeBucket())
    location = add(writer, 1)
    writer.flush()
    bucket = FakeBucket()
    again, store, _ = make_store(tmp_path, bucket)
    assert (again.sealed, again.waiting_bytes) == ([(location.key, location.length)], location.length)
    asyncio.run(store.upload_rest(5))
    assert list(bucket.content) == [location.key]


def test_breaker_stops_uploads_and_one_probe_resumes_them(tmp_path: Path):
    bucket = FakeBucket()
    writer, store, clock = make_store(tmp_path, bucket)
    location = add(writer, 1)
    writer.flush()
    writer.commit(is_final=True)
    bucket.failure = "down"

    async def scenario() -> None:
        for _ in range(7):
            assert not await store.upload_next()
        assert bucket.calls == [f"put {location.key}"] * 5
        bucket.calls.clear()
        clock.now += 60
        for _ in range(3):
            assert not await store.upload_next()
        # One failed probe, then the same backoff again.
        assert (bucket.calls, store.breaker.state) == (["probe"], BreakerState.OPEN)
        bucket.failure = ""
        clock.now += 59
        assert not await store.upload_next()
        clock.now += 1
        assert await store.upload_next()
        assert bucket.calls == ["probe", "probe", f"put {location.key}"]

    asyncio.run(scenario())
    assert (store.breaker.state, store.failed_uploads) == (BreakerState.CLOSED, 6)


def test_bodies_beyond_the_bound_are_dropped_and_counted(tmp_path: Path):
    writer, _, _ = make_store(tmp_path, FakeBucket(), limit=1)
    assert add(writer, 1)
    assert writer.add(make_record(2), BODIES, "n", "e", Position(1, 2)) is None
    assert writer.dropped == 1


@pytest.mark.parametrize("is_remote", [False, True])
def test_retention_deletes_days_before(tmp_path: Path, is_remote: bool):
    bucket = FakeBucket() if is_remote else None
    writer, store, _ = make_store(tmp_path, bucket)
    old = add(writer, 1, created_at="2026-10-01T00:00:00Z")
    new = add(writer, 2, created_at="2026-10-02T00:00:00Z")
    writer.flush()
    writer.commit(is_final=True)

    async def scenario() -> None:
        await store.upload_rest(5)
        assert await store.delete_before(dt.date(2026, 10, 2)) == 1
        with pytest.raises(NotFoundError):
            await store.read(old)
        assert await store.read(new) == NAMED_BODIES

    asyncio.run(scenario())


@pytest.mark.parametrize("layout", ["packs", "v2"])
def test_retention_deletes_other_files_if_one_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str
):
    writer, store, _ = make_store(tmp_path, layout=layout)
    keys = [add(writer, number, f"w-{number}", created_at="2026-10-01T00:00:00Z").key for number in (1, 2, 3)]
    writer.flush()
    writer.commit(is_final=True)
    for key in keys:
        os.utime(tmp_path / key, (0, 0))
    unlink = type(tmp_path).unlink

    def refuse_unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path == tmp_path / keys[0]:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(type(tmp_path), "unlink", refuse_unlink)
    assert asyncio.run(store.delete_before(dt.date(2026, 10, 2))) == 2
    assert [(tmp_path / key).exists() for key in keys] == [True, False, False]
    assert (
        f"1 files with old bodies cannot be deleted, for example: [Errno 13] Permission denied: '{tmp_path}"
        in caplog.text
    )


def test_retention_keeps_open_packs_and_counts_deleted_ones_as_done(tmp_path: Path):
    bucket = FakeBucket()
    writer, store, clock = make_store(tmp_path, bucket)
    old = add(writer, 1, created_at="2026-10-01T00:00:00Z")
    writer.flush()
    later = dt.date(2026, 11, 1)

    async def scenario() -> None:
        # A client sends another record with this old time.
        assert await store.delete_before(later) == 0
        assert add(writer, 2, created_at="2026-10-01T00:30:00Z").key == old.key
        writer.flush()
        assert await store.read(old) == NAMED_BODIES
        clock.now += module.MAX_PACK_AGE_SECONDS
        writer.commit()
        assert await store.delete_before(later) == 1
        await store.upload_rest(5)

    asyncio.run(scenario())
    assert (bucket.calls, writer.waiting_bytes, list((tmp_path / "packs").iterdir())) == ([], 0, [])


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_retention_deletes_single_objects_in_a_bucket(tmp_path: Path, layout: str):
    bucket = FakeBucket()
    writer, store, _ = make_store(tmp_path, bucket, layout)
    for number, day in enumerate((1, 1, 1, 1, 2, 3)):
        moment = dt.datetime(2026, 10, day, 23, 59, 59, number, dt.UTC)
        name = uuid.UUID(int=(int(moment.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | number)
        record = PackedRecord(str(name), "o-1", "w-1", "red", moment.isoformat())
        assert writer.add(record, BODIES, "node", "edge-1", Position(7, number))
    # Not the name of a log.
    bucket.content["30/o-1/0-other.json"] = b""
    # More objects of a workspace than a list has. Their names are before those of `v1`.
    bucket.content |= {f"30/o-1/00-prod/2026/10/03/{number}.json": b"" for number in range(3)}
    writer.commit(is_final=True)

    async def scenario() -> None:
        await store.upload_rest(5)
        assert len(bucket.content) == 10
        assert await store.delete_before(dt.date(2026, 10, 2)) == 4

    asyncio.run(scenario())
    assert len(bucket.content) == 6
