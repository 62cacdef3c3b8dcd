"""Backpressure from a client that stops reading. It uses little memory, throttles the provider, and can read everything
later.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import memory
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
from tests.integration.serving import ENTRY_MODES, edge_pids, run_gateway, wait_for_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

CLIENT_COUNT = 50
# The tests may use an engine without optimisation, whose futures are larger.
MAX_BYTES_PER_CLIENT = 384 * memory.KIB
SMALL_BUFFER_BYTES = 4096
# 400 MB, more than any kernel buffers.
LARGE_STREAM_MODEL = "mock?chunks=100000&chunk_bytes=4096"
# Generous bound on the socket buffers of both connections.
MAX_BYTES_IN_FLIGHT = 24 * memory.MIB


def open_stalled_client(running_gateway: Gateway, body: bytes) -> RawConnection:
    connection = RawConnection(running_gateway.base_url, receive_buffer=SMALL_BUFFER_BYTES)
    connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, body))
    return connection


def sent_byte_counts(mock: Mock) -> list[int]:
    return [received["bytes_sent"] for received in mock.ledger()]


def wait_for_backpressure(mock: Mock, count: int = 1) -> list[int]:
    """Waits until `count` responses have begun and no byte was sent for 1.5 s; returns the bytes sent for each
    response.
    """
    last, since = [], time.monotonic()

    def stalled_byte_counts() -> list[int] | None:
        nonlocal last, since
        now = sent_byte_counts(mock)
        if now != last or len(now) < count or not all(now):
            last, since = now, time.monotonic()
        return now if time.monotonic() - since > 1.5 else None

    return wait_for("the provider pushed back on", stalled_byte_counts, 20)


@pytest.mark.parametrize(
    "body",
    [chat_body(LARGE_STREAM_MODEL, stream=True), chat_body("mock?response_bytes=16000000")],
    ids=["stream", "whole"],
)
def test_client_that_never_reads_uses_little_memory(running_gateway: Gateway, provider: Mock, body: bytes):
    (edge,) = edge_pids(running_gateway)
    is_stream = b'"stream": true' in body
    # The provider needs 16 MB for each complete response, so there are only 8 clients. As many clients run before the
    # measurement, so that one-time allocations do not count.
    count, warming = (CLIENT_COUNT, 5) if is_stream else (8, 8)
    known = len(running_gateway.records(0))
    with contextlib.ExitStack() as warm:
        for _ in range(warming):
            warm.enter_context(open_stalled_client(running_gateway, body))
        wait_for_backpressure(provider, warming)
    wait_for(
        "the first ones gone", lambda: all(received["outcome"] != "open" for received in provider.ledger()) or None
    )
    # Writing a record counts its tokens, which loads the tokenizer vocabulary once.
    running_gateway.records(known + warming)
    provider.clear_ledger()
    before = memory.rss(edge)
    with contextlib.ExitStack() as connections:
        for _ in range(count):
            connections.enter_context(open_stalled_client(running_gateway, body))
        amounts = wait_for_backpressure(provider, count)
        grown = (memory.rss(edge) - before) / count
        assert max(amounts) < MAX_BYTES_IN_FLIGHT
        assert grown <= MAX_BYTES_PER_CLIENT, f"{grown / memory.KIB:.0f} KiB for each client"
        # Other clients are served normally.
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
def test_client_that_resumes_reading_gets_everything(running_gateway: Gateway, provider: Mock, path: str):
    body = chat_body("mock?chunks=8000&chunk_bytes=4096", stream=True)
    direct = send_raw_request(provider.url, path, body, JSON_HEADERS)
    provider.clear_ledger()
    with RawConnection(running_gateway.base_url, receive_buffer=SMALL_BUFFER_BYTES) as connection:
        connection.send(encode_request("POST", path, MOCK_HEADERS, body))
        (under_way,) = wait_for_backpressure(provider)
        assert under_way < len(direct.body)
        response = connection.read_response()
        assert (response.status, response.end_reason, response.stable_body == direct.stable_body) == (
            200,
            "chunk",
            True,
        )
    assert wait_for_request(provider, ended=True)["outcome"] == "complete"


def test_keeps_a_slowly_reading_client_connected(running_gateway: Gateway, provider: Mock):
    body = chat_body("mock?chunks=2000&chunk_bytes=4096", stream=True)
    direct = send_raw_request(provider.url, CHAT_PATH, body, JSON_HEADERS)
    with RawConnection(running_gateway.base_url, receive_buffer=SMALL_BUFFER_BYTES) as connection:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, body))
        response = connection.read_head()
        got = bytearray()
        for number, chunk in enumerate(connection.iter_body(response)):
            got += chunk
            if number < 40:
                time.sleep(0.02)
    response.body = bytes(got)
    assert (response.end_reason, response.stable_body == direct.stable_body) == ("chunk", True)


def is_connection_open(running_gateway: Gateway, connection: RawConnection) -> bool:
    """Returns true if the kernel still lists the gateway's side of the connection."""
    ends = (int(running_gateway.base_url.rsplit(":", 1)[1]), connection.socket.getsockname()[1])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return ends in [tuple(int(end.rsplit(":", 1)[1], 16) for end in line.split()[1:3]) for line in lines]


@pytest.mark.parametrize("size", [20_000_000, 1_000_000, 200_000])
def test_closes_a_client_that_reads_nothing_of_a_complete_response(provider: Mock, tmp_path: Path, size: int):
    tables = {"mock": {"host": provider.url}, "server": {"write_stall_ms": 500}}
    with (
        run_gateway(tmp_path, tables) as running_gateway,
        open_stalled_client(running_gateway, chat_body(f"mock?response_bytes={size}")) as connection,
    ):
        wait_for_request(provider)
        assert is_connection_open(running_gateway, connection)
        wait_for("the connection's end", lambda: not is_connection_open(running_gateway, connection) or None, 15)
        assert running_gateway.records(1)[0]["outcome"] in (
            {"complete"} if size < 1_000_000 else {"aborted", "cut", "complete"}
        )
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200
        assert connection.read_response().end_reason == "broken"


@pytest.mark.parametrize("entry_mode", ENTRY_MODES)
def test_closes_a_stalled_stream_client_at_the_write_timeout(provider: Mock, tmp_path: Path, entry_mode: str):
    tables = {"mock": {"host": provider.url}, "server": {"write_stall_ms": 500}}
    with run_gateway(tmp_path, tables, entry_mode) as running_gateway:
        with open_stalled_client(running_gateway, chat_body(LARGE_STREAM_MODEL, stream=True)) as connection:
            received = wait_for_request(provider, ended=True, seconds=15)
            assert received["outcome"] == "client_closed"
            assert received["bytes_sent"] < MAX_BYTES_IN_FLIGHT
            # When the client finally reads, it can tell that the response is incomplete.
            assert connection.read_response().end_reason == "broken"
        (record,) = running_gateway.records(1)
        assert record["outcome"] in {"aborted", "cut"}
        assert not record["is_success"]
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200
