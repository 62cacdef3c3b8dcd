"""OpenTelemetry ingest: spans and log records become logs, with partial success and errors as OTLP/HTTP has them."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

from tests.otlp import (
    CALL_ATTRIBUTES,
    CALL_REQUEST,
    CANARY,
    PARENT,
    SPAN,
    TRACE,
    encode_attributes,
    make_logs,
    make_span,
    make_traces,
)
from tests.unit.asgi import send_request
from tests.unit.resources.logged import LocalLogs, open_workspace, run_logged
from tests.unit.resources.test_logs import WRITE_SCOPES, create_workspace_key

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True


async def list_newest(client: ManagementClient) -> dict[str, Any]:
    return (await client.request_ok("GET", "logs?page_size=1"))["data"][0]


async def post(client: ManagementClient, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    fields = {"x-gateway-api-key": client.key, **{name.replace("_", "-"): text for name, text in headers.items()}}
    response = await send_request(client.app, "POST", f"/v1/{path}", body, fields)
    return response.status, response.json()


def test_span_of_a_model_call_becomes_a_log(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home, client = await create_workspace_key(api, WRITE_SCOPES)
        assert await client.request_ok("POST", "otel/v1/traces", make_traces(make_span())) == {}
        row = await list_newest(client)
        expected = {
            "trace_id": TRACE,
            "span_id": SPAN,
            "parent_span_id": PARENT,
            "span_name": "chat gpt-4o",
            "ai_org": "openai",
            "ai_model": "gpt-4o",
            "req_units": 10,
            "res_units": 5,
            "response_time": 250,
            "response_status_code": 200,
            "is_success": True,
            "source": "external",
            "user": "ann",
            "workspace_id": home["workspace_id"],
        }
        assert {name: row[name] for name in expected} == expected
        assert row["cost"] > 0
        assert (row["metadata"]["team"], row["metadata"]["session_id"]) == ("red", "s-1")
        assert row["metadata"]["service.name"] == "agent"
        log = await client.request_ok("GET", f"logs/{row['id']}")
        assert log["request"]["url"] == "https://api.openai.com/v1/chat/completions"
        assert log["request"]["headers"] == {"authorization": "*****"}
        assert log["request"]["body"] == CALL_REQUEST
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        assert log["response"]["body"]["choices"] == [choice]
        assert CANARY not in json.dumps([log, row])
        # Its words are found, and its trace is a tree.
        assert [item["id"] for item in (await client.request_ok("GET", "logs?q=zebra"))["data"]] == [row["id"]]
        assert (await client.request_ok("GET", f"traces/{TRACE}"))["total"] == 1

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_span_that_is_sent_again_is_stored_once(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        _, client = await create_workspace_key(api, WRITE_SCOPES)
        _, other = await create_workspace_key(api, WRITE_SCOPES, "other")
        body = make_traces(make_span(), make_span(spanId=PARENT))
        for item in (client, client, other):
            await item.request_ok("POST", "otel/v1/traces", body)
            logs.flush()
        for item in (client, other):
            assert len((await item.request_ok("GET", "logs"))["data"]) == 2

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_log_records_become_logs(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        _, client = await create_workspace_key(api, WRITE_SCOPES)
        moment = time.time_ns()
        record = {
            "timeUnixNano": moment,
            "severityNumber": 17,
            "severityText": "ERROR",
            "eventName": "agent.failed",
            "body": {"stringValue": "no giraffe"},
            "attributes": encode_attributes({"team": "red"}),
            "traceId": TRACE,
            "spanId": SPAN,
        }
        call = {"observedTimeUnixNano": str(moment - 10**9), "attributes": encode_attributes(CALL_ATTRIBUTES)}
        bad = {"timeUnixNano": "never"}
        response = await client.request_ok("POST", "otel/v1/logs", make_logs(record, call, bad))
        assert response["partialSuccess"]["rejectedLogRecords"] == "1"
        first, second = (await client.request_ok("GET", "logs"))["data"]
        assert (first["span_name"], first["trace_id"], first["parent_span_id"]) == ("agent.failed", TRACE, SPAN)
        assert (first["is_success"], first["metadata"]["team"]) == (False, "red")
        assert (second["ai_model"], second["req_units"]) == ("gpt-4o", 10)
        assert second["trace_id"] == second["id"]
        log = await client.request_ok("GET", f"logs/{first['id']}")
        assert log["response"]["body"] == {"body": "no giraffe", "severity": "ERROR"}
        assert [row["id"] for row in (await client.request_ok("GET", "logs?q=giraffe"))["data"]] == [first["id"]]

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_ingest_needs_both_scopes(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home = await open_workspace(api)
        for scopes, missing in ((["logs.write"], "completions.write"), (["completions.write"], "logs.write")):
            _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=scopes)
            await client.expect_error(403, missing, "POST", "otel/v1/traces", make_traces(make_span()))
        await api.with_key("wrong").expect_error(401, "", "POST", "otel/v1/logs", make_logs())

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_errors_have_the_envelope_of_the_management_api(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        _, client = await create_workspace_key(api, WRITE_SCOPES)
        packed = gzip.compress(json.dumps(make_traces(make_span())).encode())
        json_type = {"content_type": "application/json"}
        assert await post(client, "otel/v1/traces", packed, **json_type, content_encoding="gzip") == (200, {})
        assert (await list_newest(client))["span_id"] == SPAN
        for path in ("otel/v1/traces", "otel/v1/logs"):
            for body, headers, status in (
                (b"\x0a\x00\xff", {"content_type": "application/x-protobuf"}, 400),
                (b"", {"content_type": "application/grpc"}, 415),
                (packed, {**json_type, "content_encoding": "br"}, 415),
                (gzip.compress(b" " * 17 * 1024 * 1024), {**json_type, "content_encoding": "gzip"}, 413),
                (b"{", json_type, 400),
            ):
                actual, response = await post(client, path, body, **headers)
                assert (actual, response["success"], response["data"]["errorCode"]) == (status, False, "AB01")

    run_logged(bootstrapped_url, tmp_path, scenario)
