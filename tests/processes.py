"""Starts programs for tests, waits until they listen, and kills everything that they leave behind."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.fork_server import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
# Below the system's ephemeral ports. Each pytest-xdist worker has a thousand ports of its own.
FIRST_PORT = 20_000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = itertools.cycle(range(FIRST_PORT, FIRST_PORT + 1000))
LISTENING_PATTERN = re.compile(r"listening on (http://\S+)")


def wait_for(label: str, attempt: Callable[[], T | None], seconds: float = 20.0) -> T:
    """Calls `attempt` until it returns a value that is true, because an empty list, 0 and `None` all mean "not yet";
    raises a `TimeoutError` with `label` after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        if actual := attempt():
            return actual
        if time.monotonic() > deadline:
            raise TimeoutError(f"{label}: not within {seconds} s")
        time.sleep(0.02)


def responds_ok(url: str) -> bool:
    """Returns true if a GET request to a plain HTTP address is answered with 200. Uses no HTTP library, because those
    load the system's certificates first, which takes longer than the start of some programs.
    """
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=2)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    """Returns a port on which nothing listens and which neither the system nor parallel tests will use."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


class Program:
    """A program in its own process session, with its output in a file."""

    def __init__(self, command: Sequence[str | Path], log: Path, *, env: Mapping[str, str], cwd: Path) -> None:
        self.log = log
        words = [str(part) for part in command]
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if ForkedProcess.can_run(words, env):
            log.write_bytes(b"")
            self.process = ForkedProcess(words, log, env, cwd, errors=log)
            return
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_output(self) -> str:
        return self.log.read_text(errors="replace")

    def check_alive(self) -> None:
        """Raises an error with the output of the program if it has exited."""
        if (status := self.process.poll()) is not None:
            raise AssertionError(f"{self.process.args} ended with {status}:\n{self.read_output()}")

    def session_processes(self) -> dict[int, str]:
        """Returns the command line of every live process of the session, by pid."""
        return {pid: command for pid, session, command in _list_processes() if session == self.pid}

    def wait_until_listening(self, seconds: float = 10.0) -> str:
        """Waits for the line that reports the listening address; returns the URL."""

        def find_url() -> str | None:
            self.check_alive()
            match = LISTENING_PATTERN.search(self.read_output())
            return match.group(1) if match else None

        return wait_for(f"{self.process.args} listening", find_url, seconds)

    def stop(self, seconds: float = 10.0) -> int:
        """Sends SIGTERM and returns the exit status; kills the session if it does not exit in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kills the whole session at once."""
        for pid in self.session_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(5)


def _list_processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The command name may contain spaces and parentheses, so the fields are counted from the last parenthesis.
            state, _parent, _group, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            yield int(folder.name), int(session), command
