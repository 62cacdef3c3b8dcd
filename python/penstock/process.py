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

from penstock.errors import PenstockError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger("penstock")

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8
# Files that a worker has open besides connections.
OTHER_FILES = 256


def few_arenas() -> None:
    """Tell glibc to share its heap between threads: ours allocate little and idle memory counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def settle(*, collect: bool = True) -> None:
    """Once all that stays is there: leave it alone from now on, and give back what was needed on the way."""
    if collect:
        gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def room_for_connections() -> int:
    """Open as many files as the system lets us, and say how many callers that serves: each may need a provider's connection too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, (hard - OTHER_FILES) // 2)


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


def leave_on_signal(drain: Callable[[], float | None], *, at_latest: float, notice: float = 0.0) -> Callable[[], None]:
    """On SIGUSR1 drain, after the notice let Granian close the port, and go in any case when the time is up.

    `drain` may say how long it needs before the port is closed.
    """
    loop = asyncio.get_event_loop()
    leaving = False

    def leave() -> None:
        nonlocal leaving
        if leaving:
            return
        leaving = True
        needed = drain() or 0.0
        loop.call_later(max(notice, needed), os.kill, os.getpid(), signal.SIGTERM)
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


# The number of a system call that no library has a name for yet.
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
# Leaves a tenth of a core that is wanted by everybody: enough to take the records of a saturated worker.
NICENESS = 10
# Who had to wait is owed up to two turns, in which nobody else gets the core: with turns of 4 ms the calls beside a busy
# interpreter on the same core took 0.8 ms longer (p99), with these 0.3. Their number costs nothing that can be measured.
SHORT_TURN_SECONDS = 0.000_25


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
            for thread in os.listdir("/proc/self/task"):
                # It may have ended meanwhile.
                with suppress(ProcessLookupError, PermissionError):
                    policy = os.SCHED_BATCH if batches else os.SCHED_OTHER
                    os.sched_setscheduler(int(thread), policy, os.sched_param(0))


class _Turns(ctypes.Structure):
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


def step_back() -> None:
    """Have this thread, and all that it begins, wait for the data plane where both want the same core.

    A low weight alone is not enough: a thread of any weight keeps a core for its turn of some milliseconds, and from Linux
    6.12 on it may ask for shorter ones. Under SCHED_BATCH it interrupts nobody when it is woken, not even its like: they
    work through all that waits, in fewer turns.
    """
    number = SCHED_SETATTR.get(os.uname().machine)
    if number is None or sys.platform != "linux":
        os.nice(NICENESS)
        return
    turns = _Turns(
        size=ctypes.sizeof(_Turns), policy=os.SCHED_BATCH, nice=NICENESS, runtime=round(SHORT_TURN_SECONDS * 1e9)
    )
    if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(turns), 0):
        os.nice(NICENESS)


def apart(work: Callable[[], bytes]) -> bytes:
    """Do something in a process of its own: what it imports and holds is gone with it."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, it ends here: what follows is for the parent alone.
        try:
            os.close(out)
            with open(into, "wb") as pipe:
                pipe.write(_answer(work))
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer.startswith(b"+"):
        raise StartError(answer[1:].decode() or "the store could not be prepared")
    return answer[1:]


def _answer(work: Callable[[], bytes]) -> bytes:
    try:
        return b"+" + work()
    except PenstockError as error:
        return b"-" + str(error).encode()
    except Exception:
        log.exception("something went wrong")
        return b"-"


@contextmanager
def plain_failure(name: str) -> Generator[None]:
    """End a child that cannot start with one line rather than with a traceback."""
    try:
        yield
    except (PenstockError, ImportError) as error:
        sys.stderr.write(f"penstock: the {name} process cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(1)
