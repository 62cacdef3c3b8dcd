"""Processes come and go: killed ones come back, the port never refuses, and the end of it all is orderly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.serving import WAYS, Beside, control, counters, edges, running
from tests.integration.wire import CHAT, MESSAGES, MOCK, Wire, ask, asked, request
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gateway import Gateway, Mock

DRAIN = 2.0


class Probes(Beside):
    """Connects every two milliseconds, and counts who is refused."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        at = urllib.parse.urlsplit(gateway.base_url)
        self.address = (at.hostname, at.port)
        self.made, self.refused = 0, []

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            try:
                socket.create_connection(self.address, timeout=5).close()
                self.made += 1
            except OSError as error:
                self.refused.append(repr(error))


class Calls(Beside):
    """One caller after the other, each with a connection of its own; what they got is kept."""

    def __init__(self, gateway: Gateway, pause: float = 0.005) -> None:
        super().__init__()
        self.url, self.pause = gateway.base_url, pause
        self.statuses: list[int] = []

    def more(self, count: int) -> None:
        """Wait until that many more were answered."""
        goal = len(self.statuses) + count
        wait(f"{count} more calls", lambda: len(self.statuses) >= goal or None, 20)

    def _run(self) -> None:
        while not self._ended.wait(self.pause):
            try:
                self.statuses.append(ask(self.url, CHAT, asked()).status)
            except OSError:
                self.statuses.append(-1)


@pytest.fixture(params=WAYS)
def fresh(request: pytest.FixtureRequest, provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path, tables(provider), request.param) as gateway:
        yield gateway


def tables(provider: Mock, **server: object) -> dict:
    return {"mock": {"host": provider.url}, "metrics": {"enabled": True}, "server": {"drain_seconds": DRAIN, **server}}


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_edge_process_comes_back_and_the_port_never_refuses(fresh: Gateway):
    with Probes(fresh) as probes, Calls(fresh) as calls:
        for _ in range(3):
            calls.more(20)
            (edge,) = edges(fresh)
            os.kill(edge, signal.SIGKILL)
            killed = time.monotonic()
            wait("another edge process", lambda dead=edge: edges(fresh) != [dead] or None, 15)
            calls.more(20)
            took = time.monotonic() - killed
    assert not probes.refused, probes.refused[:5]
    assert probes.made > 100
    # What was under way in it is lost, nothing else; and where a call waited for the next process, it was served.
    assert sum(status != 200 for status in calls.statuses) <= 3, calls.statuses
    assert took < 10


def test_only_what_was_under_way_in_a_killed_edge_process_is_lost(fresh: Gateway):
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(fresh.base_url)) for _ in range(5)]
        for wire in wires:
            wire.send(request("POST", CHAT, MOCK, asked("mock?chunks=5000&chunk_ms=20", stream=True)))
        heads = [wire.head() for wire in wires]
        (edge,) = edges(fresh)
        os.kill(edge, signal.SIGKILL)
        answers = [b"".join(wire.pieces(head)) for wire, head in zip(wires, heads, strict=True)]
    assert {head.end for head in heads} == {"broken"}
    assert all(answers)
    assert ask(fresh.base_url, CHAT, asked()).status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="it tells the kernel of Linux when to look")
def test_turns_of_a_busy_control_process_end_in_time(fresh: Gateway):
    taker = control(fresh)
    calm = _wakings(taker, "penstock-turns", lambda: time.sleep(1))

    def read_pages() -> None:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert ask(fresh.base_url, "/schema/openapi.json", headers={}).status == 200

    busy = _wakings(taker, "penstock-turns", read_pages)
    assert calm < 150
    assert busy > 300


def _wakings(process: int, thread: str, meanwhile: Callable[[], None]) -> float:
    """How often a second it was woken."""
    (its,) = [task for task in Path(f"/proc/{process}/task").iterdir() if (task / "comm").read_text().strip() == thread]

    def count() -> int:
        told = dict(line.split(":", 1) for line in (its / "status").read_text().splitlines())
        return int(told["voluntary_ctxt_switches"])

    before, began = count(), time.monotonic()
    meanwhile()
    return (count() - before) / (time.monotonic() - began)


def test_a_killed_control_process_is_missed_by_no_call(fresh: Gateway):
    before = len(fresh.records(0))
    with Probes(fresh) as probes, Calls(fresh) as calls:
        calls.more(20)
        first = control(fresh)
        os.kill(first, signal.SIGKILL)
        calls.more(50)
        second = wait("another control process", lambda: ((pid := control(fresh)) != first and pid) or None, 15)
        calls.more(20)
    assert not probes.refused
    assert set(calls.statuses) == {200}
    assert second != first
    # Also those from the time when nobody took them.
    records = fresh.records(before + len(calls.statuses), 15)[before:]
    assert len(records) == len({record["id"] for record in records}) == len(calls.statuses)


def test_while_there_is_no_control_process_calls_go_on_and_management_says_so(fresh: Gateway):
    assert ask(fresh.base_url, "/v1/health", headers={}).status == 200
    before = len(fresh.records(0))
    first = control(fresh)
    os.kill(first, signal.SIGSTOP)
    asked_in_vain = Wire(fresh.base_url)
    try:
        asked_in_vain.send(request("POST", "/v1/health"))
        for _ in range(20):
            assert ask(fresh.base_url, CHAT, asked()).status == 200
    finally:
        os.kill(first, signal.SIGKILL)
    # Sent to the process that died; what is not sure to be harmless twice is not sent twice.
    with asked_in_vain:
        answer = asked_in_vain.answer()
    assert answer.status == 503
    assert answer.get("retry-after") == "1"
    assert "restarting" in answer.json()["error"]["message"]
    wait("management", lambda: ask(fresh.base_url, "/v1/health", headers={}).status == 200 or None, 10)
    assert len(fresh.records(before + 20, 15)) == before + 20


def test_a_control_process_that_keeps_dying_takes_nobody_along(fresh: Gateway):
    (edge,) = edges(fresh)
    with Calls(fresh) as calls:
        for _ in range(4):
            first = control(fresh)
            os.kill(first, signal.SIGKILL)
            calls.more(5)
            wait("another control process", lambda dead=first: ((pid := control(fresh)) != dead and pid) or None, 15)
    assert set(calls.statuses) == {200}
    assert edges(fresh) == [edge]


def test_a_killed_supervisor_leaves_no_process_behind(provider: Mock, tmp_path: Path):
    with running(tmp_path, tables(provider)) as gateway:
        edges(gateway)
        with Wire(gateway.base_url) as wire:
            wire.send(request("POST", CHAT, MOCK, asked("mock?chunks=10&chunk_ms=50", stream=True)))
            head = wire.head()
            gateway.program.process.kill()
            gateway.program.process.wait()
            body = b"".join(wire.pieces(head))
        assert head.end == "chunk"
        assert b"[DONE]" in body
        wait("its children gone", lambda: None if gateway.pids() else True, DRAIN + 8)
        assert [record["outcome"] for record in gateway.records(1)] == ["complete"]


# ── told to end ──────────────────────────────────────────────────────────────────────────────────────────────────────


def end(gateway: Gateway, number: int = signal.SIGTERM) -> float:
    gateway.program.process.send_signal(number)
    return time.monotonic()


def ended(gateway: Gateway, since: float, at_most: float) -> float:
    """Wait for its end, and give the time it took."""
    assert gateway.program.process.wait(at_most + 10) == 0, gateway.program.output()
    took = time.monotonic() - since
    assert not gateway.pids()
    assert took < at_most, took
    return took


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_nothing_to_do_it_ends_at_once(fresh: Gateway, number: int):
    edges(fresh)
    ended(fresh, end(fresh, number), DRAIN)


def test_an_open_connection_does_not_hold_the_end_up(fresh: Gateway):
    with Wire(fresh.base_url) as idle, Wire(fresh.base_url):
        assert idle.ask(CHAT, asked()).status == 200
        ended(fresh, end(fresh), DRAIN + 1)


def test_what_is_under_way_finishes(fresh: Gateway):
    with Wire(fresh.base_url) as streaming, Wire(fresh.base_url) as waiting:
        streaming.send(request("POST", CHAT, MOCK, asked("mock?chunks=20&chunk_ms=50", stream=True)))
        waiting.send(request("POST", CHAT, MOCK, asked("mock?first_ms=800")))
        head = streaming.head()
        began = end(fresh)
        body = b"".join(streaming.pieces(head))
        answer = waiting.answer()
        ended(fresh, began, DRAIN + 1)
    assert (head.end, body.count(b"data: ")) == ("chunk", 23)
    assert (answer.status, answer.end) == (200, "length")
    assert sorted(record["outcome"] for record in fresh.records(2)) == ["complete", "complete"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_endless_stream_ends_at_the_deadline_with_an_error_event(fresh: Gateway, path: str):
    with Wire(fresh.base_url) as wire, Wire(fresh.base_url) as quiet:
        wire.send(request("POST", path, MOCK, asked("mock?chunks=100000&chunk_ms=50", stream=True)))
        quiet.send(request("POST", path, MOCK, asked("mock?chunks=100000&chunk_ms=60000", stream=True)))
        head, quiet_head = wire.head(), quiet.head()
        began = end(fresh)
        bodies = [b"".join(wire.pieces(head)), b"".join(quiet.pieces(quiet_head))]
        told = time.monotonic() - began
        ended(fresh, began, DRAIN + 1)
    assert DRAIN - 0.2 < told < DRAIN + 1
    assert (head.end, quiet_head.end) == ("chunk", "chunk")
    for body in bodies:
        last = body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
        assert "shutting down" in json.loads(last.rpartition(b"data: ")[2])["error"]["message"]
    records = fresh.records(2)
    assert [(record["outcome"], record["error"]) for record in records] == [("cut", "draining")] * 2


def test_what_never_answers_is_refused_at_the_deadline(fresh: Gateway):
    with Wire(fresh.base_url) as wire:
        wire.send(request("POST", CHAT, MOCK, asked("mock?fault=silence")))
        began = end(fresh)
        answer = wire.answer()
        ended(fresh, began, DRAIN + 1)
    assert (answer.status, answer.json()["error"]["code"]) == (503, "draining")
    assert [record["outcome"] for record in fresh.records(1)] == ["refused"]


def test_a_caller_who_never_reads_does_not_hold_the_end_up(fresh: Gateway):
    with Wire(fresh.base_url, receive_buffer=4096) as wire:
        wire.send(request("POST", CHAT, MOCK, asked("mock?chunks=100000&chunk_bytes=4096", stream=True)))
        head = wire.head()
        ended(fresh, end(fresh), DRAIN + 1)
        assert b"[DONE]" not in b"".join(wire.pieces(head))
    (record,) = fresh.records(1)
    assert record["outcome"] in {"aborted", "cut"}


def test_an_upload_that_does_not_come_does_not_hold_the_end_up(fresh: Gateway):
    upload = {**MOCK, "content-type": "text/plain", "content-length": "9000000"}
    with Wire(fresh.base_url) as wire:
        wire.send(request("POST", "/v1/files", upload, b"only the start"))
        ask(fresh.base_url, CHAT, asked())
        ended(fresh, end(fresh), DRAIN + 1)
        assert wire.answer().status in {0, 503}
    assert len(fresh.records(2)) == 2


def test_it_is_not_ready_while_it_drains(provider: Mock, tmp_path: Path):
    # Known to more than this machine it gives notice; a key makes that allowed.
    chosen = {**tables(provider, host="0.0.0.0", notice_seconds=1.0), "keys": [{"name": "k", "key": "pk-of-one"}]}
    with running(tmp_path, chosen) as gateway:
        began = end(gateway)
        with Probes(gateway) as probes:
            wait("not ready", lambda: ask(gateway.base_url, "/ready").status == 503 or None, 2)
            assert ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": "pk-of-one"}).status == 200
        assert not probes.refused
        assert ended(gateway, began, DRAIN + 1) >= 1.0


def test_the_last_records_are_written(fresh: Gateway):
    for number in range(200):
        ask(fresh.base_url, CHAT, asked(f"mock-{number}"))
    ended(fresh, end(fresh), DRAIN + 1)
    assert [record["ai_model"] for record in fresh.records(0)] == [f"mock-{number}" for number in range(200)]


def test_records_that_are_just_leaving_are_written_once(fresh: Gateway):
    """The end comes while a batch has been sent and not been taken yet, and others wait behind it."""
    before = len(fresh.records(0))
    taker = control(fresh)
    os.kill(taker, signal.SIGSTOP)
    try:
        for number in range(40):
            ask(fresh.base_url, CHAT, asked(f"mock-{number}"))
            time.sleep(0.01)
        began = end(fresh)
        time.sleep(0.3)
    finally:
        os.kill(taker, signal.SIGCONT)
    ended(fresh, began, DRAIN + 1)
    models = [record["ai_model"] for record in fresh.records(0)[before:]]
    assert sorted(models) == sorted(f"mock-{number}" for number in range(40))


def test_asked_twice_it_ends_without_patience(fresh: Gateway):
    with Wire(fresh.base_url) as wire:
        wire.send(request("POST", CHAT, MOCK, asked("mock?chunks=100000&chunk_ms=50", stream=True)))
        wire.head()
        began = end(fresh)
        wait("no longer listening", lambda: is_refused(fresh) or None, 3)
        end(fresh)
        ended(fresh, began, DRAIN)


def is_refused(gateway: Gateway) -> bool:
    try:
        return ask(gateway.base_url, "/ready").status != 200
    except ConnectionRefusedError:
        return True


# ── several, and none ────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_edge_processes_share_the_port(provider: Mock, tmp_path: Path):
    with running(tmp_path, tables(provider, workers=2)) as gateway:
        pids = edges(gateway, 2)
        with Probes(gateway) as probes:
            for _ in range(100):
                assert ask(gateway.base_url, CHAT, asked()).status == 200
        assert not probes.refused
        records = gateway.records(100)
        assert {record["worker"] for record in records} == {1, 2}
        wait("both workers' figures", lambda: counters(gateway)["penstock_records_total"] >= 100 or None, 5)
        os.kill(pids[0], signal.SIGKILL)
        wait("another edge process", lambda: edges(gateway, 2) != pids or None, 15)
        assert pids[1] in edges(gateway, 2)
        for _ in range(20):
            assert ask(gateway.base_url, CHAT, asked()).status == 200


def failing(gateway_file: Path, folder: Path, *options: str) -> str:
    """Run `serve` where it must fail, and give what it said."""
    command = [sys.executable, "-m", "penstock", "serve", "--config", gateway_file, *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=15, env={}, cwd=folder)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_in_use_is_said_clearly(gateway: Callable[..., Gateway], tmp_path: Path, workers: int):
    first = gateway()
    file = tmp_path / "second.toml"
    file.write_text(f"[server]\nport = {first.port}\nworkers = {workers}\n")
    said = failing(file, tmp_path)
    assert said == f"penstock: cannot listen on 127.0.0.1:{first.port}: address already in use\n"
    assert ask(first.base_url, CHAT, asked()).status == 200
