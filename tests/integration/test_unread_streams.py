"""Unread streams over HTTP/2. A stream that the client does not read ends alone: other streams of its connection
continue, and a client that reads again gets an error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.frames import DATA, END_STREAM, GOAWAY
from tests.integration.canned import CHUNKED_HEAD, CannedProvider
from tests.integration.http2 import Http2Connection
from tests.integration.raw_http import CHAT_PATH, MESSAGES_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import ENTRY_MODES, count_settled_records, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Gateway, Mock

ENDLESS_MODEL = "mock?chunks=100000&chunk_bytes=4096"
FILE_PATH = "/v1/files/f-1/content"
LARGE_CHUNK = b"%x\r\n" % 40_000_000 + b"hello" * 6_000_000
LARGE_WINDOW_BYTES = 1 << 30
STREAM_WINDOW_BYTES = 1000
# Parked streams that one connection may have; another one closes the connection.
MAX_PARKED_STREAMS = 8
TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module", params=ENTRY_MODES)
def stall_gateway(
    request: pytest.FixtureRequest, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    tables = {
        "mock": {"host": provider.url},
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
        "server": {"write_stall_ms": 400},
    }
    with run_gateway(tmp_path_factory.mktemp(request.param), tables, request.param) as gateway:
        yield gateway


@pytest.fixture
def line(stall_gateway: Gateway) -> Iterator[Http2Connection]:
    # A small window per stream keeps bytes out of the socket, which has its own stall limit. The connection's window is
    # large.
    with Http2Connection(stall_gateway.base_url, TIMEOUT_SECONDS, STREAM_WINDOW_BYTES) as line:
        line.grant_window(0, LARGE_WINDOW_BYTES)
        yield line


def wait_until_aborted(provider: Mock, count: int = 1) -> None:
    """Waits until the provider saw the gateway close `count` streams."""

    def are_aborted() -> bool | None:
        return sum(received["outcome"] == "client_closed" for received in provider.ledger()) >= count or None

    wait_for("the stream given up", are_aborted, TIMEOUT_SECONDS)


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
def test_unread_event_stream_ends_alone_with_an_error(provider: Mock, line: Http2Connection, path: str):
    provider.clear_ledger()
    line.send_request(1, "POST", path, MOCK_HEADERS, chat_body(ENDLESS_MODEL, stream=True))
    wait_until_aborted(provider)
    for number in (3, 5):
        line.send_request(number, "POST", CHAT_PATH, MOCK_HEADERS, chat_body())
        assert json.loads(line.read_until_ended(number)[number])["object"] == "chat.completion"
    line.grant_window(1, LARGE_WINDOW_BYTES)
    reported = line.read_until_ended(1)[1]
    *_, last = reported.rstrip().split(b"\n\n")
    assert b"was not read for 400 ms" in last
    assert b"[DONE]" not in reported
    assert b"message_stop" not in reported
    line.send_request(7, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(stream=True))
    line.grant_window(7, LARGE_WINDOW_BYTES)
    assert line.read_until_ended(7)[7].endswith(b"data: [DONE]\n\n")


def test_unread_stream_is_recorded_as_cut(stall_gateway: Gateway, provider: Mock, line: Http2Connection):
    provider.clear_ledger()
    before = count_settled_records(stall_gateway)
    line.send_request(1, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(ENDLESS_MODEL, stream=True))
    wait_until_aborted(provider)
    record = stall_gateway.records(before + 1)[before]
    assert (record["outcome"], record["error"], record["is_success"]) == ("cut", "client_read_timeout", False)


def test_unread_response_of_known_length_ends_alone(provider: Mock, line: Http2Connection):
    provider.clear_ledger()
    line.send_request(1, "POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?response_bytes=16000000"))
    wait_until_aborted(provider)
    line.send_request(3, "POST", CHAT_PATH, MOCK_HEADERS, chat_body())
    assert line.read_until_ended(3)[3]
    line.grant_window(1, LARGE_WINDOW_BYTES)
    # A body shorter than its content-length is an error of this stream only.
    assert len(line.read_until_ended(1)[1]) < 16_000_000
    line.send_request(5, "POST", CHAT_PATH, MOCK_HEADERS, chat_body())
    assert line.read_until_ended(5)[5]


def test_unread_chunked_response_ends_connection_when_read_again(line: Http2Connection, stall_gateway: Gateway):
    before = count_settled_records(stall_gateway)
    with CannedProvider(CHUNKED_HEAD + LARGE_CHUNK, pause=TIMEOUT_SECONDS) as canned:
        line.send_request(1, "GET", FILE_PATH, canned.headers)
        assert stall_gateway.records(before + 1)[before]["error"] == "client_read_timeout"
        line.send_request(3, "POST", CHAT_PATH, MOCK_HEADERS, chat_body())
        assert line.read_until_ended(3)[3]
    line.grant_window(1, LARGE_WINDOW_BYTES)
    frames = [(kind, flags) for kind, flags, number, _ in line.read_frames() if number == 1 or kind == GOAWAY]
    assert not any(kind == DATA and flags & END_STREAM for kind, flags in frames)


def test_limits_parked_streams_per_connection(provider: Mock, line: Http2Connection, stall_gateway: Gateway):
    provider.clear_ledger()
    for number in range(MAX_PARKED_STREAMS + 1):
        line.send_request(1 + 2 * number, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(ENDLESS_MODEL, stream=True))
    wait_until_aborted(provider, MAX_PARKED_STREAMS + 1)
    # Reads until the gateway closes the connection.
    assert not [number for kind, flags, number, _ in line.read_frames() if kind == DATA and flags & END_STREAM]
    assert send_raw_request(stall_gateway.base_url, CHAT_PATH, chat_body()).status == 200


def test_resetting_parked_streams_frees_their_slots(provider: Mock, line: Http2Connection):
    provider.clear_ledger()
    for number in range(MAX_PARKED_STREAMS):
        line.send_request(1 + 2 * number, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(ENDLESS_MODEL, stream=True))
    wait_until_aborted(provider, MAX_PARKED_STREAMS)
    for number in range(MAX_PARKED_STREAMS):
        line.reset_stream(1 + 2 * number)
    line.send_request(101, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(ENDLESS_MODEL, stream=True))
    wait_until_aborted(provider, MAX_PARKED_STREAMS + 1)
    line.send_request(103, "POST", CHAT_PATH, MOCK_HEADERS, chat_body())
    assert line.read_until_ended(103)[103]
