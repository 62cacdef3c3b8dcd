"""Consumer that fills the log store: batches, bodies, amendments, failures and restarts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.logs import ingest as module
from penstock.logs import spool_format as spool
from penstock.logs import spool_reader
from penstock.logs.breaker import StorageBreaker
from penstock.logs.ingest import StoreIngest
from penstock.logs.observed_records import RecordObservers
from penstock.logs.packs import PackStore, PackWriter
from penstock.logs.spool_writer import NewFrame, SpoolWriter
from penstock.settings import Records, Settings
from penstock.settings.monitoring import Metrics
from tests.unit.logs.engine import MemoryEngine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def frames_of(number: int, **fields: Any) -> list[NewFrame]:
    name = uuid.UUID(int=number)
    record = {"id": str(name), "created_at": "2026-11-26T09:00:00Z", "organisation_id": "o", **fields}
    return [
        NewFrame(spool.BEGIN, name.bytes, b'{"request_url":"/x"}'),
        NewFrame(spool.CLIENT_REQUEST, name.bytes, b'{"content":"hello %d"}' % number),
        NewFrame(spool.UPSTREAM_RESPONSE, name.bytes, b'{"content":"bye"}'),
        NewFrame(spool.END, name.bytes, json.dumps(record).encode()),
    ]


def make_observers(folder: Path) -> RecordObservers:
    records = Records(path=str(folder / "records.jsonl"))
    return RecordObservers(Settings(records=records, metrics=Metrics(enabled=True)))


def count_observed(observers: RecordObservers) -> dict[str, float]:
    """Returns requests and tokens by status, as request metrics show them."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(observers.metrics.render()):
        for sample in family.samples:
            if sample.name in {"request_count_total", "llm_token_sum"}:
                name = f"{sample.name.split('_')[0]} {sample.labels['code']}"
                totals[name] = totals.get(name, 0) + sample.value
    return totals


def make_ingest(folder: Path, engine: MemoryEngine, **options: Any) -> tuple[StoreIngest, PackStore]:
    packs = PackWriter(str(folder / "bodies"), "packs", is_remote=False, limit_bytes=0)
    ingest = StoreIngest(engine, str(folder / "spool"), packs, **options)
    return ingest, PackStore(packs, None, StorageBreaker(5, 60))


def make_writer(folder: Path, **options: int) -> SpoolWriter:
    return SpoolWriter(str(folder / "spool"), "edge-1", "node-1", **options)


def ids(engine: MemoryEngine) -> list[int]:
    return [uuid.UUID(record["id"]).int for record in engine.records]


def test_inserts_records_with_bodies_and_text(tmp_path: Path):
    make_writer(tmp_path).append(frames_of(1))
    engine = MemoryEngine()
    ingest, store = make_ingest(tmp_path, engine)
    assert ingest.run_once() == 1
    (batch,) = engine.batches
    assert (batch.node, batch.writer, batch.texts) == ("node-1", "edge-1", {uuid.UUID(int=1): "hello 1\nbye"})
    bodies = asyncio.run(store.read(batch.bodies[uuid.UUID(int=1)]))
    assert bodies == {"client_request": b'{"content":"hello 1"}', "upstream_response": b'{"content":"bye"}'}
    assert engine.saved == {"edge-1": ingest.follower.readers["edge-1"].position}
    assert ingest.run_once() == 0


def test_inline_data_is_stored_as_digest_by_default(tmp_path: Path):
    image = bytes(range(256)) * 40
    encoded = base64.b64encode(image).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
    sent = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]}).encode()
    event = b'data: {"data":[{"b64_json":"%b"}]}\n\n' % encoded.encode()
    frames = frames_of(1)
    frames[1:3] = [
        NewFrame(spool.CLIENT_REQUEST, frames[0].record_id, sent),
        NewFrame(spool.UPSTREAM_RESPONSE, frames[0].record_id, event),
    ]
    make_writer(tmp_path).append(frames)
    digest = f"10240 bytes, sha256 {hashlib.sha256(image).hexdigest()}]"
    for is_kept in (False, True):
        engine = MemoryEngine()
        ingest, store = make_ingest(tmp_path, engine, keeps_inline_data=is_kept)
        ingest.run_once()
        (batch,) = engine.batches
        bodies = asyncio.run(store.read(batch.bodies[uuid.UUID(int=1)]))
        if is_kept:
            assert bodies == {"client_request": sent, "upstream_response": event}
            continue
        parts = json.loads(bodies["client_request"])["messages"][0]["content"]
        assert parts[1]["image_url"] == {"url": f"[base64 image/png, {digest}"}
        assert bodies["upstream_response"].decode() == f'data: {{"data":[{{"b64_json":"[base64, {digest}"}}]}}\n\n'
        # A search for the digest finds all requests with this image.
        assert hashlib.sha256(image).hexdigest() in batch.texts[uuid.UUID(int=1)]


def test_amendment_changes_the_record_of_its_batch_or_follows_it(tmp_path: Path):
    writer, engine = make_writer(tmp_path), MemoryEngine()
    ingest, _ = make_ingest(tmp_path, engine)
    writer.append([*frames_of(1), NewFrame(spool.AMEND, uuid.UUID(int=1).bytes, b'{"total_units":5}')])
    ingest.run_once()
    assert (engine.records[0]["total_units"], engine.batches[0].amendments) == (5, [])
    writer.append([NewFrame(spool.AMEND, uuid.UUID(int=1).bytes, b'{"total_units":6}')])
    ingest.run_once()
    assert engine.batches[1].amendments == [{"id": str(uuid.UUID(int=1)), "total_units": 6}]


def test_late_feedback_of_a_guardrail_is_stored(tmp_path: Path):
    writer, engine = make_writer(tmp_path), MemoryEngine()
    ingest, _ = make_ingest(tmp_path, engine)
    writer.append(frames_of(1))
    ingest.run_once()
    owner = {"organisation_id": "o", "workspace_id": "w", "trace_id": "t", "created_at": "2026-11-28T00:00:00Z"}
    result = {"id": "pg-a", "verdict": False, "checks": [], "feedback": {"value": -7, "weight": 1, "metadata": {}}}
    amendment = {**owner, "hook_results": {"before_request_hooks": [result], "after_request_hooks": []}}
    writer.append(
        [NewFrame(spool.AMEND, uuid.UUID(int=1).bytes, json.dumps(amendment, separators=(",", ":")).encode())]
    )
    ingest.run_once()
    (feedback,) = engine.batches[1].feedback
    assert {**feedback, **owner, "value": -7} == feedback


def test_feedback_and_refused_requests(tmp_path: Path):
    writer, engine = make_writer(tmp_path), MemoryEngine()
    ingest, _ = make_ingest(tmp_path, engine)
    name = uuid.UUID(int=3)
    writer.append(
        [NewFrame(spool.FEEDBACK, name.bytes, b'{"value":1}'), NewFrame(spool.END, name.bytes, b"{}", spool.REFUSED)]
    )
    assert ingest.run_once() == 1
    assert (engine.batches[0].feedback, engine.records) == ([{"id": str(name), "value": 1}], [])


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_BATCH_RECORDS", 3)
    writer, engine = make_writer(tmp_path), MemoryEngine()
    for number in range(8):
        writer.append(frames_of(number))
    ingest, _ = make_ingest(tmp_path, engine)
    while ingest.run_once():
        pass
    assert [len(batch.records) for batch in engine.batches] == [3, 3, 2]
    assert ids(engine) == list(range(8))


def test_failed_insert_is_repeated_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    writer, engine = make_writer(tmp_path), MemoryEngine()
    ingest, store = make_ingest(tmp_path, engine)
    writer.append(frames_of(1))
    engine.failure = "down"
    assert ingest.run_once() == 0
    assert (ingest.is_failing, ingest.follower.saved) == (True, {})
    writer.append(frames_of(2))
    # Waits between attempts, longer each time.
    for _ in range(10):
        ingest.run_once()
    assert engine.attempts == 1
    now[0] += module.FIRST_RETRY_SECONDS
    ingest.run_once()
    assert engine.attempts == 2
    engine.failure = ""
    now[0] += module.LONGEST_RETRY_SECONDS
    assert ingest.run_once() == 2
    assert (ids(engine), ingest.is_failing, ingest.failed) == ([1, 2], False, 2)
    for batch in engine.batches:
        for location in batch.bodies.values():
            assert len(asyncio.run(store.read(location))) == 2
    assert sum(len(batch.bodies) for batch in engine.batches) == 2


def test_restart_at_any_moment_repeats_and_loses_nothing(tmp_path: Path):
    writer, engine = make_writer(tmp_path, segment_bytes=2000), MemoryEngine()
    for number in range(0, 40, 2):
        group = zip(frames_of(number), frames_of(number + 1), strict=True)
        writer.append(frame for pair in group for frame in pair)
        # A new process for each batch; every third one dies before its insert.
        ingest, _ = make_ingest(tmp_path, engine)
        engine.failure = "killed" if number % 3 == 0 else ""
        ingest.run_once()
    engine.failure = ""
    ingest, store = make_ingest(tmp_path, engine)
    ingest.run_once()
    assert ids(engine) == list(range(40))
    locations = {name: location for batch in engine.batches for name, location in batch.bodies.items()}
    assert len(locations) == 40
    for name, location in locations.items():
        bodies = asyncio.run(store.read(location))
        assert bodies["client_request"] == b'{"content":"hello %d"}' % name.int


def test_failure_of_a_live_tail_inserts_nothing_again(tmp_path: Path):
    def publish(_lines: list[bytes]) -> None:
        raise ValueError("a line that cannot be shown")

    writer, engine = make_writer(tmp_path), MemoryEngine()
    writer.append(frames_of(1))
    ingest, _ = make_ingest(tmp_path, engine, publish=publish)
    assert (ingest.run_once(), ingest.run_once(), ingest.is_failing) == (1, 0, False)
    assert ids(engine) == [1]


def test_record_without_valid_json_does_not_stop_the_others(tmp_path: Path):
    class StrictEngine(MemoryEngine):
        def insert(self, batch: Any, positions: Any) -> int:
            good = [line for line in batch.records if line.startswith(b"{")]
            invalid = len(batch.records) - len(good)
            batch.records = good
            return invalid + super().insert(batch, positions)

    writer, engine = make_writer(tmp_path), StrictEngine()
    broken = uuid.UUID(int=9).bytes
    writer.append([NewFrame(spool.CLIENT_REQUEST, broken, b"x"), NewFrame(spool.END, broken, b"not JSON")])
    writer.append(frames_of(1))
    ingest, _ = make_ingest(tmp_path, engine)
    ingest.run_once()
    assert (ids(engine), ingest.invalid) == ([1], 1)


def test_writers_are_inserted_together_and_lost_by_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for writer in ("edge-1", "edge-2", "control"):
        SpoolWriter(str(tmp_path / "spool"), writer, "node-1").append(frames_of(len(writer) * 10 + int(writer[-1], 36)))
    SpoolWriter(str(tmp_path / "spool"), "edge-3", "node-0").append(frames_of(7))
    engine = MemoryEngine()
    ingest, _ = make_ingest(tmp_path, engine)
    engine.failure = "down"
    assert ingest.run_once() == 0
    assert ingest.is_failing
    engine.failure = ""
    assert ingest.run_once() == 0, "it waits before it tries again"
    monkeypatch.setattr(ingest, "_retry_at", 0.0)
    while ingest.run_once():
        pass
    assert len(set(ids(engine))) == len(engine.records) == 4
    assert sorted((batch.node, len(batch.records), len(batch.bodies)) for batch in engine.batches) in (
        [("node-0", 1, 1), ("node-1", 3, 3)],
        [("node-0", 1, 1), ("node-1", 1, 1), ("node-1", 2, 2)],
    )
    assert engine.saved.keys() == {"edge-1", "edge-2", "edge-3", "control"}


def test_request_metrics_get_each_record_once_with_its_late_usage(tmp_path: Path):
    writer, engine, observers = make_writer(tmp_path), MemoryEngine(), make_observers(tmp_path)
    ingest, _ = make_ingest(tmp_path, engine, observers=observers)
    *before, end = frames_of(1, response_status_code=200, total_units=None)
    writer.append([*before, end._replace(flags=spool.AMENDMENT_FOLLOWS)])
    writer.append([*frames_of(2, response_status_code=500), NewFrame(spool.EXTERNAL_LOG, bytes(16), end.payload)])
    engine.failure = "down"
    ingest.run_once()
    assert count_observed(observers) == {}
    engine.failure = ""
    ingest._retry_at = 0
    ingest.run_once()
    assert count_observed(observers) == {"request 200": 1, "llm 200": 0, "request 500": 1, "llm 500": 0}
    name = uuid.UUID(int=1).bytes
    writer.append(
        [NewFrame(spool.AMEND, name, b'{"total_units":7}'), NewFrame(spool.AMEND, name, b'{"total_units":9}')]
    )
    # Metrics ignore both amendments: record 2 was complete, so it is no longer in memory, and a corrected cost is no
    # new usage.
    writer.append([NewFrame(spool.AMEND, uuid.UUID(int=2).bytes, b'{"total_units":3}')])
    writer.append([NewFrame(spool.AMEND, name, b'{"cost_nanodollars":1,"previous_cost_nanodollars":2}')])
    ingest.run_once()
    assert count_observed(observers) == {"request 200": 1, "llm 200": 9, "request 500": 1, "llm 500": 0}
    assert sorted(engine.batches[-1].amendments, key=str) == [
        {"id": str(uuid.UUID(int=1)), "cost_nanodollars": 1, "previous_cost_nanodollars": 2},
        {"id": str(uuid.UUID(int=1)), "total_units": 7},
        {"id": str(uuid.UUID(int=1)), "total_units": 9},
        {"id": str(uuid.UUID(int=2)), "total_units": 3},
    ]


def test_usage_of_a_record_whose_writer_was_killed_before_its_amendment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer, engine, observers = make_writer(tmp_path), MemoryEngine(), make_observers(tmp_path)
    ingest, _ = make_ingest(tmp_path, engine, observers=observers)
    usage = {"req_units": 3, "res_units": 4, "total_units": 7}
    for number, pending in {1: usage, 2: {}, 3: None}.items():
        fields = {"operation": "chatComplete", "ai_model": "gpt-5", "response_status_code": 200}
        *before, end = frames_of(number, **fields, **({} if pending is None else {"pending_usage": pending}))
        writer.append([*before, end._replace(flags=spool.AMENDMENT_FOLLOWS)])
    ingest.run_once()
    assert (len(engine.records), engine.batches[-1].amendments) == (3, [])
    monkeypatch.setattr(spool_reader, "GONE_CHECK_SECONDS", 0)
    monkeypatch.setattr(spool_reader, "_is_running", lambda _pid: False)
    ingest.run_once()
    known, counted = engine.batches[-1].amendments
    assert known == {"id": str(uuid.UUID(int=1)), **usage}
    assert (counted["id"], counted["units_estimated"]) == (str(uuid.UUID(int=2)), True)
    assert counted["total_units"] > counted["res_units"] > 0
    assert count_observed(observers) == {"request 200": 3, "llm 200": 7 + counted["total_units"]}
    ingest.run_once()
    assert len(engine.records) == 3


def test_refused_requests_are_written_once_to_their_file_and_hold_nothing_up(tmp_path: Path):
    writer, engine, observers = make_writer(tmp_path), MemoryEngine(), make_observers(tmp_path)
    ingest, _ = make_ingest(tmp_path, engine, observers=observers)
    refused = b'{"id":"x","response_status_code":401}'
    writer.append([NewFrame(spool.END, uuid.UUID(int=1).bytes, refused, spool.REFUSED)])
    engine.failure = "down"
    ingest.run_once()
    engine.failure = ""
    ingest._retry_at = 0
    ingest.run_once()
    file = tmp_path / "records-refused.jsonl"
    assert file.read_bytes() == refused + b"\n"
    assert count_observed(observers) == {"request 401": 1, "llm 401": 0}
    # If the file cannot be written, only the records of rejected requests are lost.
    observers.close()
    file.unlink()
    file.mkdir()
    writer.append([NewFrame(spool.END, uuid.UUID(int=2).bytes, refused, spool.REFUSED), *frames_of(3)])
    ingest.run_once()
    assert (ids(engine), observers.dropped) == ([3], 1)


def test_only_what_may_have_been_inserted_before_is_marked(tmp_path: Path):
    make_writer(tmp_path).append(frames_of(1))
    SpoolWriter(str(tmp_path / "spool"), "control", "node-1").append(frames_of(2))
    engine = MemoryEngine()
    ingest, _ = make_ingest(tmp_path, engine)
    engine.failure = "down"
    ingest.run_once()
    assert ingest._waiting[0][0].batch.may_repeat
    engine.failure = ""
    ingest._retry_at = 0
    ingest.run_once()
    make_writer(tmp_path)  # Another process of the same writer continues behind what was read.
    (tmp_path / "spool" / "edge-1" / "lock").unlink()
    make_writer(tmp_path).append(frames_of(3))
    ingest.run_once()
    assert [(len(batch.records), batch.may_repeat) for batch in engine.batches] == [(2, True), (1, False)]
