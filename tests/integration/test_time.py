"""Timeout settings as a running gateway applies them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.frames import DATA
from tests.integration.http2 import Http2Connection
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, RawConnection, chat_body, send_raw_request
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock


def test_closes_an_idle_keep_alive_connection(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 200, "keep_alive_ms": 1000}}
    with run_gateway(tmp_path, tables) as running_gateway, RawConnection(running_gateway.base_url) as connection:
        # A connection in use stays open, even for longer than the header timeout.
        for _ in range(3):
            assert connection.request(CHAT_PATH, chat_body()).status == 200
            time.sleep(0.6)
        since = time.monotonic()
        assert connection.is_closed()
        assert time.monotonic() - since > 0.2


def test_header_timeout_applies_on_a_keep_alive_connection(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 30_000}}
    with (
        run_gateway(tmp_path, tables) as running_gateway,
        RawConnection(running_gateway.base_url) as connection,
        RawConnection(running_gateway.base_url) as idle,
    ):
        assert [item.request(CHAT_PATH, chat_body()).status for item in (connection, idle)] == [200, 200]
        time.sleep(0.3)
        since = time.monotonic()
        connection.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n")
        assert connection.is_closed()
        assert time.monotonic() - since > 0.3
        assert idle.request(CHAT_PATH, chat_body("mock?chunks=2&chunk_ms=900", stream=True)).status == 200


def test_closes_an_idle_http2_connection_but_not_an_active_one(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 800}}
    with run_gateway(tmp_path, tables) as running_gateway, Http2Connection(running_gateway.base_url) as line:
        for stream, pause in ((1, 10), (3, 1500)):
            line.send_request(
                stream, "POST", CHAT_PATH, MOCK_HEADERS, chat_body(f"mock?chunks=2&chunk_ms={pause}", stream=True)
            )
            assert line.read_until_ended(stream)[stream].endswith(b"data: [DONE]\n\n")
        since = time.monotonic()
        assert not [kind for kind, *_ in line.read_frames() if kind == DATA]
        assert time.monotonic() - since > 0.5


def test_upstream_timeouts_follow_the_settings(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "upstream": {"request_timeout_ms": 300, "idle_timeout_ms": 150}}
    with run_gateway(tmp_path, tables) as running_gateway:
        response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("mock?fault=silence"))
        assert (response.status, response.json()["error"]["type"]) == (408, "timeout_error")
        assert "300 ms" in response.json()["error"]["message"]
        response = send_raw_request(
            running_gateway.base_url,
            CHAT_PATH,
            chat_body("mock?fault=silence"),
            {**MOCK_HEADERS, "x-gateway-request-timeout": "80"},
        )
        assert "80 ms" in response.json()["error"]["message"]
        response = send_raw_request(
            running_gateway.base_url, CHAT_PATH, chat_body("mock?fault=stall&after=2", stream=True)
        )
        assert (response.status, response.end_reason) == (200, "chunk")
        assert b"no data for 150 ms" in response.events[-1]


def test_sends_heartbeats_during_a_pause_in_a_stream(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"heartbeat_seconds": 0.1}}
    with run_gateway(tmp_path, tables) as running_gateway:
        response = send_raw_request(
            running_gateway.base_url, CHAT_PATH, chat_body("mock?chunks=2&chunk_ms=450", stream=True)
        )
        assert 4 <= response.events.count(b": keep-alive") <= 16
        assert response.events[-1] == b"data: [DONE]"
