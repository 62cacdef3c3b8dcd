"""What an operator sets about time holds in a running gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.frames import DATA
from tests.integration.http2 import Http2Connection
from tests.integration.serving import run_gateway
from tests.integration.wire import CHAT, MOCK, Wire, ask, asked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock


def test_a_kept_connection_that_is_idle_for_too_long_is_closed(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 200, "keep_alive_ms": 1000}}
    with run_gateway(tmp_path, tables) as served, Wire(served.base_url) as wire:
        # As long as it is used it stays, for longer than a head may take.
        for _ in range(3):
            assert wire.ask(CHAT, asked()).status == 200
            time.sleep(0.6)
        since = time.monotonic()
        assert wire.is_closed()
        assert 0.2 < time.monotonic() - since < 3


def test_a_head_that_begins_on_a_kept_connection_and_does_not_end_is_not_waited_for(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 30_000}}
    with run_gateway(tmp_path, tables) as served, Wire(served.base_url) as wire, Wire(served.base_url) as idle:
        assert [one.ask(CHAT, asked()).status for one in (wire, idle)] == [200, 200]
        time.sleep(0.3)
        since = time.monotonic()
        wire.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n")
        assert wire.is_closed()
        assert 0.3 < time.monotonic() - since < 3
        assert idle.ask(CHAT, asked("mock?chunks=2&chunk_ms=900", stream=True)).status == 200


def test_an_idle_connection_of_http_2_is_closed_and_one_with_a_request_is_not(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 800}}
    with run_gateway(tmp_path, tables) as served, Http2Connection(served.base_url) as line:
        for stream, pause in ((1, 10), (3, 1500)):
            line.send_request(stream, "POST", CHAT, MOCK, asked(f"mock?chunks=2&chunk_ms={pause}", stream=True))
            assert line.read_until_ended(stream)[stream].endswith(b"data: [DONE]\n\n")
        since = time.monotonic()
        assert not [kind for kind, *_ in line.read_frames() if kind == DATA]
        assert 0.5 < time.monotonic() - since < 4


def test_the_providers_times_are_those_of_the_settings(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "upstream": {"request_timeout_ms": 300, "idle_timeout_ms": 150}}
    with run_gateway(tmp_path, tables) as served:
        answer = ask(served.base_url, CHAT, asked("mock?fault=silence"))
        assert (answer.status, answer.json()["error"]["type"]) == (408, "timeout_error")
        assert "300 ms" in answer.json()["error"]["message"]
        answer = ask(served.base_url, CHAT, asked("mock?fault=silence"), {**MOCK, "x-gateway-request-timeout": "80"})
        assert "80 ms" in answer.json()["error"]["message"]
        answer = ask(served.base_url, CHAT, asked("mock?fault=stall&after=2", stream=True))
        assert (answer.status, answer.end) == (200, "chunk")
        assert b"nothing came for 150 ms" in answer.events[-1]


def test_a_pause_in_a_stream_is_filled_as_the_setting_says(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"heartbeat_seconds": 0.1}}
    with run_gateway(tmp_path, tables) as served:
        answer = ask(served.base_url, CHAT, asked("mock?chunks=2&chunk_ms=450", stream=True))
        assert 4 <= answer.events.count(b": keep-alive") <= 16
        assert answer.events[-1] == b"data: [DONE]"
