"""Running gateway process. Starts it on its core, waits until it responds, and stops its process tree."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare import bodies, ports, processes
from benches.compare.peers.packages import SEARCH_PATH
from benches.compare.peers.peer import LaunchContext, Peer
from benches.compare.processes import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.compare.bodies import RequestSpec

STOP_TIMEOUT_SECONDS = 10
PRESERVED_VARIABLES = ("HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")


class InvalidSample(Exception):  # noqa: N818 - the name describes the sample
    """Raised if a measurement must be discarded; the message is the reason."""


class NotStarted(InvalidSample):
    """Raised if a gateway never responded. It is not started again in this run."""


@dataclass
class RunningGateway:
    """A gateway that responds to requests, with the number of requests sent to it."""

    peer: Peer
    launch: LaunchContext
    process_tree: ProcessTree | None
    startup_seconds: float = 0.0
    """Seconds from the start of the process to its first response."""
    sent_requests: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.launch.port}"

    def request_url(self, request: RequestSpec) -> str:
        return f"http://{self.host}{self.request_path(request)}"

    def request_path(self, request: RequestSpec) -> str:
        return (
            self.peer.chat_path_for_config(request.config)
            if request.config
            else self.peer.chat_path(streamed=request.is_streamed)
        )

    def request_headers(self, request: RequestSpec | None = None) -> dict[str, str]:
        """Returns the headers of every request. If the request uses a saved config, they also select that config."""
        config = request.config if request else ""
        headers = (
            self.peer.headers_for_config(self.launch, config) if config else self.peer.request_headers(self.launch)
        )
        return {**headers, "content-type": "application/json"}

    def request_body(self, request: RequestSpec) -> bytes:
        return request.build_body(self.peer.model_name(request.model))

    def memory_kb(self) -> int:
        return self.process_tree.memory_kb() if self.process_tree else 0


@contextmanager
def run_gateway(peer: Peer, provider: str, core: int | None) -> Iterator[RunningGateway]:
    """Runs the gateway for the duration of the block, in a temporary folder, on one core or on all cores."""
    with tempfile.TemporaryDirectory(prefix=f"compare-{peer.name}-") as folder:
        if not peer.has_process:
            port = int(provider.rpartition(":")[2])
            yield RunningGateway(peer, LaunchContext(port, provider, Path(folder)), None)
            return
        launch = LaunchContext(ports.find_free_port(), provider, Path(folder))
        started_at = time.monotonic()
        process = _start_process(peer, launch, core)
        try:
            gateway = RunningGateway(peer, launch, ProcessTree(process.pid))
            _wait_until_ready(gateway, process, started_at)
            _check_listener(gateway)
            yield gateway
        finally:
            _stop_process_tree(process)


def _start_process(peer: Peer, launch: LaunchContext, core: int | None) -> subprocess.Popen[bytes]:
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, *peer.prepare_command(launch)]
    preserved = {name: os.environ[name] for name in PRESERVED_VARIABLES if name in os.environ}
    environment = {**preserved, "PATH": SEARCH_PATH, **peer.environment()}
    with (launch.folder / "output.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=launch.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_ready(gateway: RunningGateway, process: subprocess.Popen[bytes], started_at: float) -> None:
    status = 0
    while time.monotonic() - started_at < gateway.peer.timeout_seconds:
        status = _probe_status(gateway) or status
        if status == http.HTTPStatus.OK:
            gateway.startup_seconds = time.monotonic() - started_at
            return
        if process.poll() is not None:
            message = f"it ended while starting: {_last_log_lines(gateway.launch)}"
            raise NotStarted(message)
        time.sleep(0.002 if not status else 0.2)
    log_tail = _last_log_lines(gateway.launch)
    message = f"no answer within {gateway.peer.timeout_seconds:g} s (status {status}): {log_tail}"
    raise NotStarted(message)


def _probe_status(gateway: RunningGateway) -> int:
    """Returns the status of one complete response, or 0 if nothing listens yet."""
    try:
        return send_request(gateway, bodies.non_streaming_request()).status
    except (OSError, http.client.HTTPException):
        return 0


def send_request(gateway: RunningGateway, request: RequestSpec) -> http.client.HTTPResponse:
    """Sends one request, reads the complete response and returns it."""
    connection = http.client.HTTPConnection(gateway.host, timeout=gateway.peer.timeout_seconds)
    try:
        connection.request(
            "POST", gateway.request_path(request), gateway.request_body(request), gateway.request_headers(request)
        )
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    gateway.sent_requests += 1
    return response


def _last_log_lines(launch: LaunchContext) -> str:
    lines = (launch.folder / "output.log").read_text(errors="replace").splitlines()
    return " / ".join(line.strip() for line in lines[-3:] if line.strip()) or "no output"


def _check_listener(gateway: RunningGateway) -> None:
    if gateway.process_tree and not ports.is_owned_by(gateway.launch.port, gateway.process_tree.member_pids()):
        message = f"somebody else listens on port {gateway.launch.port}"
        raise InvalidSample(message)


def _stop_process_tree(process: subprocess.Popen[bytes]) -> None:
    running = processes.read_process_table()
    members = [running[pid] for pid in processes.find_descendants(process.pid, running)]
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    remaining = processes.read_process_table()
    for member in members:
        if member.pid in remaining and remaining[member.pid].start_ticks == member.start_ticks:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
