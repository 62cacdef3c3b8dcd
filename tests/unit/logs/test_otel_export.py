"""Export of spans from the spool to a real collector: outages, limits, restarts, and what a payload holds."""

from __future__ import annotations

import json
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.logs import otel_export as module
from penstock.logs import spool_format as spool
from penstock.logs import spool_reader
from penstock.logs.otel_export import OtelExporter, build_resource
from penstock.logs.record_lines import AMENDMENT_WAIT_SECONDS
from penstock.logs.spool_reader import delete_segments
from penstock.logs.spool_writer import NewFrame, SpoolWriter, list_segments
from penstock.logs.worker import make_exporter as make_exporter_of_worker
from penstock.settings import Records, Settings
from penstock.settings.otel import Otel
from penstock.settings.secret import Secret
from penstock.settings.upstream import Upstream
from tests.otel_collector import CollectorReply, OtelCollector, attributes_of, spans_of
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXPORTERS: list[OtelExporter] = []
CANARY = "sk-canary-0123456789"
REQUEST = {"model": "gpt-5", "temperature": 0.5, "messages": [{"role": "user", "content": "what is up"}]}
RESPONSE = {"id": "r", "choices": [{"message": {"content": "the sky"}, "finish_reason": "stop"}]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def collector() -> Iterator[OtelCollector]:
    with OtelCollector() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _closed_exporters() -> Iterator[None]:
    yield
    while EXPORTERS:
        EXPORTERS.pop().close()


def make_settings(folder: Path, collector: OtelCollector, *, spool_bytes: int = 2**30, **options: Any) -> Settings:
    return Settings(
        records=Records(path=str(folder / "records.jsonl"), spool_bytes=spool_bytes),
        otel=Otel(**{"endpoint": collector.url, "batch_ms": 0, **options}),
    )


def make_exporter(folder: Path, collector: OtelCollector, clock: Clock, **options: Any) -> OtelExporter:
    EXPORTERS.append(OtelExporter(make_settings(folder, collector, **options), clock))
    return EXPORTERS[-1]


def make_writer(folder: Path, name: str = "edge-1", **options: int) -> SpoolWriter:
    return SpoolWriter(str(folder / "store" / "spool"), name, "node-1", **options)


def frames_of(number: int, *, age_seconds: float = 1, flags: int = 0, **fields: Any) -> list[NewFrame]:
    name = uuid.UUID(int=number)
    record = {
        "id": str(name),
        "created_at": (datetime.now(UTC) - timedelta(seconds=age_seconds)).isoformat(),
        "organisation_id": "o",
        "operation": "chatComplete",
        "ai_org": "openai",
        "ai_model": "gpt-5",
        "response_status_code": 200,
        "response_time": 5,
        "outcome": "complete",
        "total_units": 1,
        "source": "gateway",
        **fields,
    }
    return [
        NewFrame(spool.BEGIN, name.bytes, json.dumps({"created_at": record["created_at"], "trace_id": "t"}).encode()),
        NewFrame(spool.CLIENT_REQUEST, name.bytes, json.dumps(REQUEST).encode()),
        NewFrame(spool.UPSTREAM_RESPONSE, name.bytes, json.dumps(RESPONSE).encode()),
        NewFrame(spool.END, name.bytes, json.dumps(record).encode(), flags),
    ]


def numbers(collector: OtelCollector) -> list[int]:
    return [uuid.UUID(text).int for text in collector.record_ids]


def run_all(exporter: OtelExporter) -> None:
    while exporter.run_once():
        pass


def test_exports_a_record_with_its_resource_and_scope(tmp_path: Path, collector: OtelCollector, clock: Clock):
    options = {"headers": Secret(f"x-api-key={CANARY},x-team=a%20b"), "resource_attributes": "env=test"}
    exporter = make_exporter(tmp_path, collector, clock, **options)
    make_writer(tmp_path).append(frames_of(1, attempts=[{"provider": "openai", "host": "h", "status": 200}]))
    run_all(exporter)
    (payload,) = collector.accepted
    (resource,) = payload["resourceSpans"]
    values = attributes_of(resource["resource"])
    assert (values["service.name"], values["env"]) == ("penstock", "test")
    (scope,) = resource["scopeSpans"]
    assert scope["scope"]["name"] == "custom.genai.instrumentation"
    assert [span["name"] for span in scope["spans"]] == ["chat gpt-5", "attempt openai"]
    (headers,) = collector.headers
    assert (headers["x-api-key"], headers["x-team"], headers["content-encoding"]) == (CANARY, "a b", "gzip")
    assert headers["content-type"] == "application/json"
    assert collector.paths == ["/v1/traces"]
    assert exporter.metrics()["otel_records_exported"] == 1
    assert exporter.metrics()["otel_lag_seconds"] == 0


def test_messages_are_exported_only_if_wanted(tmp_path: Path, collector: OtelCollector, clock: Clock):
    for number, content in enumerate((False, True), 1):
        exporter = make_exporter(tmp_path, collector, clock, content=content)
        make_writer(tmp_path, f"edge-{number}").append(frames_of(number))
        run_all(exporter)
    without, with_content = collector.received
    assert b"what is up" not in without
    assert b"the sky" not in without
    values = attributes_of(collector.spans[1])
    assert json.loads(values["gen_ai.input.messages"])[0]["parts"] == [{"type": "text", "content": "what is up"}]
    assert b"the sky" in with_content
    for span in collector.spans:
        values = attributes_of(span)
        assert (values["gen_ai.request.temperature"], values["gen_ai.response.id"]) == (0.5, "r")


def test_payload_has_no_credentials(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock, content=True, headers=Secret(f"x-api-key={CANARY}"))
    fields = {
        "request_headers": {"authorization": CANARY},
        "response_headers": {"set-cookie": CANARY},
        "request_url": f"/v1/chat/completions?key={CANARY}",
        "decisions": [{"step": CANARY}],
        "peer": CANARY,
        "hook_results": {"before_request_hooks": [{"id": "g", "verdict": True, "checks": [{"data": CANARY}]}]},
    }
    make_writer(tmp_path).append(frames_of(1, **fields))
    run_all(exporter)
    assert len(collector.spans) == 2
    assert CANARY.encode() not in b"".join(collector.received)
    assert CANARY not in repr(exporter._settings)


def test_outage_loses_and_repeats_nothing(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock, batch_records=3)
    writer = make_writer(tmp_path)
    writer.append(frame for number in range(5) for frame in frames_of(number))
    run_all(exporter)
    collector.close_port()
    for number in range(5, 20):
        writer.append(frames_of(number))
        exporter.run_once()
        clock.now += 1
    failures = exporter.metrics()["otel_export_failures"]
    # The pause grows, so 15 seconds are not 15 tries.
    assert 2 <= failures <= 8
    assert exporter.metrics()["otel_lag_seconds"] > 0
    collector.open()
    clock.now += 120
    run_all(exporter)
    assert numbers(collector) == list(range(20))
    assert exporter.metrics()["otel_records_skipped"] == 0


def test_restart_continues_at_the_saved_position(tmp_path: Path, collector: OtelCollector, clock: Clock):
    writer = make_writer(tmp_path)
    other = make_writer(tmp_path, "control")
    for number in range(0, 40, 2):
        writer.append(frames_of(number))
        other.append(frames_of(number + 1))
        exporter = make_exporter(tmp_path, collector, clock, batch_records=1)
        # The exporter is closed before it has sent most of the records that it read.
        exporter.run_once()
        exporter.close()
    assert len(collector.spans) == 20
    run_all(make_exporter(tmp_path, collector, clock))
    assert sorted(numbers(collector)) == list(range(40))


def test_kill_before_the_position_is_saved_repeats_the_same_span(
    tmp_path: Path, collector: OtelCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    make_writer(tmp_path).append(frames_of(1))
    with monkeypatch.context() as patches:
        patches.setattr(OtelExporter, "_save_positions", lambda _self: None)
        run_all(make_exporter(tmp_path, collector, clock))
    run_all(make_exporter(tmp_path, collector, clock))
    first, second = collector.spans
    assert (first["traceId"], first["spanId"]) == (second["traceId"], second["spanId"])


def test_retry_after_is_respected(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock)
    collector.replies = [CollectorReply(429, b"slow down", {"retry-after": "30"})]
    make_writer(tmp_path).append(frames_of(1))
    run_all(exporter)
    for seconds, requests in ((0, 1), (29, 1), (1.1, 2)):
        clock.now += seconds
        run_all(exporter)
        assert len(collector.received) == requests
    assert numbers(collector) == [1]
    assert exporter.metrics()["otel_export_failures"] == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_temporary_errors_are_retried(tmp_path: Path, collector: OtelCollector, clock: Clock, status: int):
    exporter = make_exporter(tmp_path, collector, clock)
    collector.replies = [CollectorReply(status)] * 2
    make_writer(tmp_path).append(frames_of(1))
    for _ in range(4):
        run_all(exporter)
        clock.now += 5
    assert numbers(collector) == [1]
    assert exporter.metrics()["otel_records_failed"] == 0


@pytest.mark.parametrize("status", [301, 400, 401, 404, 500])
def test_refused_records_are_dropped_and_counted(
    tmp_path: Path, collector: OtelCollector, clock: Clock, status: int, caplog: pytest.LogCaptureFixture
):
    exporter = make_exporter(tmp_path, collector, clock, headers=Secret(f"x-api-key={CANARY}"))
    collector.replies = [CollectorReply(status, b"no", {"location": "/elsewhere"})]
    writer = make_writer(tmp_path)
    writer.append(frames_of(1))
    run_all(exporter)
    writer.append(frames_of(2))
    run_all(exporter)
    assert numbers(collector) == [2]
    assert exporter.metrics()["otel_records_failed"] == 1
    assert f"status {status}: no; 1 records are dropped" in caplog.text
    assert CANARY not in caplog.text


def test_partial_success_is_counted_and_not_sent_again(
    tmp_path: Path, collector: OtelCollector, clock: Clock, caplog: pytest.LogCaptureFixture
):
    exporter = make_exporter(tmp_path, collector, clock)
    partial = {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}
    collector.replies = [CollectorReply(200, json.dumps(partial).encode())]
    make_writer(tmp_path).append([*frames_of(1), *frames_of(2)])
    run_all(exporter)
    assert len(collector.received) == 1
    metrics = exporter.metrics()
    assert (metrics["otel_records_exported"], metrics["otel_spans_rejected"]) == (2, 1)
    assert "rejected 1 spans: too old" in caplog.text


def test_too_large_batches_are_halved(tmp_path: Path, collector: OtelCollector, clock: Clock):
    collector.decide = lambda payload: CollectorReply(413 if len(spans_of(payload)) > 2 else 200)
    exporter = make_exporter(tmp_path, collector, clock)
    make_writer(tmp_path).append(frame for number in range(9) for frame in frames_of(number))
    for _ in range(20):
        exporter.run_once()
    assert numbers(collector) == list(range(9))
    collector.decide = lambda _payload: CollectorReply(413)
    make_writer(tmp_path, "edge-2").append(frames_of(10))
    run_all(exporter)
    assert exporter.metrics()["otel_records_failed"] == 1


def test_payloads_are_bounded(tmp_path: Path, collector: OtelCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PAYLOAD_BYTES", 8000)
    exporter = make_exporter(tmp_path, collector, clock)
    make_writer(tmp_path).append(
        frame for number in range(5) for frame in frames_of(number, metadata={"x": "y" * 3000})
    )
    run_all(exporter)
    assert numbers(collector) == list(range(5))
    assert len(collector.received) >= 3
    assert max(map(len, collector.received)) < 9000


def test_batch_waits_for_further_records(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock, batch_ms=1000, batch_records=3)
    writer = make_writer(tmp_path)
    writer.append(frames_of(1))
    exporter.run_once()
    assert collector.received == []
    clock.now += 1
    exporter.run_once()
    assert numbers(collector) == [1]
    writer.append(frame for number in (2, 3, 4) for frame in frames_of(number))
    exporter.run_once()
    assert numbers(collector) == [1, 2, 3, 4]


def test_late_usage_is_part_of_the_span(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock)
    writer = make_writer(tmp_path)
    frames = frames_of(1)
    record = json.loads(frames[-1].payload)
    del record["total_units"]
    frames[-1] = frames[-1]._replace(payload=json.dumps(record).encode(), flags=spool.AMENDMENT_FOLLOWS)
    writer.append([*frames, *frames_of(2)])
    run_all(exporter)
    assert collector.received == []
    writer.append([NewFrame(spool.AMEND, frames[0].record_id, b'{"req_units":7,"res_units":2,"total_units":9}')])
    run_all(exporter)
    assert numbers(collector) == [1, 2]
    assert attributes_of(collector.spans[0])["gen_ai.usage.input_tokens"] == 7
    third = frames_of(3)
    payload = json.dumps({**record, "id": str(uuid.UUID(int=3))}).encode()
    third[-1] = third[-1]._replace(payload=payload, flags=spool.AMENDMENT_FOLLOWS)
    writer.append(third)
    run_all(exporter)
    clock.now += AMENDMENT_WAIT_SECONDS
    run_all(exporter)
    assert "gen_ai.usage.input_tokens" not in attributes_of(collector.spans[2])


def test_records_of_others_are_not_exported(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock)
    make_writer(tmp_path).append(
        [
            *frames_of(1, source="external"),
            *frames_of(2, flags=spool.REFUSED),
            NewFrame(spool.EXTERNAL_LOG, uuid.UUID(int=3).bytes, frames_of(3)[-1].payload),
            NewFrame(spool.FEEDBACK, uuid.UUID(int=4).bytes, b"{}"),
            # Exported, because only the metadata contains `external`, and clients choose the metadata.
            *frames_of(5, metadata={"source": "external"}),
            *frames_of(6, metadata={"x": '"source":"external"'}),
        ]
    )
    run_all(exporter)
    assert numbers(collector) == [5, 6]


def test_unreadable_record_is_counted_and_passed_over(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock)
    frames = [*frames_of(1, attempts="x"), NewFrame(spool.END, uuid.UUID(int=2).bytes, b"{"), *frames_of(3)]
    make_writer(tmp_path).append([*frames, NewFrame(spool.AMEND, uuid.UUID(int=3).bytes, b'{"req_units":"x"}')])
    run_all(exporter)
    assert numbers(collector) == [3]
    assert exporter.metrics()["otel_records_failed"] == 2


def test_old_records_are_skipped_while_the_collector_is_away(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock, max_age_seconds=60)
    make_writer(tmp_path).append(
        [*frames_of(1, age_seconds=300), *frames_of(2, age_seconds=90), *frames_of(3, age_seconds=5)]
    )
    collector.replies = [CollectorReply(503)]
    run_all(exporter)
    assert exporter.metrics()["otel_records_skipped"] == 2
    clock.now += 60
    run_all(exporter)
    assert numbers(collector) == [3]
    # Old records are no problem for a collector that responds.
    make_writer(tmp_path, "edge-2").append(frames_of(4, age_seconds=300))
    run_all(exporter)
    assert numbers(collector) == [3, 4]


def test_spool_is_held_only_up_to_its_bound(
    tmp_path: Path, collector: OtelCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_WAITING_RECORDS", 10)
    exporter = make_exporter(tmp_path, collector, clock, spool_bytes=40_000)
    writer = make_writer(tmp_path, segment_bytes=4000)
    collector.close_port()
    for number in range(200):
        writer.append(frames_of(number))
        exporter.run_once()
        clock.now += 0.5
        delete_segments(writer.folder, exporter.follower.first_needed_segment("edge-1"))
    size = sum(path.stat().st_size for path in writer.folder.glob("*.seg"))
    assert size < 40_000 * 0.5 + 3 * 4000
    skipped = exporter.metrics()["otel_records_skipped"]
    assert 100 < skipped < 200
    collector.open()
    clock.now += 120
    run_all(exporter)
    assert numbers(collector) == list(range(int(skipped), 200))
    exported = exporter.metrics()["otel_records_exported"]
    assert exported + skipped == 200


def test_bodies_are_there_after_a_restart(tmp_path: Path, collector: OtelCollector, clock: Clock):
    exporter = make_exporter(tmp_path, collector, clock, content=True, batch_records=1)
    writer = make_writer(tmp_path, segment_bytes=600)
    # Each frame of a long request is in a segment of its own, and a short one ends meanwhile.
    *start, end = frames_of(1)
    for frame in start:
        writer.append([frame])
    writer.append(frames_of(2))
    writer.append([end])
    first, *_ = list_segments(writer.folder)
    collector.replies = [CollectorReply(), CollectorReply(503)]
    exporter.run_once()
    exporter.run_once()
    assert numbers(collector) == [2]
    assert exporter.follower.saved["edge-1"].segment > first
    delete_segments(writer.folder, exporter.follower.first_needed_segment("edge-1"))
    exporter = make_exporter(tmp_path, collector, clock, content=True)
    run_all(exporter)
    assert numbers(collector) == [2, 1]
    assert "gen_ai.input.messages" in attributes_of(collector.spans[1])
    assert exporter.follower.first_needed_segment("edge-1") > first


def test_killed_requests_survive_restarts(
    tmp_path: Path, collector: OtelCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    writer = make_writer(tmp_path)
    writer.append([*frames_of(1), *(frames_of(number)[0] for number in range(2, 7)), *frames_of(7)])
    writer.close()
    # The process id belongs to another process now.
    monkeypatch.setattr(spool_reader, "read_process_start", lambda _pid: 1)
    collector.replies = [CollectorReply(), CollectorReply(), CollectorReply(503)]
    exporter = make_exporter(tmp_path, collector, clock, batch_records=2)
    # The reader looks whether the process is gone every 0.2 seconds.
    wait_for("a failure", lambda: (exporter.run_once(), exporter.failures or None)[1])
    # Some of the killed requests are exported, and others are not.
    assert numbers(collector) == [1, 7, 2, 3]
    for _ in range(2):
        exporter.close()
        exporter = make_exporter(tmp_path, collector, clock, batch_records=2)
        wait_for(
            "the rest", lambda restarted=exporter: None if restarted.run_once() or len(collector.spans) < 9 else True
        )
    exported = numbers(collector)
    assert sorted(set(exported)) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(exported) == [1, 2, 2, 3, 3, 4, 5, 6, 7]
    errors = {attributes_of(span).get("error.type") for span in collector.spans}
    assert errors == {None, "killed"}


def test_thread_sends_the_rest_at_its_end_and_does_not_wait_for_a_hanging_collector(
    tmp_path: Path, collector: OtelCollector
):
    settings = make_settings(tmp_path, collector, batch_ms=60_000)
    exporter = OtelExporter(settings)
    stop = threading.Event()
    exporter.start(stop)
    make_writer(tmp_path).append(frames_of(1))
    time.sleep(0.3)
    assert collector.received == []
    stop.set()
    exporter.join()
    assert numbers(collector) == [1]
    collector.decide = lambda _payload: CollectorReply(200, pause_seconds=6)
    exporter = OtelExporter(settings)
    EXPORTERS.append(exporter)
    stop = threading.Event()
    exporter.start(stop)
    make_writer(tmp_path, "edge-2").append(frames_of(2))
    stop.set()
    started_at = time.monotonic()
    exporter.join()
    assert time.monotonic() - started_at < 5


def test_export_is_off_without_an_endpoint_and_if_it_cannot_be_used(
    tmp_path: Path, collector: OtelCollector, caplog: pytest.LogCaptureFixture
):
    assert make_exporter_of_worker(Settings()) is None
    assert make_exporter_of_worker(make_settings(tmp_path, collector, enabled=False)) is None
    assert caplog.text == ""
    assert make_exporter_of_worker(make_settings(tmp_path, collector)) is not None
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    settings = make_settings(tmp_path, collector, endpoint="https://127.0.0.1:9")
    assert make_exporter_of_worker(msgspec.structs.replace(settings, upstream=Upstream(tls_ca=str(file)))) is None
    assert "spans cannot be exported" in caplog.text


def test_service_name_takes_precedence_over_resource_attributes():
    assert build_resource(Otel())["service.name"] == "penstock"
    attributes = "service.name=a,x=1%2C2"
    assert build_resource(Otel(resource_attributes=attributes))["service.name"] == "a"
    resource = build_resource(Otel(resource_attributes=attributes, service_name="b"))
    assert (resource["service.name"], resource["x"]) == ("b", "1,2")
