"""Request bodies. Slow and endless bodies are cut, and a client that is rejected early still gets its response."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.canned import CannedProvider
from tests.integration.raw_http import (
    CHAT_PATH,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_chunks,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import count_settled_records, run_gateway, wait_for_request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock

FILES_PATH = "/v1/files"
IDLE_SECONDS = 0.4
MAX_BODY_BYTES = 3_000_000
TABLES = {
    "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    "limits": {
        "body_bytes": MAX_BODY_BYTES,
        "body_idle_ms": int(IDLE_SECONDS * 1000),
        "body_grace_ms": 600,
        "body_rate": 1000,
        "body_total_ms": 1500,
    },
}
CHUNKED_HEADERS = {**MOCK_HEADERS, "transfer-encoding": "chunked"}
# Requests that a client begins and never finishes: the head and a part of the body.
UNFINISHED_REQUESTS = {
    "no byte of a small one": encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "100"}),
    "half of a small one": encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "100"}, b"{" * 50),
    "half of a small one that passes through": encode_request(
        "POST", FILES_PATH, {**MOCK_HEADERS, "content-length": "100"}, b"{" * 50
    ),
    "half of a large one": encode_request(
        "POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "2000000"}, b" " * 1_500_000
    ),
    "half of a large one that passes through": encode_request(
        "POST", FILES_PATH, {**MOCK_HEADERS, "content-length": "2000000"}, b" " * 1_500_000
    ),
    "no chunk": encode_request("POST", CHAT_PATH, CHUNKED_HEADERS),
    "half a chunk": encode_request("POST", CHAT_PATH, CHUNKED_HEADERS, b"ff\r\n{"),
    "no last chunk": encode_request("POST", MESSAGES_PATH, CHUNKED_HEADERS, b"2\r\n{}\r\n"),
}
# Invalid chunked bodies; the valid content would be `{}`.
INVALID_CHUNKS = {
    "no size": b"zz\r\n{}\r\n0\r\n\r\n",
    "a negative size": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size that is too short": b"1\r\n{}\r\n0\r\n\r\n",
    "a size that overflows": b"fffffffffffffffff2\r\n{}\r\n0\r\n\r\n",
    "an empty size": b"\r\n{}\r\n0\r\n\r\n",
    "after a good one": b"2\r\n{}\r\nzz\r\n",
    "after a large one": b"%x\r\n%s\r\nzz\r\n" % (1_200_000, b" " * 1_200_000),
}


def send_slowly(connection: RawConnection, chunk: bytes, pause: float) -> float:
    """Sends `chunk` repeatedly until there is a response; returns the time that this took in seconds."""
    started = time.monotonic()
    connection.socket.settimeout(pause)
    while time.monotonic() - started < 10:
        try:
            connection.socket.recv(1, 2)  # MSG_PEEK
            break
        except TimeoutError:
            connection.send(chunk)
    connection.socket.settimeout(connection.timeout)
    return time.monotonic() - started


@pytest.mark.parametrize("name", UNFINISHED_REQUESTS)
def test_stalled_body_gets_a_408_and_closes_its_connection(running_gateway: Gateway, name: str):
    count = count_settled_records(running_gateway)
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(UNFINISHED_REQUESTS[name])
        started = time.monotonic()
        response = connection.read_response()
        seconds = time.monotonic() - started
        assert (response.status, response.json()["error"]["type"]) == (408, "timeout_error")
        assert "limits.body_idle_ms is 400" in response.json()["error"]["message"]
        assert seconds > IDLE_SECONDS * 0.9
        assert connection.is_closed()
    record = running_gateway.records(count + 1)[-1]
    assert (record["outcome"], record["response_status_code"], record["error"]) == ("refused", 408, "body_timeout")


def test_management_request_without_a_key_is_answered_before_its_body(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", "/v1/configs", {"content-length": "10"}, b"{"))
        # This gateway has no store.
        assert connection.read_response().status == 503


def test_aborts_the_upstream_request_of_a_stalled_body(running_gateway: Gateway, provider: Mock):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(UNFINISHED_REQUESTS["half of a large one that passes through"])
        assert connection.read_response().status == 408
    # The provider received the head, but never the complete body.
    assert wait_for_request(provider, FILES_PATH, ended=True)["outcome"] == "client_closed"


@pytest.mark.parametrize("path", [CHAT_PATH, FILES_PATH])
@pytest.mark.parametrize(
    ("chunk", "limit", "least"),
    [(b"1\r\n \r\n", "body_rate", 0.5), (b"190\r\n%s\r\n" % (b" " * 400), "body_total_ms", 1.3)],
)
def test_slow_body_is_cut_by_its_rate_or_total_time(
    running_gateway: Gateway, path: str, chunk: bytes, limit: str, least: float
):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", path, CHUNKED_HEADERS))
        seconds = send_slowly(connection, chunk, 0.1)
        response = connection.read_response()
        assert response.status == 408
        assert f"limits.{limit} is" in response.json()["error"]["message"]
        assert seconds > least
        assert connection.is_closed()


def test_body_in_many_small_writes_is_one_body(running_gateway: Gateway):
    body = chat_body()
    with RawConnection(running_gateway.base_url) as connection:
        for pause in (0.0, 0.02, 0.12):
            connection.send(encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": str(len(body))}))
            for start in range(0, len(body), 40):
                time.sleep(pause)
                connection.send(body[start : start + 40])
            assert connection.read_response().status == 200


@pytest.mark.parametrize("name", INVALID_CHUNKS)
@pytest.mark.parametrize("path", [CHAT_PATH, FILES_PATH])
def test_invalid_chunks_are_a_client_error(running_gateway: Gateway, path: str, name: str):
    count = count_settled_records(running_gateway)
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", path, CHUNKED_HEADERS, INVALID_CHUNKS[name]))
        response = connection.read_response()
        assert (response.status, response.json()["error"]["code"]) == (400, "invalid_framing")
        assert connection.is_closed()
    record = running_gateway.records(count + 1)[-1]
    assert (record["outcome"], record["response_status_code"], record["error"]) == ("refused", 400, "invalid_framing")


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("name", UNFINISHED_REQUESTS)
def test_disconnect_within_the_body_is_recorded_as_aborted(running_gateway: Gateway, name: str, leave: str):
    if "management" in name:
        return
    count = count_settled_records(running_gateway)
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(UNFINISHED_REQUESTS[name])
        time.sleep(0.05)
        getattr(connection, leave)()
    record = running_gateway.records(count + 1)[-1]
    assert (record["outcome"], record["response_status_code"]) == ("aborted", 499)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**MOCK_HEADERS, "content-length": "10000000000"}, 413),
        (CHUNKED_HEADERS, 413),
        ({**MOCK_HEADERS, "x-gateway-provider": "none"}, 400),
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, FILES_PATH])
def test_early_rejection_reaches_a_client_that_is_still_sending(
    running_gateway: Gateway, path: str, headers: dict[str, str], status: int
):
    size = 20_000_000 if status == 413 else 2_900_000
    body = b" " * size
    if headers is CHUNKED_HEADERS:
        body = b"%x\r\n%s\r\n" % (size, body)
    with RawConnection(running_gateway.base_url) as connection:
        # The gateway drains the body without using it, so that the client can send all of it.
        connection.send(encode_request("POST", path, headers, body))
        response = connection.read_response()
        assert response.status == status
        if status == 400:
            assert connection.request(CHAT_PATH, chat_body()).status == 200
        else:
            assert connection.is_closed()


def test_endless_body_is_cut(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", FILES_PATH, CHUNKED_HEADERS))
        chunk = b"%x\r\n%s\r\n" % (1_000_000, b" " * 1_000_000)
        sent = 0
        try:
            for _ in range(300):
                connection.send(chunk)
                sent += 1
        except ConnectionError:
            pass
    assert 3 <= sent < 100
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200


def test_expect_continue_is_rejected_before_the_body_is_sent(running_gateway: Gateway):
    large = {"content-length": "2000000", "expect": "100-continue"}
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", FILES_PATH, {**MOCK_HEADERS, **large, "x-gateway-provider": "none"}))
        connection.socket.settimeout(2)
        assert connection.socket.recv(12) == b"HTTP/1.1 400"
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", FILES_PATH, {**MOCK_HEADERS, **large}))
        assert connection.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(b" " * 2_000_000)
        assert connection.read_response().json()["body_bytes"] == 2_000_000


def test_stalled_bodies_do_not_block_other_requests(running_gateway: Gateway):
    stalled = [RawConnection(running_gateway.base_url) for _ in range(50)]
    for number, connection in enumerate(stalled):
        connection.send(list(UNFINISHED_REQUESTS.values())[number % 4])
    for _ in range(20):
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200
    for connection in stalled:
        assert connection.read_response().status == 408
        connection.close()


def test_joins_valid_chunks(running_gateway: Gateway):
    body = chat_body()
    chunks = [body[start : start + 7] for start in range(0, len(body), 7)]
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, CHUNKED_HEADERS, encode_chunks(*chunks)))
        assert json.loads(connection.read_response().body)["object"] == "chat.completion"


def test_forwards_a_response_that_precedes_the_end_of_the_body(running_gateway: Gateway):
    head = (
        b"HTTP/1.1 413 Too Large\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    with (
        CannedProvider(head, b"5\r\nlarge\r\n", b"0\r\n\r\n", pause=0.1) as canned,
        RawConnection(running_gateway.base_url) as connection,
    ):
        unfinished = b"%x\r\n%s\r\n" % (2_000_000, b" " * 2_000_000)
        connection.send(
            encode_request("POST", "/v1/proxy/files", {**canned.headers, "transfer-encoding": "chunked"}, unfinished)
        )
        response = connection.read_response()
    assert (response.status, response.end_reason, response.body) == (413, "chunk", b"large")


def test_rejects_requests_over_the_in_flight_limit(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "limits": {"in_flight": 1}}
    with run_gateway(tmp_path, tables) as item, RawConnection(item.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?first_ms=3000")))
        time.sleep(0.5)
        refused = send_raw_request(item.base_url, CHAT_PATH, chat_body())
        assert (refused.status, refused.json()["error"]["code"]) == (503, "overloaded")
        assert (connection.read_response().status, send_raw_request(item.base_url, CHAT_PATH, chat_body()).status) == (
            200,
            200,
        )
