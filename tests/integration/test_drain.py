"""Graceful shutdown. A draining gateway closes connections and ends streams in order, and a rolling restart fails no
request.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.frames import DATA, GOAWAY, HEADERS
from tests.integration.balancer import LoadBalancer
from tests.integration.http2 import Http2Connection
from tests.integration.raw_http import (
    CHAT_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import run_gateway, run_load
from tests.integration.test_slow_reader import LARGE_STREAM_MODEL, SMALL_BUFFER_BYTES, wait_for_backpressure
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

AUTH_HEADERS = {"x-gateway-api-key": "pk-of-one"}
NOTICE, DRAIN = 1.0, 8.0
# Longer than any drain here; a gateway that needs more hangs.
MAX_EXIT_SECONDS = 30


def config_tables(provider: Mock, drain: float = DRAIN) -> dict:
    # The gateway delays its shutdown only if it serves other machines too, for which it needs a key.
    return {
        "server": {"host": "0.0.0.0", "shutdown_delay_seconds": NOTICE, "drain_seconds": drain},
        "keys": [{"name": "k", "key": "pk-of-one"}],
        "mock": {"host": provider.url},
    }


def send_sigterm(gateway: Gateway) -> float:
    gateway.program.process.send_signal(signal.SIGTERM)
    return time.monotonic()


@contextlib.contextmanager
def drain_gateway(gateway: Gateway) -> Iterator[None]:
    """Sends SIGTERM, yields once `/ready` returns 503, and checks that the gateway exits with status 0."""
    send_sigterm(gateway)
    wait_for("not ready", lambda: send_raw_request(gateway.base_url, "/ready").status == 503 or None, 10)
    yield
    assert gateway.program.process.wait(MAX_EXIT_SECONDS) == 0


@pytest.mark.slow(18)
def test_rolling_restart_under_load_fails_no_request(provider: Mock, tmp_path: Path):
    rate, seconds, streams = 500, 14, 40
    headers = {**MOCK_HEADERS, **AUTH_HEADERS}
    with LoadBalancer() as balancer, contextlib.ExitStack() as stack:

        def start_gateway(name: str) -> Gateway:
            folder = tmp_path / name
            folder.mkdir()
            gateway = stack.enter_context(run_gateway(folder, config_tables(provider)))
            balancer.add_gateway(gateway.port)
            wait_for("a gateway at the balancer", lambda: balancer.is_ready(gateway.port) or None, 20)
            return gateway

        first = [start_gateway("a"), start_gateway("b")]
        with (
            run_load(
                "rate", balancer.url + CHAT_PATH, rate=rate, seconds=seconds, connections=16, headers=headers
            ) as calls,
            run_load(
                "stream",
                balancer.url + CHAT_PATH,
                streams=streams,
                seconds=seconds,
                model="mock?chunks=40&chunk_ms=50",
                # A response that began before the drain can no longer announce that its connection closes.
                headers={**headers, "connection": "close"},
                expect_chunks=43,
            ) as streamed,
        ):
            time.sleep(1)
            for number, gateway in enumerate(first):
                start_gateway(f"c{number}")
                began = send_sigterm(gateway)
                assert gateway.program.process.wait(MAX_EXIT_SECONDS) == 0
                assert time.monotonic() - began >= NOTICE
        print(calls, streamed)
        assert balancer.refused == 0
    assert (calls["requests"], calls["errors"]) == (rate * seconds, 0)
    assert (streamed["errors"], streamed["incomplete"]) == (0, 0)
    assert streamed["streams"] >= 2 * streams


def test_drain_closes_keep_alive_connections(provider: Mock, tmp_path: Path):
    with (
        run_gateway(tmp_path, config_tables(provider)) as gateway,
        RawConnection(gateway.base_url) as open_connection,
        RawConnection(gateway.base_url) as idle,
    ):
        headers = {**MOCK_HEADERS, **AUTH_HEADERS}
        assert open_connection.request(CHAT_PATH, chat_body(), headers).get_header("connection") is None
        assert idle.request(CHAT_PATH, chat_body(), headers).status == 200
        with drain_gateway(gateway):
            response = open_connection.request(CHAT_PATH, chat_body(), headers)
            assert (response.status, response.get_header("connection")) == (200, "close")
            assert open_connection.is_closed()
            assert idle.is_closed()


def test_http2_drain_sends_goaway_and_finishes_open_streams(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, config_tables(provider)) as gateway, Http2Connection(gateway.base_url) as line:
        line.send_request(
            1, "POST", CHAT_PATH, {**MOCK_HEADERS, **AUTH_HEADERS}, chat_body("mock?chunks=40&chunk_ms=50", stream=True)
        )
        frames = line.read_frames()
        # The stream has started.
        assert next(kind for kind, _, stream, _ in frames if stream == 1) == HEADERS
        with drain_gateway(gateway):
            received = list(frames)
        data = b"".join(payload for kind, _, stream, payload in received if (kind, stream) == (DATA, 1))
        assert data.endswith(b"data: [DONE]\n\n")
        assert GOAWAY in [kind for kind, *_ in received]


def test_endless_streams_end_at_drain_deadline_with_error_event(provider: Mock, tmp_path: Path):
    drain, count = 2.0, 60
    with run_gateway(tmp_path, config_tables(provider, drain)) as gateway, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(gateway.base_url)) for _ in range(count)]
        for connection in connections:
            connection.send(
                encode_request(
                    "POST",
                    CHAT_PATH,
                    {**MOCK_HEADERS, **AUTH_HEADERS},
                    chat_body("mock?chunks=100000&chunk_ms=250", stream=True),
                )
            )
        heads = [connection.read_head() for connection in connections]
        bodies: dict[int, bytes] = {}

        def read_body(number: int) -> None:
            bodies[number] = b"".join(connections[number].iter_body(heads[number]))

        readers = [threading.Thread(target=read_body, args=(number,)) for number in range(count)]
        for reader in readers:
            reader.start()
        began = send_sigterm(gateway)
        for reader in readers:
            reader.join(MAX_EXIT_SECONDS)
        assert gateway.program.process.wait(MAX_EXIT_SECONDS) == 0
        assert time.monotonic() - began >= drain
    assert {head.end_reason for head in heads} == {"chunk"}
    assert all(b"shutting down" in body.rstrip().rsplit(b"\n\n", 1)[-1] for body in bodies.values())
    records = gateway.records(count)
    assert [(record["outcome"], record["error"]) for record in records] == [("cut", "draining")] * count


def test_stalled_readers_are_aborted_at_the_drain_deadline(provider: Mock, tmp_path: Path):
    drain, silent, quiet = 2.0, 8, 60
    with run_gateway(tmp_path, config_tables(provider, drain)) as gateway, contextlib.ExitStack() as stack:

        def open_stream(model: str, receive_buffer: int | None = None) -> RawConnection:
            connection = stack.enter_context(RawConnection(gateway.base_url, receive_buffer=receive_buffer))
            connection.send(
                encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, **AUTH_HEADERS}, chat_body(model, stream=True))
            )
            return connection

        stuck = [open_stream(LARGE_STREAM_MODEL, SMALL_BUFFER_BYTES) for _ in range(silent)]
        wait_for_backpressure(provider, silent)
        # Each stream uses two file descriptors; the gateway must find those of the stalled clients among them.
        others = [open_stream("mock?chunks=100000&chunk_ms=60000") for _ in range(quiet)]
        heads = [connection.read_head() for connection in others]
        send_sigterm(gateway)
        for connection, head in zip(others, heads, strict=True):
            head.body = b"".join(connection.iter_body(head))
        assert gateway.program.process.wait(MAX_EXIT_SECONDS) == 0
        assert Counter(head.end_reason for head in heads) == {"chunk": quiet}
        assert all(b"shutting down" in head.body for head in heads)
        # On a busy machine some of them got all that their small buffers take, and the error event.
        ends = [connection.read_response() for connection in stuck]
        assert all(end.end_reason == "broken" or b"shutting down" in end.body[-2000:] for end in ends)
        records = gateway.records(silent + quiet)
    assert len(records) == silent + quiet
    assert sum(record["outcome"] == "aborted" for record in records) == silent
