"""Truncated responses never look complete. A cut event stream ends with an error event; any other cut response ends its
connection.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.frames import DATA, END_STREAM
from tests.integration.canned import CHUNKED_HEAD, CannedProvider
from tests.integration.http2 import Http2Connection
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
from tests.integration.serving import count_settled_records
from tests.integration.test_chat import requires_http2_curl
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
FILE_PATH = "/v1/files/f-1/content"
# Response head and a part of the body, after which the connection ends although more was promised.
CUT_RESPONSES = {
    "between chunks": (CHUNKED_HEAD, b"5\r\nhello\r\n"),
    "in a chunk": (CHUNKED_HEAD, b"5\r\nhello\r\nff\r\nwor"),
    "in a chunk's size": (CHUNKED_HEAD, b"5\r\nhello\r\nf"),
    "before the last line": (CHUNKED_HEAD, b"5\r\nhello\r\n0\r\n"),
    "by broken framing": (CHUNKED_HEAD, b"5\r\nhello\r\nzz\r\n"),
    "in a known length": (b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 3000000\r\n\r\n", b"hello"),
    "in a large chunked body": (CHUNKED_HEAD, b"%x\r\n" % 2_000_000 + b"hello" * 300_000),
}
STREAM_FAULTS = ["cut", "cut_reset", "cut_event", "invalid_framing"]


def final_error(path: str, body: bytes) -> dict:
    """Returns the error that ends the stream, without the wrapping of its API format."""
    last = body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
    name, _, data = last.rpartition(b"data: ")
    assert name == (b"event: error\n" if path == MESSAGES_PATH else b""), last
    return json.loads(data)["error"]


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_cut_stream_ends_in_an_error_event(running_gateway: Gateway, path: str, fault: str):
    with RawConnection(running_gateway.base_url) as connection:
        response = connection.request(path, chat_body(f"mock?chunks=8&after=4&chunk_ms=5&fault={fault}", stream=True))
        assert (response.status, response.end_reason) == (200, "chunk")
        error = final_error(path, response.body)
        assert error["type"] == ("api_error" if path == MESSAGES_PATH else "server_error")
        assert "the provider's response broke off" in error["message"]
        # The events before it are the provider's own.
        assert response.body.count(b"\n\n") >= 5
        assert connection.request(path, chat_body()).status == 200


def test_missing_last_event_is_an_error_for_messages_only(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        chat = connection.request(CHAT_PATH, chat_body("mock?chunks=2&fault=no_done", stream=True))
        assert chat.body.rstrip().endswith(b'"finish_reason":"stop"}]}')
        messages = connection.request(MESSAGES_PATH, chat_body("mock?chunks=2&fault=no_done", stream=True))
        assert "the provider's response broke off" in final_error(MESSAGES_PATH, messages.body)["message"]


@pytest.mark.parametrize("mode", ["hold", "continue"])
def test_cut_stream_is_recovered_if_its_config_says_so(running_gateway: Gateway, mode: str):
    targets = [
        {"provider": "mock", "override_params": {"model": f"mock?chunks=24&{does}"}}
        for does in ("fault=cut&after=10", "prefix=on")
    ]
    config = {"strategy": {"mode": "fallback"}, "recovery": mode, "targets": targets}
    with RawConnection(running_gateway.base_url) as connection:
        complete = connection.request(CHAT_PATH, chat_body("mock?chunks=24"))
        headers = {**MOCK_HEADERS, "x-gateway-config": json.dumps(config)}
        response = connection.request(CHAT_PATH, chat_body(stream=True), headers)
        assert (response.status, response.end_reason) == (200, "chunk")
        *events, last = response.body.decode().strip().split("\n\n")
        assert last == "data: [DONE]"
        deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
        content = "".join(delta.get("content", "") for delta in deltas)
        assert content == json.loads(complete.body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
def test_stream_shorter_than_its_content_length_is_an_error(running_gateway: Gateway, path: str):
    event = b'event: ping\ndata: {"type": "ping"}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n"
    with CannedProvider(head, event, pause=0.1) as canned:
        provider = {"x-gateway-provider": "anthropic" if path == MESSAGES_PATH else "openai"}
        response = send_raw_request(
            running_gateway.base_url, path, chat_body(stream=True), {**canned.headers, **provider, **JSON_HEADERS}
        )
    assert response.body.startswith(event)
    if response.end_reason != "broken":
        assert "the provider's response broke off" in final_error(path, response.body)["message"]


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
def test_stream_cut_after_its_last_event_is_complete(running_gateway: Gateway, provider: Mock, path: str):
    body = chat_body("mock?fault=long_length", stream=True)
    direct, response = (
        send_raw_request(provider.url, path, body, JSON_HEADERS),
        send_raw_request(running_gateway.base_url, path, body),
    )
    assert (direct.end_reason, response.end_reason) == ("broken", "chunk")
    assert response.stable_body.startswith(direct.stable_body)


@pytest.mark.parametrize("name", CUT_RESPONSES)
def test_other_cut_responses_break_the_connection(running_gateway: Gateway, name: str):
    count = count_settled_records(running_gateway)
    with CannedProvider(*CUT_RESPONSES[name]) as canned, RawConnection(running_gateway.base_url) as connection:
        response = connection.request(FILE_PATH, headers=canned.headers)
    if response.status == 502:
        # The provider's response ended before anything was forwarded.
        assert response.json()["error"]["code"] == "upstream_disconnected"
    else:
        # Bytes that arrive together with the cut may be dropped, even the head; a clean end must not be faked.
        assert (response.status or 200, response.end_reason) == (200, "broken")
        assert b"hello".startswith(response.body[:5])
    record = running_gateway.records(count + 1)[-1]
    assert record["outcome"] in ({"cut", "failed"} if response.status == 502 else {"cut"})
    assert record["response_status_code"] == (response.status or 200)
    assert (record["is_success"], record["error"]) == (False, "upstream_disconnected")


def test_bytes_from_long_before_the_cut_are_forwarded(running_gateway: Gateway):
    with CannedProvider(*CUT_RESPONSES["between chunks"], pause=0.3) as canned:
        response = send_raw_request(running_gateway.base_url, FILE_PATH, headers=canned.headers)
    assert (response.status, response.end_reason, response.body) == (200, "broken", b"hello")


@pytest.mark.parametrize("name", CUT_RESPONSES)
def test_cut_json_response_is_a_502_if_nothing_was_sent(running_gateway: Gateway, name: str):
    head, rest = CUT_RESPONSES[name]
    head = head.replace(b"application/octet-stream", b"application/json").replace(b"3000000", b"30000")
    with CannedProvider(head, rest) as canned:
        response = send_raw_request(
            running_gateway.base_url, CHAT_PATH, chat_body(), {**canned.headers, **JSON_HEADERS}
        )
    if name == "in a large chunked body":
        assert (response.status, response.end_reason) == (200, "broken")
    else:
        assert (response.status, response.end_reason) == (502, "length")
        assert response.json()["error"]["code"] == "upstream_disconnected"


@pytest.mark.parametrize("fault", ["cut", "cut_reset", "long_length", "invalid_framing", "half_close"])
def test_cut_non_streamed_response_is_a_502(running_gateway: Gateway, fault: str):
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(f"mock?fault={fault}"))
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_disconnected")


def test_cut_large_response_breaks_the_connection(running_gateway: Gateway):
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("mock?fault=cut&response_bytes=4000000"))
    assert (response.status, response.end_reason) == (200, "broken")
    assert 0 < len(response.body) < 4_000_000


def test_body_without_length_ends_with_its_connection(running_gateway: Gateway):
    with CannedProvider(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n\r\n", b"all of it") as canned:
        response = send_raw_request(running_gateway.base_url, FILE_PATH, headers=canned.headers)
    assert (response.status, response.end_reason, response.body) == (200, "chunk", b"all of it")


def test_cut_does_not_affect_other_connections(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as slow, CannedProvider(*CUT_RESPONSES["in a chunk"]) as canned:
        body = chat_body("mock?chunks=40&chunk_ms=25", stream=True)
        slow.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, body))
        head = slow.read_head()
        for _ in range(5):
            assert send_raw_request(running_gateway.base_url, FILE_PATH, headers=canned.headers).end_reason == "broken"
        rest = b"".join(slow.iter_body(head))
    assert (head.end_reason, rest.count(b"data: ")) == ("chunk", 43)


@requires_http2_curl
@pytest.mark.parametrize("name", CUT_RESPONSES)
def test_http_2_reports_a_cut_as_an_error(running_gateway: Gateway, name: str):
    with CannedProvider(*CUT_RESPONSES[name], pause=0.1) as canned:
        headers = [part for name, value in canned.headers.items() for part in ("-H", f"{name}: {value}")]
        command = [
            "curl",
            "-sSf",
            "--http2-prior-knowledge",
            "--max-time",
            "10",
            *headers,
            running_gateway.base_url + FILE_PATH,
        ]
        done = subprocess.run(command, check=False, capture_output=True, timeout=20)
    assert done.returncode not in {0, 28}, done
    assert b"hello".startswith(done.stdout[:5])


def test_http_2_cut_of_known_length_ends_no_other_stream(running_gateway: Gateway):
    canned_head, chunk = CUT_RESPONSES["in a known length"]
    with CannedProvider(canned_head, chunk, pause=0.3) as canned, Http2Connection(running_gateway.base_url) as line:
        line.send_request(1, "POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=40&chunk_ms=25", stream=True))
        line.send_request(3, "GET", FILE_PATH, canned.headers)
        ended = line.read_until_ended(1)
    assert ended[3] == chunk
    assert ended[1].endswith(b"data: [DONE]\n\n")


def test_http_2_streams_finish_before_a_cut_ends_connection(
    running_gateway: Gateway,
):
    with (
        CannedProvider(*CUT_RESPONSES["between chunks"], pause=0.2) as canned,
        Http2Connection(running_gateway.base_url) as line,
    ):
        line.send_request(1, "POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=40&chunk_ms=25", stream=True))
        for stream in (3, 5):
            line.send_request(stream, "GET", FILE_PATH, canned.headers)
        ended = line.read_until_ended(1)
        assert ended.keys() == {1}
        assert ended[1].endswith(b"data: [DONE]\n\n")
        # No other streams remain; only the closed connection shows that these two are incomplete.
        assert not [frame for frame in line.read_frames() if frame[0] == DATA and frame[1] & END_STREAM]


def test_gateway_still_serves_after_many_cuts(running_gateway: Gateway):
    for _ in range(20):
        with CannedProvider(*CUT_RESPONSES["between chunks"]) as canned:
            send_raw_request(running_gateway.base_url, FILE_PATH, headers=canned.headers)
    wait_for(
        "the next answer",
        lambda: send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200 or None,
    )
