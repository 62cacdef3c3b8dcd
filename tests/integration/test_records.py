"""Request records. Each request writes one line with its data and without secrets."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import count_settled_records, run_gateway

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.gateway import Gateway, Mock

TABLES = {"keys": [{"name": "k", "id": "k-1", "key": "pk-0123456789"}], "records": {"sensitive_headers": ["x-team"]}}
HEADERS = {**MOCK_HEADERS, "x-gateway-api-key": "pk-0123456789"}


@pytest.fixture
def new_records(running_gateway: Gateway) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that waits for the records of this test."""
    before = count_settled_records(running_gateway, HEADERS)
    return lambda count=1: running_gateway.records(before + count)[before:]


def test_buffered_request_is_recorded(running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]):
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), HEADERS)
    (record,) = new_records()
    expected = {
        "request_method": "POST",
        "request_url": CHAT_PATH,
        "response_status_code": 200,
        "is_success": True,
        "outcome": "complete",
        "ai_org": "mock",
        "ai_model": "mock",
        "operation": "chatComplete",
        "mode": "single",
        "is_proxy_call": False,
        "stream_mode": False,
        "req_units": 12,
        "res_units": 8,
        "total_units": 20,
        "cache_status": "disabled",
        "retry_success_count": 0,
        "last_used_option_index": "config",
        "api_key_id": "k-1",
        "bytes_out": len(response.body),
        "worker": 1,
    }
    assert {name: record.get(name) for name in expected} == expected
    assert record["trace_id"] == record["id"] == response.get_header("x-gateway-trace-id")
    assert 0 < record["upstream_response_time"] <= record["time_to_first_byte"] <= record["response_time"] < 20_000
    created = dt.datetime.fromisoformat(record["created_at"])
    assert abs((dt.datetime.now(dt.UTC) - created).total_seconds()) < 60


@pytest.mark.parametrize(("path", "operation"), [(CHAT_PATH, "chatComplete"), (MESSAGES_PATH, "messages")])
def test_stream_is_recorded(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]], path: str, operation: str
):
    options = {"include_usage": True} if path == CHAT_PATH else {}
    response = send_raw_request(
        running_gateway.base_url,
        path,
        chat_body("mock?chunks=5&chunk_ms=20", stream=True, stream_options=options),
        HEADERS,
    )
    (record,) = new_records()
    assert (record["outcome"], record["stream_mode"], record["operation"]) == ("complete", True, operation)
    assert (record["res_units"], record["bytes_out"]) == (5, len(response.body))
    assert record["time_to_first_byte"] < record["response_time"]
    assert record["response_time"] >= 80


def test_raw_proxy_request_is_recorded(running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]):
    send_raw_request(running_gateway.base_url, "/v1/proxy/some/where?page=2", headers=HEADERS)
    (record,) = new_records()
    assert (record["is_proxy_call"], record["request_url"]) == (True, "/v1/proxy/some/where?page=2")


def test_record_has_trace_ids_and_metadata_of_the_client(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    own = {"trace-id": "t-1", "span-id": "s-1", "span-name": "ask", "parent-span-id": "p-1"}
    fields = {f"x-gateway-{name}": value for name, value in own.items()}
    response = send_raw_request(
        running_gateway.base_url,
        CHAT_PATH,
        chat_body(),
        {**HEADERS, **fields, "x-gateway-metadata": '{"_user":"ann","n":"1"}'},
    )
    (record,) = new_records()
    assert {name: record[name.replace("-", "_")] for name in own} == own
    assert record["metadata"] == {"_user": "ann", "n": "1"}
    assert response.get_header("x-gateway-trace-id") == "t-1"


def test_each_rejected_request_writes_one_record(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    # Requests without a valid key are recorded in a file of their own.
    refused_before = len(running_gateway.refused_records(0))
    unauthenticated = [(401, CHAT_PATH, chat_body(), {**HEADERS, "x-gateway-api-key": "pk-wrong"})]
    refusals = [
        (400, CHAT_PATH, b"{", HEADERS),
        (400, CHAT_PATH, chat_body(), {"x-gateway-api-key": "pk-0123456789", **JSON_HEADERS}),
        (400, CHAT_PATH, chat_body(), {**HEADERS, "x-gateway-provider": "nobody"}),
        (400, CHAT_PATH, chat_body(), {**HEADERS, "x-gateway-config": "pc-nothing"}),
        (408, CHAT_PATH, chat_body("mock?first_ms=5000"), {**HEADERS, "x-gateway-request-timeout": "50"}),
        (502, CHAT_PATH, chat_body("mock?fault=reset"), HEADERS),
    ]
    for status, path, body, headers in [*unauthenticated, *refusals]:
        assert send_raw_request(running_gateway.base_url, path, body, headers).status == status
    admitted = new_records(len(refusals))
    strangers = running_gateway.refused_records(refused_before + len(unauthenticated))[refused_before:]
    for records, requests in ((admitted, refusals), (strangers, unauthenticated)):
        assert [record["response_status_code"] for record in records] == [status for status, *_ in requests]
    records = admitted + strangers
    # A provider that does not respond is a failure. All other statuses are rejections by the gateway.
    outcomes = {408: "failed", 502: "failed"}
    for record in records:
        expected = outcomes.get(record["response_status_code"], "refused")
        assert (record["outcome"], record["is_success"]) == (expected, False), record
    assert all(record["error"] for record in records)


def test_provider_error_is_recorded_as_complete(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("mock?fault=429"), HEADERS)
    (record,) = new_records()
    assert (record["response_status_code"], record["outcome"], record["is_success"]) == (429, "complete", False)


def test_cut_and_aborted_streams_are_recorded(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("mock?fault=cut", stream=True), HEADERS)
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(
            encode_request("POST", CHAT_PATH, HEADERS, chat_body("mock?chunks=1000&chunk_ms=20", stream=True))
        )
        connection.read_events(connection.read_head(), 2)
    records = new_records(2)
    assert [(record["outcome"], record["is_success"]) for record in records] == [("cut", False), ("aborted", False)]


def test_non_model_requests_write_no_record(running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]):
    for path in ("/", "/live", "/ready", "/v1/health", "/v1/version", "/schema", "/nothing", "/metrics"):
        send_raw_request(running_gateway.base_url, path, headers={})
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("last"), HEADERS)
    assert [record["ai_model"] for record in new_records()] == ["last"]


def test_many_requests_write_one_record_each(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    with RawConnection(running_gateway.base_url) as connection:
        for number in range(500):
            connection.request(CHAT_PATH, chat_body(f"mock-{number}"), HEADERS)
    records = new_records(500)
    assert [record["ai_model"] for record in records] == [f"mock-{number}" for number in range(500)]
    assert len({record["id"] for record in records}) == 500


def test_special_characters_stay_in_one_json_line(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    headers = {**HEADERS, "user-agent": 'quote " back \\ \xe9 \xff', "x-gateway-metadata": '{"a":"line\\nend\\u2028"}'}
    send_raw_request(
        running_gateway.base_url, CHAT_PATH, b'{"model":"a\\n\\"b\\u0000\\ud83d\\ude00","messages":[]}', headers
    )
    (record,) = new_records()
    assert record["ai_model"].startswith('a\n"b\0')
    assert list(record["metadata"].values()) == ["line\nend\u2028"]


def test_file_is_accessible_only_to_its_owner(running_gateway: Gateway):
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), HEADERS)
    running_gateway.records(1)
    assert stat.S_IMODE(running_gateway.records_file.stat().st_mode) == 0o600


def test_disabled_records_create_no_file(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, {"mock": {"host": provider.url}, "records": {"enabled": False}}) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 200
    assert not gateway.records_file.exists()


def test_moved_file_is_created_again(running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]):
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("before"), HEADERS)
    new_records()
    running_gateway.records_file.rename(running_gateway.folder / "moved.jsonl")
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("after"), HEADERS)
    assert [record["ai_model"] for record in running_gateway.records(1)] == ["after"]


def test_debug_off_omits_headers_from_the_record(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    for content in ("false", "False", "true", "0"):
        send_raw_request(
            running_gateway.base_url,
            CHAT_PATH,
            chat_body(),
            {**HEADERS, "x-gateway-debug": content, "accept-language": "private-17"},
        )
    *discreet, usual, other = new_records(4)
    for record in discreet:
        assert (record["debug"], record["total_units"], "request_headers" in record) == (False, 20, False)
        assert "private-17" not in str(record)
    for record in (usual, other):
        assert ("debug" in record, record["request_headers"]["accept-language"]) == (False, "private-17")


@pytest.mark.parametrize(
    ("path", "content", "remaining"),
    [
        ("/v1/audio/transcriptions", "61500", 61500.0),
        ("/v1/audio/translations", "0.5", 0.5),
        ("/v1/proxy/audio/transcriptions", "7", 7.0),
        ("/v1/audio/transcriptions", "-1", None),
        ("/v1/audio/transcriptions", "nan", None),
        ("/v1/audio/transcriptions", "1e300", None),
        ("/v1/audio/transcriptions", "long", None),
        ("/v1/audio/speech", "61500", None),
        (CHAT_PATH, "61500", None),
    ],
)
def test_audio_file_duration_is_recorded(
    running_gateway: Gateway,
    new_records: Callable[..., list[dict[str, Any]]],
    path: str,
    content: str,
    remaining: float | None,
):
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nmock\r\n--b--\r\n'
    is_form = "/trans" in path
    kind = {"content-type": "multipart/form-data; boundary=b"} if is_form else {}
    send_raw_request(
        running_gateway.base_url,
        path,
        form if is_form else chat_body(),
        {**HEADERS, **kind, "x-gateway-audio-file-duration": content},
    )
    (record,) = new_records()
    assert record.get("audio_file_duration") == remaining
