"""Starts gateways for the integration tests and observes them from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.gateway import ROOT, Gateway, find_binary
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, Response, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.gateway import Mock, SettingsTables

# How requests enter: intercepted before they become a task of the event loop, or through such a task.
ENTRY_MODES = ("intercepted", "plain")
LAUNCHER = Path(__file__).with_name("launcher.py")


class BackgroundThread:
    """Runs `_run` in a thread until the block ends; `_run` must stop when `_ended` is set."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


@contextlib.contextmanager
def run_gateway(
    folder: Path,
    tables: SettingsTables,
    entry_mode: str = "intercepted",
    *,
    engine: Mapping[str, object] | None = None,
    burn: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """Runs a gateway and checks at the end that it stops cleanly. `engine` sets options that operators cannot set;
    `burn` adds a CPU-heavy route.
    """
    is_usual = entry_mode == "intercepted" and not engine and not burn
    changes = {
        # A script can import only modules of its own folder.
        "PYTHONPATH": str(ROOT),
        "TEST_INTERCEPT": str(int(entry_mode == "intercepted")),
        "TEST_ENGINE": json.dumps(engine or {}),
        "TEST_BURN": str(int(burn)),
    }
    program = ("-m", "penstock") if is_usual else (LAUNCHER,)
    gateway = Gateway(folder, tables, {**(env or {}), **({} if is_usual else changes)}, program=program)
    try:
        yield gateway
    finally:
        print(gateway.program.read_output())
        gateway.stop()


def get_health(gateway: Gateway) -> Any:
    return send_raw_request(gateway.base_url, "/v1/health", headers={}).json()


def edge_pids(gateway: Gateway, count: int = 1) -> list[int]:
    """Returns the pids of the edge processes, once `count` of them are reported and alive."""

    def live_pids() -> list[int] | None:
        response = send_raw_request(gateway.base_url, "/v1/health", headers={})
        if response.status != 200:
            return None
        # Excludes the supervisor by its pid, the log worker by its name, and the control process by its lower priority.
        others = {gateway.program.pid, *filter(is_log_worker, gateway.pids())}
        pids = [pid for pid in gateway.pids() if pid not in others and has_usual_priority(pid)]
        return sorted(pids) if len(pids) == len(response.json()["workers"]) == count else None

    return wait_for(f"{count} edge processes", live_pids, 15)


def has_usual_priority(pid: int) -> bool:
    try:
        return os.getpriority(os.PRIO_PROCESS, pid) <= 0
    except ProcessLookupError:
        return False


def control_pid(gateway: Gateway, edge_count: int = 1) -> int:
    """Returns the pid of the control process, which is no edge process, nor the log worker, nor the supervisor."""
    others = {gateway.program.pid, *edge_pids(gateway, edge_count)}
    return wait_for(
        "the control process",
        lambda: next((pid for pid in gateway.pids() if pid not in others and not is_log_worker(pid)), None),
    )


def log_worker_pid(gateway: Gateway) -> int:
    """Returns the pid of the log worker."""
    return wait_for("the log worker", lambda: next(filter(is_log_worker, gateway.pids()), None))


def is_log_worker(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "penstock-log"
    return False


def read_metrics(gateway: Gateway) -> dict[str, float]:
    """Returns every metric of `/metrics`, summed over workers and labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(
        send_raw_request(gateway.base_url, "/metrics", headers={}).body.decode()
    ):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def count_settled_records(gateway: Gateway, headers: Mapping[str, str] = MOCK_HEADERS) -> int:
    """Returns the number of records after those of all earlier requests are written."""
    model = f"settled-{uuid.uuid4()}"
    assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(model), headers).status == 200

    def settled_count() -> int | None:
        records = gateway.records(0)
        return len(records) if any(record["ai_model"] == model for record in records) else None

    return wait_for("the records of before", settled_count)


def wait_for_request(mock: Mock, path: str = "", *, ended: bool = False, seconds: float = 5.0) -> dict[str, Any]:
    """Waits for the only request that the provider received (and for its end, if `ended`); returns its ledger entry."""

    def only_entry() -> dict[str, Any] | None:
        received = [entry for entry in mock.ledger() if entry["path"].startswith(path)]
        assert len(received) <= 1, received
        return received[0] if received and not (ended and received[0]["outcome"] == "open") else None

    return wait_for("a request at the provider" + (" and its end" if ended else ""), only_entry, seconds)


def provider_headers(response: Response) -> dict[str, str]:
    """Returns the response headers that must be unchanged from the provider."""
    own = {"connection", "transfer-encoding", "content-length", "server", "date", "x-request-id", "request-id"}
    own.add("x-accel-buffering")
    return {name: value for name, value in response.headers if name not in own and not name.startswith("x-gateway-")}


@contextlib.contextmanager
def run_load(mode: str, url: str, **options: object) -> Iterator[dict[str, Any]]:
    """Runs the load client during the block; afterwards the dictionary holds its report."""
    command: list[str] = [str(find_binary("penstock-load")), mode, "--url", url]
    for name, value in options.items():
        if name == "headers":
            command += [part for field, text in dict(value).items() for part in ("-H", f"{field}: {text}")]
        else:
            command += [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = {}
    try:
        yield report
        report.update(json.loads(process.communicate(timeout=40)[0]))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
