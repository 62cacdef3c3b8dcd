"""A child process of the supervisor: how it is started, signalled, and restarted if it exits unexpectedly."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# Delay in seconds before the second restart of a process that keeps exiting; it doubles with each further restart.
FIRST_PAUSE = 0.1
STABLE_AFTER_SECONDS = 5.0
MAX_FAILED_STARTS = 3


class ProcessFactory(Protocol):
    """Creates the process of a child."""

    def prepare_worker(self, load: Callable[[], Any]) -> multiprocessing.Process:
        """Returns a process that runs `load` once it is started."""
        ...


class PlainFactory:
    """Creates processes that run a function, without Granian."""

    def prepare_worker(self, load: Callable[[], Any]) -> Any:  # noqa: ANN401 - the class depends on the start method
        """Returns a process that calls `load` once it is started."""
        return multiprocessing.get_context("fork").Process(target=load)


class ChildProcess:
    """One child process. The supervisor restarts it if it exits unexpectedly."""

    def __init__(
        self,
        name: str,
        server: ProcessFactory,
        load: Callable[[], Any],
        longest_pause: float,
        *,
        is_essential: bool = True,
    ) -> None:
        """Sets what the process runs; `start` creates it. The gateway ends if an essential process cannot start."""
        self.name = name
        # Identifies an edge worker in records and metrics.
        self.number = 0
        self._is_essential = is_essential
        self.due = 0.0
        self.hopeless = False
        self.process: multiprocessing.Process | None = None
        self._server = server
        self._load = load
        self._longest_pause = longest_pause
        self._born = 0.0
        self._deaths = 0
        self._refusals = 0

    def start(self) -> None:
        """Forks and runs the child."""
        self.process = self._server.prepare_worker(self._load)
        self._born = time.monotonic()
        self.process.start()

    def join(self) -> None:
        """Collects the exit status of the process."""
        if self.process:
            self.process.join()

    @property
    def is_alive(self) -> bool:
        """True if the process is running."""
        return self.process is not None and self.process.is_alive()

    def record_exit(self) -> str:
        """Records that the process exited, schedules its restart and returns how it exited."""
        code = (self.process.exitcode if self.process else None) or 0
        self.process = None
        if time.monotonic() - self._born > STABLE_AFTER_SECONDS:
            self._deaths = 0
            self._refusals = -MAX_FAILED_STARTS
        self._deaths += 1
        # Only exits with an error status count as failed starts: a process that was killed may work after a restart.
        self._refusals += code > 0
        self.hopeless = self._is_essential and self._refusals >= MAX_FAILED_STARTS
        # The first restart has no delay, because new connections to the process wait in the kernel meanwhile.
        pause = min(self._longest_pause, FIRST_PAUSE * 2 ** (self._deaths - 2)) if self._deaths > 1 else 0.0
        self.due = time.monotonic() + pause
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def send_signal(self, number: int) -> None:
        """Sends a signal if the process still exists."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
