"""Figures that the gateway promises: how fast it starts, how little it holds, how little management disturbs it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.integration import memory
from tests.integration.serving import edges, load, running
from tests.integration.wire import CHAT, Wire, ask, asked, request
from tests.processes import Program, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

# A machine that does much else at once may give more room: 2 doubles every time allowed here.
FACTOR = float(os.environ.get("PENSTOCK_FIGURES_FACTOR", "1"))
START_SECONDS = 1.0 * FACTOR
IDLE_BYTES = 80 * memory.MIB
CALM_SECONDS = 4


def start_to_answer(folder: Path) -> float:
    """Seconds from the command to the first answer of the gateway."""
    port = free_port()
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock", "serve", "--port", str(port)]
    program = Program(command, folder / "serve.log", env={}, cwd=folder)
    try:
        while time.monotonic() - began < 20:
            try:
                if ask(f"http://127.0.0.1:{port}", "/ready", headers={}).status == 200:
                    return time.monotonic() - began
            except OSError:
                time.sleep(0.005)
        raise TimeoutError(program.output())
    finally:
        program.stop()


def test_it_answers_within_a_second_of_its_start(tmp_path: Path):
    times = [start_to_answer(tmp_path) for _ in range(3)]
    assert statistics.median(times) <= START_SECONDS, times


def test_idle_it_holds_at_most_80_mib(provider: Mock, tmp_path: Path):
    with running(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        edges(gateway)
        for path in (CHAT, "/v1/messages"):
            ask(gateway.base_url, path, asked(stream=True))
        ask(gateway.base_url, "/schema/openapi.json", headers={})
        held = {pid: memory.pss(pid) for pid in gateway.pids()}
    assert len(held) == 3
    total = sum(held.values())
    assert total <= IDLE_BYTES, f"{total / memory.MIB:.1f} MiB: {held}"


def test_open_streams_hold_little(provider: Mock, tmp_path: Path):
    """500 quiet streams: the promise is 40 KiB for each, both of its connections in one."""
    with running(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        (edge,) = edges(gateway)
        ask(gateway.base_url, CHAT, asked(stream=True))
        before = memory.pss(edge)
        wires = [Wire(gateway.base_url) for _ in range(500)]
        try:
            for wire in wires:
                wire.send(request("POST", CHAT, _mock(), asked("mock?chunks=4&chunk_ms=700", stream=True)))
            heads = [wire.head() for wire in wires]
            grown = (memory.pss(edge) - before) / len(wires)
            ends = {b"[DONE]" in b"".join(wire.pieces(head)) for wire, head in zip(wires, heads, strict=True)}
        finally:
            for wire in wires:
                wire.close()
    assert ends == {True}
    assert grown <= 40 * memory.KIB, f"{grown / memory.KIB:.1f} KiB for each stream"


def _mock() -> dict[str, str]:
    return {"x-gateway-provider": "mock", "content-type": "application/json"}


def test_a_flood_of_management_requests_hardly_disturbs_calls(provider: Mock, tmp_path: Path):
    options = {"rate": 200, "connections": 8, "seconds": CALM_SECONDS, "headers": {"x-gateway-provider": "mock"}}
    with running(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        edges(gateway)
        with load("rate", gateway.base_url + CHAT, **options) as calm:
            pass
        with Flood(gateway.base_url) as flood, load("rate", gateway.base_url + CHAT, **options) as flooded:
            pass
    assert (calm["errors"], flooded["errors"]) == (0, 0)
    assert flood.answers > 100
    rise = (flooded["p99_us"] - calm["p99_us"]) / 1000
    # The promise is 1 ms on cores of its own; here the flood's own sender and Litestar share two cores with the calls.
    assert rise <= 25 * FACTOR, f"p99 {calm['p99_us']} µs alone, {flooded['p99_us']} µs beside {flood.answers} answers"


class Flood:
    """Asks for the description, the dearest thing that management does, over and over."""

    def __init__(self, url: str) -> None:
        self.url, self.answers = url, 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with Wire(self.url) as wire:
            while not self._ended.is_set():
                assert wire.ask("/schema/openapi.json", headers={}).status == 200
                self.answers += 1


def test_the_commands_that_need_no_server_are_quick(tmp_path: Path):
    times = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "penstock", "version"], check=True, capture_output=True, cwd=tmp_path)
        times.append(time.monotonic() - began)
    assert statistics.median(times) <= START_SECONDS, times
