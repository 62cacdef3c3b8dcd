"""Process lifecycle. Killed processes restart, the port never refuses connections, and shutdown is graceful."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fork_server import run_penstock
from tests.gateway import Gateway
from tests.integration.raw_http import (
    CHAT_PATH,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import ENTRY_MODES, BackgroundThread, control_pid, edge_pids, read_metrics, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gateway import Mock

DRAIN_SECONDS = 2.0
# Longer than any exit here, and shorter than the drain of a gateway that should not use it up.
MAX_EXIT_SECONDS, LONG_DRAIN_SECONDS = 20, 120


class ConnectionProbes(BackgroundThread):
    """Opens a connection every two milliseconds, and collects those that are refused."""

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


class RequestLoop(BackgroundThread):
    """Sends requests one after the other, each over its own connection, and collects their statuses."""

    def __init__(self, gateway: Gateway, pause: float = 0.005) -> None:
        super().__init__()
        self.url, self.pause = gateway.base_url, pause
        self.statuses: list[int] = []

    def wait_for_more(self, count: int) -> None:
        """Waits until `count` more requests have a response."""
        goal = len(self.statuses) + count
        wait_for(f"{count} more calls", lambda: len(self.statuses) >= goal or None, 20)

    def _run(self) -> None:
        while not self._ended.wait(self.pause):
            try:
                self.statuses.append(send_raw_request(self.url, CHAT_PATH, chat_body()).status)
            except OSError:
                self.statuses.append(-1)


@pytest.fixture(params=ENTRY_MODES)
def new_gateway(request: pytest.FixtureRequest, provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    with run_gateway(tmp_path, config_tables(provider), request.param) as gateway:
        yield gateway


@pytest.fixture(params=ENTRY_MODES)
def long_draining(request: pytest.FixtureRequest, provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    """Runs a gateway whose tests fail if its exit takes until the drain deadline."""
    tables = config_tables(provider, drain_seconds=LONG_DRAIN_SECONDS)
    with run_gateway(tmp_path, tables, request.param) as gateway:
        yield gateway


def config_tables(provider: Mock, **server: object) -> dict:
    return {
        "mock": {"host": provider.url},
        "metrics": {"enabled": True},
        "server": {"drain_seconds": DRAIN_SECONDS, **server},
    }


# ── killed processes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_process_shows_its_task(provider: Mock, tmp_path: Path):
    # An option of Python keeps the test from starting the gateway as a fork, which cannot change its title.
    program = ("-X", "utf8", "-m", "penstock")
    gateway = Gateway(tmp_path, config_tables(provider), {}, program=program)
    try:
        expected = {f"penstock: supervisor {gateway.port}", "penstock: edge 1", "penstock: control", "penstock: log"}
        wait_for("the titles", lambda: expected == {title.strip() for title in gateway.pids().values()})
    finally:
        gateway.stop()


def test_killed_edge_process_restarts_and_port_never_refuses(new_gateway: Gateway):
    with ConnectionProbes(new_gateway) as probes, RequestLoop(new_gateway) as calls:
        for _ in range(3):
            calls.wait_for_more(20)
            (edge,) = edge_pids(new_gateway)
            os.kill(edge, signal.SIGKILL)
            wait_for("another edge process", lambda dead=edge: edge_pids(new_gateway) != [dead] or None, 15)
            calls.wait_for_more(20)
    assert not probes.refused, probes.refused[:5]
    assert probes.made > 100
    # Only requests in progress in the killed process are lost. A request that waited for the next process was served.
    assert sum(status != 200 for status in calls.statuses) <= 3, calls.statuses


def test_killed_edge_process_loses_only_its_open_streams(new_gateway: Gateway):
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(new_gateway.base_url)) for _ in range(5)]
        for connection in connections:
            connection.send(
                encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=5000&chunk_ms=20", stream=True))
            )
        heads = [connection.read_head() for connection in connections]
        (edge,) = edge_pids(new_gateway)
        os.kill(edge, signal.SIGKILL)
        responses = [b"".join(connection.iter_body(head)) for connection, head in zip(connections, heads, strict=True)]
    assert {head.end_reason for head in heads} == {"broken"}
    assert all(responses)
    assert send_raw_request(new_gateway.base_url, CHAT_PATH, chat_body()).status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="it tells the kernel of Linux when to look")
@pytest.mark.figures
def test_preemption_ticker_wakes_often_only_under_load(new_gateway: Gateway):
    sink = control_pid(new_gateway)
    idle_wakeups = _wakeups_per_second(sink, "penstock-preempt", lambda: time.sleep(1))

    def read_pages() -> None:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert send_raw_request(new_gateway.base_url, "/schema/openapi.json", headers={}).status == 200

    busy = _wakeups_per_second(sink, "penstock-preempt", read_pages)
    assert idle_wakeups < 150
    assert busy > 300


def _wakeups_per_second(process: int, thread: str, meanwhile: Callable[[], None]) -> float:
    """Returns how often per second a thread of the process wakes up while `meanwhile` runs."""
    (its,) = [task for task in Path(f"/proc/{process}/task").iterdir() if (task / "comm").read_text().strip() == thread]

    def count_context_switches() -> int:
        reported = dict(line.split(":", 1) for line in (its / "status").read_text().splitlines())
        return int(reported["voluntary_ctxt_switches"])

    before, began = count_context_switches(), time.monotonic()
    meanwhile()
    return (count_context_switches() - before) / (time.monotonic() - began)


def test_killed_control_process_fails_no_request(new_gateway: Gateway):
    before = len(new_gateway.records(0))
    with ConnectionProbes(new_gateway) as probes, RequestLoop(new_gateway) as calls:
        calls.wait_for_more(20)
        first = control_pid(new_gateway)
        os.kill(first, signal.SIGKILL)
        calls.wait_for_more(50)
        second = wait_for(
            "another control process", lambda: ((pid := control_pid(new_gateway)) != first and pid) or None, 15
        )
        calls.wait_for_more(20)
    assert not probes.refused
    assert set(calls.statuses) == {200}
    assert second != first
    # Includes the records from the time without a control process.
    records = new_gateway.records(before + len(calls.statuses), 15)[before:]
    assert len(records) == len({record["id"] for record in records}) == len(calls.statuses)


def test_requests_continue_while_management_returns_503(new_gateway: Gateway):
    assert send_raw_request(new_gateway.base_url, "/v1/health", headers={}).status == 200
    before = len(new_gateway.records(0))
    first = control_pid(new_gateway)
    os.kill(first, signal.SIGSTOP)
    unanswered = RawConnection(new_gateway.base_url)
    try:
        unanswered.send(encode_request("POST", "/v1/health"))
        for _ in range(20):
            assert send_raw_request(new_gateway.base_url, CHAT_PATH, chat_body()).status == 200
    finally:
        os.kill(first, signal.SIGKILL)
    # The request was sent to the process that died. It is not retried, because it may not be safe to repeat.
    with unanswered:
        response = unanswered.read_response()
    assert response.status == 503
    assert response.get_header("retry-after") == "1"
    assert "restarting" in response.json()["error"]["message"]
    wait_for(
        "management", lambda: send_raw_request(new_gateway.base_url, "/v1/health", headers={}).status == 200 or None, 10
    )
    assert len(new_gateway.records(before + 20, 15)) == before + 20


def test_repeated_control_process_kills_affect_no_other_process(new_gateway: Gateway):
    (edge,) = edge_pids(new_gateway)
    with RequestLoop(new_gateway) as calls:
        for _ in range(4):
            first = control_pid(new_gateway)
            os.kill(first, signal.SIGKILL)
            calls.wait_for_more(5)
            wait_for(
                "another control process",
                lambda dead=first: ((pid := control_pid(new_gateway)) != dead and pid) or None,
                15,
            )
    assert set(calls.statuses) == {200}
    assert edge_pids(new_gateway) == [edge]


def test_a_killed_supervisor_leaves_no_process_behind(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, config_tables(provider)) as gateway:
        edge_pids(gateway)
        with RawConnection(gateway.base_url) as connection:
            connection.send(
                encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=10&chunk_ms=50", stream=True))
            )
            head = connection.read_head()
            gateway.program.process.kill()
            gateway.program.process.wait()
            body = b"".join(connection.iter_body(head))
        assert head.end_reason == "chunk"
        assert b"[DONE]" in body
        wait_for("its children gone", lambda: None if gateway.pids() else True, DRAIN_SECONDS + 8)
        assert [record["outcome"] for record in gateway.records(1)] == ["complete"]


# ── graceful shutdown ─────────────────────────────────────────────────────────────────────────────────────────────────


def send_exit_signal(gateway: Gateway, number: int = signal.SIGTERM) -> float:
    gateway.program.process.send_signal(number)
    return time.monotonic()


def wait_for_exit(gateway: Gateway, since: float) -> float:
    """Waits for the gateway to exit; returns the seconds since the signal."""
    assert gateway.program.process.wait(MAX_EXIT_SECONDS) == 0, gateway.program.read_output()
    elapsed = time.monotonic() - since
    assert not gateway.pids()
    return elapsed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_gateway_exits_at_once(long_draining: Gateway, number: int):
    edge_pids(long_draining)
    wait_for_exit(long_draining, send_exit_signal(long_draining, number))


def test_open_connections_do_not_delay_the_exit(long_draining: Gateway):
    with RawConnection(long_draining.base_url) as idle, RawConnection(long_draining.base_url):
        assert idle.request(CHAT_PATH, chat_body()).status == 200
        wait_for_exit(long_draining, send_exit_signal(long_draining))


def test_running_requests_finish_during_the_drain(new_gateway: Gateway):
    with RawConnection(new_gateway.base_url) as streaming, RawConnection(new_gateway.base_url) as waiting:
        streaming.send(
            encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=20&chunk_ms=50", stream=True))
        )
        waiting.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?first_ms=800")))
        head = streaming.read_head()
        began = send_exit_signal(new_gateway)
        body = b"".join(streaming.iter_body(head))
        response = waiting.read_response()
        wait_for_exit(new_gateway, began)
    assert (head.end_reason, body.count(b"data: ")) == ("chunk", 23)
    assert (response.status, response.end_reason) == (200, "length")
    assert sorted(record["outcome"] for record in new_gateway.records(2)) == ["complete", "complete"]


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
def test_endless_stream_ends_at_drain_deadline_with_error_event(new_gateway: Gateway, path: str):
    with RawConnection(new_gateway.base_url) as connection, RawConnection(new_gateway.base_url) as quiet:
        connection.send(
            encode_request("POST", path, MOCK_HEADERS, chat_body("mock?chunks=100000&chunk_ms=50", stream=True))
        )
        quiet.send(
            encode_request("POST", path, MOCK_HEADERS, chat_body("mock?chunks=100000&chunk_ms=60000", stream=True))
        )
        head, quiet_head = connection.read_head(), quiet.read_head()
        began = send_exit_signal(new_gateway)
        bodies = [b"".join(connection.iter_body(head)), b"".join(quiet.iter_body(quiet_head))]
        reported = time.monotonic() - began
        wait_for_exit(new_gateway, began)
    assert reported > DRAIN_SECONDS - 0.2
    assert (head.end_reason, quiet_head.end_reason) == ("chunk", "chunk")
    for body in bodies:
        last = body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
        assert "shutting down" in json.loads(last.rpartition(b"data: ")[2])["error"]["message"]
    records = new_gateway.records(2)
    assert [(record["outcome"], record["error"]) for record in records] == [("cut", "draining")] * 2


def test_unanswered_request_is_rejected_at_the_drain_deadline(new_gateway: Gateway):
    with RawConnection(new_gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?fault=silence")))
        began = send_exit_signal(new_gateway)
        response = connection.read_response()
        wait_for_exit(new_gateway, began)
    assert (response.status, response.json()["error"]["code"]) == (503, "draining")
    assert [record["outcome"] for record in new_gateway.records(1)] == ["refused"]


def test_stalled_reader_does_not_delay_the_exit(new_gateway: Gateway):
    with RawConnection(new_gateway.base_url, receive_buffer=4096) as connection:
        connection.send(
            encode_request(
                "POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=100000&chunk_bytes=4096", stream=True)
            )
        )
        head = connection.read_head()
        wait_for_exit(new_gateway, send_exit_signal(new_gateway))
        assert b"[DONE]" not in b"".join(connection.iter_body(head))
    (record,) = new_gateway.records(1)
    assert record["outcome"] in {"aborted", "cut"}


def test_stalled_upload_does_not_delay_the_exit(new_gateway: Gateway):
    upload = {**MOCK_HEADERS, "content-type": "text/plain", "content-length": "9000000"}
    with RawConnection(new_gateway.base_url) as connection:
        connection.send(encode_request("POST", "/v1/files", upload, b"only the start"))
        send_raw_request(new_gateway.base_url, CHAT_PATH, chat_body())
        wait_for_exit(new_gateway, send_exit_signal(new_gateway))
        assert connection.read_response().status in {0, 503}
    assert len(new_gateway.records(2)) == 2


def test_is_not_ready_during_the_drain(provider: Mock, tmp_path: Path):
    # The gateway delays its shutdown only if it serves other machines too, for which it needs a key.
    chosen = {
        **config_tables(provider, host="0.0.0.0", shutdown_delay_seconds=1.0),
        "keys": [{"name": "k", "key": "pk-of-one"}],
    }
    with run_gateway(tmp_path, chosen) as gateway:
        began = send_exit_signal(gateway)
        with ConnectionProbes(gateway) as probes:
            wait_for("not ready", lambda: send_raw_request(gateway.base_url, "/ready").status == 503 or None, 2)
            assert (
                send_raw_request(
                    gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": "pk-of-one"}
                ).status
                == 200
            )
        assert not probes.refused
        assert wait_for_exit(gateway, began) >= 1.0


def test_last_records_are_written_at_shutdown(new_gateway: Gateway):
    for number in range(200):
        send_raw_request(new_gateway.base_url, CHAT_PATH, chat_body(f"mock-{number}"))
    wait_for_exit(new_gateway, send_exit_signal(new_gateway))
    assert [record["ai_model"] for record in new_gateway.records(0)] == [f"mock-{number}" for number in range(200)]


def test_records_in_transit_at_shutdown_are_written_once(new_gateway: Gateway):
    """The shutdown begins while one batch of records has been sent but not yet received, and more records wait behind
    it.
    """
    before = len(new_gateway.records(0))
    sink = control_pid(new_gateway)
    os.kill(sink, signal.SIGSTOP)
    try:
        for number in range(40):
            send_raw_request(new_gateway.base_url, CHAT_PATH, chat_body(f"mock-{number}"))
            time.sleep(0.01)
        began = send_exit_signal(new_gateway)
        time.sleep(0.3)
    finally:
        os.kill(sink, signal.SIGCONT)
    wait_for_exit(new_gateway, began)
    models = [record["ai_model"] for record in new_gateway.records(0)[before:]]
    assert sorted(models) == sorted(f"mock-{number}" for number in range(40))


def test_second_signal_ends_the_drain_early(long_draining: Gateway):
    with RawConnection(long_draining.base_url) as connection:
        connection.send(
            encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunks=100000&chunk_ms=50", stream=True))
        )
        connection.read_head()
        began = send_exit_signal(long_draining)
        wait_for("no longer listening", lambda: is_not_serving(long_draining) or None, 10)
        send_exit_signal(long_draining)
        wait_for_exit(long_draining, began)


def is_not_serving(gateway: Gateway) -> bool:
    try:
        return send_raw_request(gateway.base_url, "/ready").status != 200
    except ConnectionRefusedError:
        return True


# ── several workers, and a port in use ────────────────────────────────────────────────────────────────────────────────


def test_two_edge_processes_share_the_port(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, config_tables(provider, workers=2)) as gateway:
        pids = edge_pids(gateway, 2)
        with ConnectionProbes(gateway) as probes:
            for _ in range(100):
                assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 200
        assert not probes.refused
        records = gateway.records(100)
        assert {record["worker"] for record in records} == {1, 2}
        wait_for(
            "both workers' figures", lambda: read_metrics(gateway).get("penstock_records_total", 0) >= 100 or None, 5
        )
        os.kill(pids[0], signal.SIGKILL)
        wait_for("another edge process", lambda: edge_pids(gateway, 2) != pids or None, 15)
        assert pids[1] in edge_pids(gateway, 2)
        for _ in range(20):
            assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 200


def run_failing_serve(gateway_file: Path, folder: Path, *options: str) -> str:
    """Runs `serve` where startup must fail, and returns its error output."""
    done = run_penstock("serve", "--config", str(gateway_file), *options, env={}, cwd=folder, timeout=15)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_port_in_use_is_reported_clearly(gateway: Callable[..., Gateway], tmp_path: Path, workers: int):
    first = gateway()
    file = tmp_path / "second.toml"
    file.write_text(f"[server]\nport = {first.port}\nworkers = {workers}\n")
    content = run_failing_serve(file, tmp_path)
    assert content == f"penstock: cannot listen on 127.0.0.1:{first.port}: address already in use\n"
    assert send_raw_request(first.base_url, CHAT_PATH, chat_body()).status == 200
