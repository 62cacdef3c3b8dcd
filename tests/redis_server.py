"""Redis server for one test. It stores nothing on disk, and can be frozen and killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from typing import TYPE_CHECKING

from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from pathlib import Path


class RedisServer:
    """One Redis server on loopback, with a password."""

    PASSWORD = "redis-password-of-the-tests"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://:{self.PASSWORD}@127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Starts the server, or a new one after it was killed."""
        actual = shutil.which("redis-server")
        if actual is None:
            raise FileNotFoundError("redis-server is missing; hint: make test")
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self.folder}
        body = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [actual, *body, "--requirepass", self.PASSWORD]
        self.program = Program(command, self.folder / "redis.log", env={}, cwd=self.folder)
        wait_for("Redis", self._is_ready, 10)

    def suspend(self) -> None:
        """Suspends the server with SIGSTOP."""
        os.kill(self.program.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the server with SIGCONT."""
        os.kill(self.program.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.program.kill()

    def _is_ready(self) -> bool | None:
        self.program.check_alive()
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 or None
