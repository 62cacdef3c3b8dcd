"""What a process of ours does at its beginning and at its end, besides its work."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger("penstock")

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8
# Files that a worker has open besides connections.
RESERVED_FILES = 256


def limit_malloc_arenas() -> None:
    """Tell glibc to share its heap between threads: ours allocate little and idle memory counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def freeze_heap(*, collect: bool = True) -> None:
    """Once all that stays is there: leave it alone from now on, and give back what was needed on the way."""
    if collect:
        gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def raise_open_file_limit() -> int:
    """Open as many files as the system lets us, and say how many callers that serves: each may need a provider's connection too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, (hard - RESERVED_FILES) // 2)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send a signal when the parent goes, however it goes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def detach_child(parent: int) -> None:
    """Untie a forked process from the terminal."""
    # A Ctrl-C goes to the whole foreground group; the supervisor alone decides the order of leaving.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


def shut_down_on_signal(
    drain: Callable[[], float | None], *, at_latest: float, notice: float = 0.0
) -> Callable[[], None]:
    """On SIGUSR1 drain, after the notice let Granian close the port, and go in any case when the time is up.

    `drain` may say how long it needs before the port is closed.
    """
    loop = asyncio.get_event_loop()
    leaving = False

    def shut_down() -> None:
        nonlocal leaving
        if leaving:
            return
        leaving = True
        needed = drain() or 0.0
        loop.call_later(max(notice, needed), os.kill, os.getpid(), signal.SIGTERM)
        loop.call_later(at_latest, os.kill, os.getpid(), signal.SIGKILL)

    loop.add_signal_handler(signal.SIGUSR1, shut_down)
    return shut_down


def shut_down_on_pipe_close(lifeline: int, leave: Callable[[], None]) -> None:
    """Leave when the last process that holds the other end of a pipe is gone, however it went."""
    loop = asyncio.get_event_loop()

    def on_pipe_close() -> None:
        loop.remove_reader(lifeline)
        leave()

    loop.add_reader(lifeline, on_pipe_close)


# The number of a system call that no library has a name for yet.
SCHED_SETATTR_SYSCALLS = {"x86_64": 314, "aarch64": 274}
# Leaves a tenth of a core that is wanted by everybody: enough to take the records of a saturated worker.
NICENESS = 10
# Who had to wait is owed up to two turns, in which nobody else gets the core: with turns of 4 ms the calls beside a busy
# interpreter on the same core took 0.8 ms longer (p99), with these 0.3. Their number costs nothing that can be measured.
TIME_SLICE_SECONDS = 0.000_25


class SchedPolicySwitcher:
    """Has the threads of a busy process work in batches, and those of any other answer at once.

    A request passes between threads. Under SCHED_BATCH a thread that is woken waits for its turn instead of interrupting
    the one that woke it: with much to do each turn then serves many requests, and one costs a quarter less. With little
    to do there is nothing to gain, and turns of other processes on the same core would be waited for as well.
    """

    CHECK_INTERVAL_SECONDS = 0.2
    # Per second; measured: at 2,000 batches gain a fifth of little, from 10,000 on a quarter of much.
    BUSY, CALM = 5_000, 2_500

    def __init__(self, done: Callable[[], int]) -> None:
        """Take what tells how many requests were answered so far."""
        self._done = done
        self._last = 0
        self._batches = False

    def run_periodically(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now and then for as long as the loop runs."""
        self.update_policy()
        loop.call_later(self.CHECK_INTERVAL_SECONDS, self.run_periodically, loop)

    def update_policy(self) -> None:
        """Change the policy of all threads when the load has changed."""
        done = self._done()
        rate = (done - self._last) / self.CHECK_INTERVAL_SECONDS
        self._last = done
        batches = rate > (self.CALM if self._batches else self.BUSY)
        if batches != self._batches and sys.platform == "linux":
            self._batches = batches
            for thread in os.listdir("/proc/self/task"):
                # It may have ended meanwhile.
                with suppress(ProcessLookupError, PermissionError):
                    policy = os.SCHED_BATCH if batches else os.SCHED_OTHER
                    os.sched_setscheduler(int(thread), policy, os.sched_param(0))


class _SchedAttr(ctypes.Structure):
    """Linux's `struct sched_attr`, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def lower_priority() -> None:
    """Have this thread, and all that it begins, wait for the data plane where both want the same core.

    A low weight alone is not enough: a thread of any weight keeps a core for its turn of some milliseconds, and from Linux
    6.12 on it may ask for shorter ones. Under SCHED_BATCH it interrupts nobody when it is woken, not even its like: they
    work through all that waits, in fewer turns.
    """
    number = SCHED_SETATTR_SYSCALLS.get(os.uname().machine)
    if number is None or sys.platform != "linux":
        os.nice(NICENESS)
        return
    turns = _SchedAttr(
        size=ctypes.sizeof(_SchedAttr), policy=os.SCHED_BATCH, nice=NICENESS, runtime=round(TIME_SLICE_SECONDS * 1e9)
    )
    if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(turns), 0):
        os.nice(NICENESS)


def run_in_child(work: Callable[[], bytes]) -> bytes:
    """Do something in a process of its own: what it imports and holds is gone with it."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, it ends here: what follows is for the parent alone.
        try:
            os.close(out)
            with open(into, "wb") as pipe:
                pipe.write(_encode_result(work))
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer.startswith(b"+"):
        raise StartupError(answer[1:].decode() or "the store could not be prepared")
    return answer[1:]


def _encode_result(work: Callable[[], bytes]) -> bytes:
    try:
        return b"+" + work()
    except PenstockError as error:
        return b"-" + str(error).encode()
    except Exception:
        log.exception("something went wrong")
        return b"-"


@contextmanager
def report_start_failure(name: str) -> Generator[None]:
    """End a child that cannot start with one line rather than with a traceback."""
    try:
        yield
    except (PenstockError, ImportError) as error:
        sys.stderr.write(f"penstock: the {name} process cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(1)
