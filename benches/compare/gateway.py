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
from benches.compare.peers.packages import SEARCHED
from benches.compare.peers.peer import Peer, Stand
from benches.compare.processes import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.compare.bodies import Ask

STOP_SECONDS = 10
KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")


class Invalid(Exception):  # noqa: N818 - says what the sample is
    """Raised if a measurement must be discarded; the message is the reason."""


class NotStarted(Invalid):
    """Raised if a gateway never responded. It is not started again in this run."""


@dataclass
class Gateway:
    """A gateway that responds to requests, with the number of requests sent to it."""

    peer: Peer
    stand: Stand
    tree: Tree | None
    started: float = 0.0
    """Seconds from start to first answer."""
    sent: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.stand.port}"

    def url(self, ask: Ask) -> str:
        return f"http://{self.host}{self.path(ask)}"

    def path(self, ask: Ask) -> str:
        return self.peer.path_routed(ask.config) if ask.config else self.peer.path(streamed=ask.streamed)

    def headers(self, ask: Ask | None = None) -> dict[str, str]:
        """Returns the headers of every request. If the request uses a saved config, they also select that config."""
        config = ask.config if ask else ""
        said = self.peer.headers_routed(self.stand, config) if config else self.peer.headers(self.stand)
        return {**said, "content-type": "application/json"}

    def body(self, ask: Ask) -> bytes:
        return ask.body(self.peer.model(ask.model))

    def memory_kb(self) -> int:
        return self.tree.memory_kb() if self.tree else 0


@contextmanager
def running(peer: Peer, provider: str, core: int | None) -> Iterator[Gateway]:
    """Runs the gateway for the duration of the block, in a temporary folder, on one core or on all cores."""
    with tempfile.TemporaryDirectory(prefix=f"compare-{peer.name}-") as folder:
        if not peer.process:
            port = int(provider.rpartition(":")[2])
            yield Gateway(peer, Stand(port, provider, Path(folder)), None)
            return
        stand = Stand(ports.free(), provider, Path(folder))
        began = time.monotonic()
        process = _start(peer, stand, core)
        try:
            gateway = Gateway(peer, stand, Tree(process.pid))
            _await_answer(gateway, process, began)
            _check_listener(gateway)
            yield gateway
        finally:
            _stop(process)


def _start(peer: Peer, stand: Stand, core: int | None) -> subprocess.Popen[bytes]:
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, *peer.command(stand)]
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment = {**kept, "PATH": SEARCHED, **peer.environment()}
    with (stand.folder / "output.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=stand.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _await_answer(gateway: Gateway, process: subprocess.Popen[bytes], began: float) -> None:
    status = 0
    while time.monotonic() - began < gateway.peer.patience:
        status = _ask(gateway) or status
        if status == http.HTTPStatus.OK:
            gateway.started = time.monotonic() - began
            return
        if process.poll() is not None:
            message = f"it ended while starting: {_last_words(gateway.stand)}"
            raise NotStarted(message)
        time.sleep(0.002 if not status else 0.2)
    said = _last_words(gateway.stand)
    message = f"no answer within {gateway.peer.patience:g} s (status {status}): {said}"
    raise NotStarted(message)


def _ask(gateway: Gateway) -> int:
    """Returns the status of one complete response, or 0 if nothing listens yet."""
    try:
        return answered(gateway, bodies.whole()).status
    except (OSError, http.client.HTTPException):
        return 0


def answered(gateway: Gateway, ask: Ask) -> http.client.HTTPResponse:
    """Sends one request, reads the complete response and returns it."""
    connection = http.client.HTTPConnection(gateway.host, timeout=gateway.peer.patience)
    try:
        connection.request("POST", gateway.path(ask), gateway.body(ask), gateway.headers(ask))
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    gateway.sent += 1
    return answer


def _last_words(stand: Stand) -> str:
    said = (stand.folder / "output.log").read_text(errors="replace").splitlines()
    return " / ".join(line.strip() for line in said[-3:] if line.strip()) or "no output"


def _check_listener(gateway: Gateway) -> None:
    if gateway.tree and not ports.held_by(gateway.stand.port, gateway.tree.members()):
        message = f"somebody else listens on port {gateway.stand.port}"
        raise Invalid(message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    running = processes.table()
    members = [running[pid] for pid in processes.descendants(process.pid, running)]
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = processes.table()
    for member in members:
        if member.pid in left and left[member.pid].started == member.started:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
