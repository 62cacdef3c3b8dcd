"""OpenTelemetry with real processes: spans of requests reach a collector, and spans of clients become logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import read_metrics, run_gateway
from tests.otel_collector import OtelCollector, attributes_of
from tests.otlp import SPAN, make_span, make_traces
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

ONE_STORE = True
TABLES = {"metrics": {"enabled": True}, "log_store": {"enabled": True}}

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CANARY = "sk-canary-of-the-collector"


def make_tables(provider: Mock) -> dict[str, Any]:
    return {"mock": {"host": provider.url}, **TABLES}


def make_env(collector: OtelCollector, **more: str) -> dict[str, str]:
    headers = f"authorization=Bearer%20{CANARY}"
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": headers, **more}


def test_span_has_the_clients_span_as_parent(tmp_path: Path, mock: Mock):
    with OtelCollector() as collector:
        env = make_env(collector, OTEL_SERVICE_NAME="gateway-under-test", PENSTOCK_OTEL_CONTENT="true")
        with run_gateway(tmp_path, make_tables(mock), env=env) as gateway:
            headers = {**MOCK_HEADERS, "traceparent": TRACEPARENT, "x-gateway-metadata": '{"team":"red"}'}
            response = send_raw_request(gateway.base_url, CHAT_PATH, chat_body(stream=True), headers)
            assert response.status == 200
            root, attempt = collector.wait_for_spans(2, 30)
            # The log worker counts a record after the collector has accepted it.
            exported = wait_for(
                "the metric", lambda: read_metrics(gateway).get("penstock_otel_records_exported_total"), 10
            )
            assert exported == 1
            assert read_metrics(gateway)["penstock_otel_records_skipped_total"] == 0
        assert (root["traceId"], root["parentSpanId"], root["name"]) == (TRACE, PARENT, "chat mock")
        assert attempt["parentSpanId"] == root["spanId"]
        # The provider received the gateway's span as its parent.
        (sent,) = [entry for entry in mock.ledger() if entry["path"].endswith("/chat/completions")]
        traceparent = sent["headers"]["traceparent"]
        assert f"-{TRACE}-{root['spanId']}-" in (traceparent if isinstance(traceparent, str) else traceparent[0])
        values = attributes_of(root)
        assert (values["gen_ai.provider.name"], values["gen_ai.request.stream"]) == ("mock", True)
        assert values["gen_ai.usage.input_tokens"] > 0
        assert values["penstock.metadata.team"] == "red"
        assert json.loads(values["gen_ai.input.messages"])[0]["role"] == "user"
        (output,) = json.loads(values["gen_ai.output.messages"])
        assert output["parts"][0]["content"]
        (resource,) = collector.accepted[0]["resourceSpans"]
        assert attributes_of(resource["resource"])["service.name"] == "gateway-under-test"
        assert collector.headers[0]["authorization"] == f"Bearer {CANARY}"
        assert CANARY.encode() not in b"".join(collector.received)


@pytest.mark.slow(8)
@pytest.mark.timeout(180)
def test_spans_arrive_once_after_an_outage_and_a_restart(tmp_path: Path, mock: Mock):
    with OtelCollector() as collector:
        collector.close_port()
        for number in range(2):
            with run_gateway(tmp_path, make_tables(mock), env=make_env(collector)) as gateway:
                for _ in range(5):
                    assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), MOCK_HEADERS).status == 200
                gateway.records(5 * (number + 1), 30)
        assert collector.spans == []
        collector.open()
        with run_gateway(tmp_path, make_tables(mock), env=make_env(collector)) as gateway:
            wait_for("all spans", lambda: len(collector.record_ids) >= 10 or None, 30)
            expected = [record["id"] for record in gateway.records(10, 30)]
        assert sorted(collector.record_ids) == sorted(expected)


def test_gateway_without_a_collector_has_no_export(tmp_path: Path, mock: Mock):
    with run_gateway(tmp_path, make_tables(mock)) as gateway:
        assert (
            send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, **JSON_HEADERS}).status == 200
        )
        gateway.records(1, 30)
        wait_for("the log worker", lambda: read_metrics(gateway).get("penstock_log_worker_up") or None, 30)
        assert not [name for name in read_metrics(gateway) if "otel" in name]
    assert not (tmp_path / "store" / "otel-position.json").exists()


def test_span_of_a_client_becomes_a_log(admin: Client):
    workspace = admin.create("/v1/admin/workspaces", {"name": "Traced"})
    scopes = ["completions.write", "logs.write", "logs.list"]
    key = admin.with_new_key(workspace_id=workspace["id"], scopes=scopes)
    assert expect_ok(key.post("/v1/otel/v1/traces", make_traces(make_span()))) == {}

    def find() -> list[dict[str, Any]] | None:
        # Until the log worker listens, the status is 503.
        response = key.get("/v1/logs")
        return (response.json()["data"] or None) if response.status == 200 else None

    rows = wait_for("the log", find, 30)
    assert [(row["span_id"], row["ai_model"]) for row in rows] == [(SPAN, "gpt-4o")]
