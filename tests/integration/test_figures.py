"""Promised performance figures: start time, memory use, and latency of requests under management load."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

import pytest

from tests.integration import memory
from tests.integration.raw_http import CHAT_PATH, RawConnection, chat_body, encode_request, send_raw_request
from tests.integration.serving import BackgroundThread, edge_pids, run_gateway, run_load
from tests.processes import Program, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

pytestmark = pytest.mark.figures

# Factor for the time limits on a busy machine; 2 doubles each of them.
TIME_FACTOR = float(os.environ.get("PENSTOCK_FIGURES_FACTOR", "1"))
MAX_START_SECONDS = 1.0 * TIME_FACTOR
MAX_IDLE_BYTES = 80_000_000
# The promised limit is 1 ms with one core for each process; here four processes share two cores. With one shared
# interpreter the rise was 40 ms.
MAX_P99_RISE_MS = 10 * TIME_FACTOR
MAX_ROUNDS = 4
FIRST_STREAMS, MORE_STREAMS = 300, 500
MAX_STREAM_BYTES = 40 * memory.KIB


def measure_start_seconds(folder: Path, *options: str) -> float:
    """Returns the seconds from the command to the gateway's first response. Without options it creates a store."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock", "serve", *options, "--port", str(port)]
    program = Program(command, folder / "serve.log", env={}, cwd=folder)
    try:
        while time.monotonic() - began < 20:
            try:
                if send_raw_request(f"http://127.0.0.1:{port}", "/ready", headers={}).status == 200:
                    return time.monotonic() - began
            except OSError:
                time.sleep(0.005)
        raise TimeoutError(program.read_output())
    finally:
        program.stop()


@pytest.mark.parametrize("options", [["--no-store"], []], ids=["no-store", "new-store"])
def test_responds_within_a_second_of_its_start(tmp_path: Path, options: list[str]):
    times = [measure_start_seconds(tmp_path / str(number), *options) for number in range(3)]
    assert statistics.median(times) <= MAX_START_SECONDS, times


def test_idle_memory_is_at_most_80_mb(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        edge_pids(gateway)
        for path in (CHAT_PATH, "/v1/messages"):
            # The mock provider reports usage, so no tokens are counted and no vocabulary is loaded.
            send_raw_request(gateway.base_url, path, chat_body("mock?usage=on", stream=True))
        buffered = {pid: memory.pss(pid) for pid in gateway.pids()}
    assert len(buffered) == 3
    total = sum(buffered.values())
    assert total <= MAX_IDLE_BYTES, f"{total / 1e6:.1f} MB: {buffered}"


def test_open_streams_use_little_memory(provider: Mock, tmp_path: Path):
    """Checks the promised limit of 40 KiB for each idle stream, including both of its connections."""
    buffered: list[float] = []
    # In some rounds the allocator has not returned all pages yet, which adds a few KiB for each stream.
    while len(buffered) < MAX_ROUNDS and (not buffered or min(buffered) > MAX_STREAM_BYTES):
        buffered.append(_measure_stream_bytes(provider, tmp_path / str(len(buffered))))
    assert min(buffered) <= MAX_STREAM_BYTES, buffered


def _measure_stream_bytes(provider: Mock, folder: Path) -> float:
    folder.mkdir()
    with run_gateway(folder, {"mock": {"host": provider.url}}) as gateway, contextlib.ExitStack() as streams:
        (edge,) = edge_pids(gateway)
        # The first streams cause the one-time allocations and use up memory that was already free.
        streams.enter_context(OpenStreams(gateway.base_url, FIRST_STREAMS))
        before = memory.pss(edge)
        opened = streams.enter_context(OpenStreams(gateway.base_url, MORE_STREAMS))
        grown = (memory.pss(edge) - before) / MORE_STREAMS
        assert opened.completion_states() == {True}
    return grown


class OpenStreams:
    """Client connections of streams that were all opened together and have received their response heads."""

    def __init__(self, url: str, count: int) -> None:
        self._connections = [RawConnection(url) for _ in range(count)]
        for connection in self._connections:
            connection.send(
                encode_request(
                    "POST", CHAT_PATH, _mock_headers(), chat_body("mock?chunks=3&chunk_ms=3000", stream=True)
                )
            )
        self._heads = [connection.read_head() for connection in self._connections]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def completion_states(self) -> set[bool]:
        """Returns the set of outcomes; true stands for a stream that ended with `[DONE]`."""
        return {
            b"[DONE]" in b"".join(connection.iter_body(head))
            for connection, head in zip(self._connections, self._heads, strict=True)
        }


def _mock_headers() -> dict[str, str]:
    return {"x-gateway-provider": "mock", "content-type": "application/json"}


def test_busy_management_interpreter_hardly_delays_requests(provider: Mock, tmp_path: Path):
    options = {"rate": 200, "connections": 8, "seconds": 2.5, "headers": {"x-gateway-provider": "mock"}}
    rises: list[float] = []
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, burn=True) as gateway:
        edge_pids(gateway)
        # Other load on this machine varies between rounds; a shared interpreter would delay requests in every round.
        while len(rises) < MAX_ROUNDS and (not rises or min(rises) > MAX_P99_RISE_MS):
            with run_load("rate", gateway.base_url + CHAT_PATH, **options) as idle:
                pass
            with (
                ManagementLoad(gateway.base_url) as burning,
                run_load("rate", gateway.base_url + CHAT_PATH, **options) as busy,
            ):
                pass
            assert (idle["errors"], busy["errors"]) == (0, 0)
            assert burning.answers >= 2
            rises.append((busy["p99_us"] - idle["p99_us"]) / 1000)
    assert min(rises) <= MAX_P99_RISE_MS, f"p99 rose by {rises} ms"


class ManagementLoad(BackgroundThread):
    """Requests a route again and again that runs Python code for one second."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.answers = url, 0

    def _run(self) -> None:
        with RawConnection(self.url) as connection:
            while not self._ended.is_set():
                assert connection.request("/v1/health/burn", headers={}).body == b"burnt"
                self.answers += 1


def test_management_flood_fails_no_request(provider: Mock, tmp_path: Path):
    options = {"rate": 100, "connections": 8, "seconds": 2, "headers": {"x-gateway-provider": "mock"}}
    urls = ("/v1/health", "/schema/openapi.json", "/v1/version")
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}) as gateway, contextlib.ExitStack() as floods:
        flood = {"connections": 4, "seconds": 2, "method": "GET"}
        reports = [floods.enter_context(run_load("whole", gateway.base_url + url, **flood)) for url in urls]
        with run_load("rate", gateway.base_url + CHAT_PATH, **options) as calls:
            pass
        floods.close()
    assert calls["errors"] == 0
    assert calls["requests"] >= 180
    assert all(report["errors"] == 0 and report["requests"] > 50 for report in reports), reports


def test_commands_without_a_server_are_quick(tmp_path: Path):
    times = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "penstock", "version"], check=True, capture_output=True, cwd=tmp_path)
        times.append(time.monotonic() - began)
    assert statistics.median(times) <= MAX_START_SECONDS, times
