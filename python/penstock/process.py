"""What a process of ours does at its beginning and at its end, besides its work."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8


def few_arenas() -> None:
    """Tell glibc to share its heap between threads: ours allocate little and idle memory counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def signal_when_orphaned(number: int) -> None:
    """Have the kernel send a signal when the parent goes, however it goes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def enter_child(parent: int) -> None:
    """Untie a forked process from the terminal."""
    # A Ctrl-C goes to the whole foreground group; the supervisor alone decides the order of leaving.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


def leave_on_signal(drain: Callable[[], None], *, at_latest: float, notice: float = 0.0) -> Callable[[], None]:
    """On SIGUSR1 drain, after the notice let Granian close the port, and go in any case when the time is up."""
    loop = asyncio.get_event_loop()
    leaving = False

    def leave() -> None:
        nonlocal leaving
        if leaving:
            return
        leaving = True
        drain()
        loop.call_later(notice, os.kill, os.getpid(), signal.SIGTERM)
        loop.call_later(at_latest, os.kill, os.getpid(), signal.SIGKILL)

    loop.add_signal_handler(signal.SIGUSR1, leave)
    return leave


def leave_when_alone(lifeline: int, leave: Callable[[], None]) -> None:
    """Leave when the last process that holds the other end of a pipe is gone, however it went."""
    loop = asyncio.get_event_loop()

    def alone() -> None:
        loop.remove_reader(lifeline)
        leave()

    loop.add_reader(lifeline, alone)


class Pace:
    """Has the threads of a busy process work in batches, and those of any other answer at once.

    A request passes between threads. Under SCHED_BATCH a thread that is woken waits for its turn instead of interrupting
    the one that woke it: with much to do each turn then serves many requests, and one costs a quarter less. With little
    to do there is nothing to gain, and turns of other processes on the same core would be waited for as well.
    """

    LOOK_SECONDS = 0.2
    # Per second; measured: at 2,000 batches gain a fifth of little, from 10,000 on a quarter of much.
    BUSY, CALM = 5_000, 2_500

    def __init__(self, done: Callable[[], int]) -> None:
        """Take what tells how many requests were answered so far."""
        self._done = done
        self._last = 0
        self._batches = False

    def keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now and then for as long as the loop runs."""
        self.look()
        loop.call_later(self.LOOK_SECONDS, self.keep, loop)

    def look(self) -> None:
        """Change the policy of all threads when the load has changed."""
        done = self._done()
        rate = (done - self._last) / self.LOOK_SECONDS
        self._last = done
        batches = rate > (self.CALM if self._batches else self.BUSY)
        if batches != self._batches and sys.platform == "linux":
            self._batches = batches
            for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
                # It may have ended meanwhile.
                with suppress(ProcessLookupError, PermissionError):
                    policy = os.SCHED_BATCH if batches else os.SCHED_OTHER
                    os.sched_setscheduler(int(thread), policy, os.sched_param(0))


@contextmanager
def plain_failure(name: str) -> Generator[None]:
    """End a child that cannot start with one line rather than with a traceback."""
    try:
        yield
    except (PenstockError, ImportError) as error:
        sys.stderr.write(f"penstock: the {name} process cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(1)
