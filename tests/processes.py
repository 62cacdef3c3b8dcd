"""Starts programs for tests, waits until they listen, and sees to it that nothing of them is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
# Below those that the system chooses from; each of those who run tests side by side has a thousand of them.
FIRST_PORT = 20_000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = itertools.cycle(range(FIRST_PORT, FIRST_PORT + 1000))
LISTENING_PATTERN = re.compile(r"listening on (http://\S+)")


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 5.0) -> T:
    """Look until there is something, and say what was missing if there is nothing in time."""
    deadline = time.monotonic() + seconds
    while True:
        if (found := look()) is not None:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def free_port() -> int:
    """Name a port that nothing listens on, and that is given neither to a client nor to tests that run beside these."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


class Program:
    """A program in a session of its own, with its output in a file."""

    def __init__(self, command: Sequence[str | Path], log: Path, *, env: Mapping[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command],
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
        """Fail with its output if it is gone."""
        if (status := self.process.poll()) is not None:
            raise AssertionError(f"{self.process.args} ended with {status}:\n{self.read_output()}")

    def session_processes(self) -> dict[int, str]:
        """Every live process of its session, by id, with its command line."""
        return {pid: command for pid, session, command in _list_processes() if session == self.pid}

    def wait_until_listening(self, seconds: float = 10.0) -> str:
        """Wait for the line that says where it listens."""

        def find_url() -> str | None:
            self.check_alive()
            match = LISTENING_PATTERN.search(self.read_output())
            return match.group(1) if match else None

        return wait_for(f"{self.process.args} listening", find_url, seconds)

    def stop(self, seconds: float = 10.0) -> int:
        """Ask it to end; kill what does not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the whole session at once."""
        for pid in self.session_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)


def _list_processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The command's name may hold blanks and brackets; the fields are counted from the last bracket.
            state, _parent, _group, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            yield int(folder.name), int(session), command
