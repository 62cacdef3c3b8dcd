"""Process setup and shutdown: memory, file limits, signals and CPU scheduling."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import setproctitle

from penstock.errors import PenstockError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

log = logging.getLogger("penstock")

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8
# Number of file descriptors that a worker needs for other purposes than connections.
RESERVED_FILES = 256


def limit_malloc_arenas() -> None:
    """Makes glibc share two heap arenas between all threads. The threads allocate little, so an arena for each would
    waste memory.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def tune_memory_for_start() -> None:
    """Sets what all processes inherit, before anything large is loaded."""
    limit_malloc_arenas()
    pause_garbage_collection()


def pause_garbage_collection() -> None:
    """Stops garbage collection until `freeze_heap`. A start allocates much and frees little, so collections would only
    make the imports a tenth slower.
    """
    gc.disable()


def freeze_heap(*, collect: bool = True) -> None:
    """Excludes all current objects from garbage collection and returns free memory to the system. Call it at the end of
    the startup.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.enable()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def raise_open_file_limit() -> int:
    """Raises the open file limit to its maximum. Returns the number of clients that the limit allows. Each client may
    also need an upstream connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, (hard - RESERVED_FILES) // 2)


def set_parent_death_signal(number: int) -> None:
    """Makes the kernel send a signal to this process when its parent exits for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def notify_service_manager(address: str | None) -> None:
    """Notifies systemd that the gateway is ready (`sd_notify`, protocol of `Type=notify`). Without an address, does
    nothing.
    """
    if not address:
        return
    # A leading `@` means an abstract socket, whose address begins with a zero byte.
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        try:
            sender.sendto(b"READY=1", path)
        except OSError as error:
            log.warning("the service manager at %r cannot be notified: %s", address, error.strerror or error)


def set_process_title(name: str) -> None:
    """Sets what `ps` and `top` show for this process. `top` shows at most 15 characters."""
    setproctitle.setproctitle(f"penstock: {name}")
    setproctitle.setthreadtitle(f"penstock-{name.replace(' ', '-')}")


def detach_child(parent: int) -> None:
    """Detaches a forked process from the terminal. Exits if the parent is already gone. Pauses garbage collection until
    the process has started.
    """
    pause_garbage_collection()
    # A separate process group: Ctrl-C signals the whole foreground group, but the supervisor decides the order of
    # shutdown.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


def shut_down_on_signal(
    drain: Callable[[], float | None], *, at_latest: float, close_delay: float = 0.0
) -> Callable[[], None]:
    """On SIGUSR1, calls `drain`, and lets Granian close the port `close_delay` seconds later. Kills the process after
    `at_latest` seconds.

    `drain` may return a number of seconds to wait before the port is closed.
    """
    loop = asyncio.get_event_loop()
    is_shutting_down = False

    def shut_down() -> None:
        nonlocal is_shutting_down
        if is_shutting_down:
            return
        is_shutting_down = True
        needed = drain() or 0.0
        loop.call_later(max(close_delay, needed), os.kill, os.getpid(), signal.SIGTERM)
        loop.call_later(at_latest, os.kill, os.getpid(), signal.SIGKILL)

    loop.add_signal_handler(signal.SIGUSR1, shut_down)
    return shut_down


def retire_on_signal(retire: Callable[[], object], *, close_delay: float, at_latest: float) -> None:
    """On SIGUSR2, calls `retire`, because another process accepts new connections. SIGUSR1 still shuts the process
    down. Granian ends idle connections after `close_delay` seconds. The process is killed after `at_latest` seconds.
    """
    loop = asyncio.get_event_loop()

    def on_signal() -> None:
        retire()
        loop.call_later(close_delay, os.kill, os.getpid(), signal.SIGTERM)
        loop.call_later(at_latest, os.kill, os.getpid(), signal.SIGKILL)

    loop.add_signal_handler(signal.SIGUSR2, on_signal)


def shut_down_on_pipe_close(lifeline: int, leave: Callable[[], None]) -> None:
    """Calls `leave` when the last process with the other end of the pipe `lifeline` exits for any reason."""
    loop = asyncio.get_event_loop()

    def on_pipe_close() -> None:
        loop.remove_reader(lifeline)
        leave()

    loop.add_reader(lifeline, on_pipe_close)


def run_until_stopped(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], lifeline: int, *, at_latest: float
) -> None:
    """Runs a child process without a server. SIGUSR1, SIGTERM or the closing of the pipe `lifeline` makes it stop. If
    it still runs `at_latest` seconds later, it is killed.
    """

    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def request_stop() -> None:
            if not stop.is_set():
                loop.call_later(at_latest, os.kill, os.getpid(), signal.SIGKILL)
            stop.set()

        for number in (signal.SIGUSR1, signal.SIGTERM):
            loop.add_signal_handler(number, request_stop)
        shut_down_on_pipe_close(lifeline, request_stop)
        await work(stop)

    asyncio.run(run())


# Number of the `sched_setattr` system call, which libc does not wrap yet.
SCHED_SETATTR_SYSCALLS = {"x86_64": 314, "aarch64": 274}
# Nice level that leaves about a tenth of a contended core to this process. That is enough to write the records of a
# saturated worker.
NICENESS = 10
# The scheduler may let a process that had to wait run for up to two slices without interruption. With slices of 4 ms,
# calls next to a busy interpreter on the same core took 0.8 ms longer (p99). With this length they take 0.3 ms longer,
# at no measurable cost.
TIME_SLICE_SECONDS = 0.000_25


class SchedPolicySwitcher:
    """Switches all threads to SCHED_BATCH under load, and back to SCHED_OTHER when the load drops.

    A request passes between threads. Under SCHED_BATCH a woken thread waits for its slice instead of interrupting
    the thread that woke it. Under high load each slice then serves many requests, and a request costs a quarter
    less. Under low load there is nothing to gain, and threads would also wait for slices of other processes on the
    same core.
    """

    CHECK_INTERVAL_SECONDS = 0.2
    # A load of more than `HIGH_LOAD_REQUESTS_PER_SECOND` requests per second counts as high. Then it counts as low again at `LOW_LOAD_REQUESTS_PER_SECOND`. Measured
    # savings of batching: a fifth at 2,000 requests per second, a quarter from 10,000.
    HIGH_LOAD_REQUESTS_PER_SECOND, LOW_LOAD_REQUESTS_PER_SECOND = 5_000, 2_500

    def __init__(self, done: Callable[[], int]) -> None:
        """Stores a function that returns the number of completed requests."""
        self._done = done
        self._last = 0
        self._batches = False

    def run_periodically(self, loop: asyncio.AbstractEventLoop) -> None:
        """Updates the policy at a fixed interval for as long as the loop runs."""
        self.update_policy()
        loop.call_later(self.CHECK_INTERVAL_SECONDS, self.run_periodically, loop)

    def update_policy(self) -> None:
        """Changes the scheduling policy of all threads if the load has changed."""
        done = self._done()
        rate = (done - self._last) / self.CHECK_INTERVAL_SECONDS
        self._last = done
        batches = rate > (self.LOW_LOAD_REQUESTS_PER_SECOND if self._batches else self.HIGH_LOAD_REQUESTS_PER_SECOND)
        if batches != self._batches and sys.platform == "linux":
            self._batches = batches
            for thread in os.listdir("/proc/self/task"):
                # The thread may have exited in the meantime.
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
    """Lowers the priority of this thread and its children, so that the data plane runs first on a shared core.

    A low weight alone is not enough: a thread of any weight keeps a core for its slice of some milliseconds. Since
    Linux 6.12 a thread can request shorter slices. Under SCHED_BATCH a woken thread does not interrupt any other
    thread, so the pending work takes fewer slices.
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


class ChildTask:
    """Runs a function in a child process while the parent continues. The memory of the function and its imports is
    freed afterwards.
    """

    def __init__(self, task: Callable[[], bytes], name: str) -> None:
        """Forks and runs the function. `name` describes the function in error messages."""
        self._name = name
        self._response: bytes | None = None
        self._out, into = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            # The child always exits in this block. The code after it is only for the parent.
            try:
                os.close(self._out)
                with open(into, "wb") as pipe:
                    pipe.write(_encode_result(task))
            finally:
                os._exit(0)
        os.close(into)

    def result(self) -> bytes:
        """Waits for the function and returns its result. Raises StartupError on failure."""
        if self._response is None:
            with open(self._out, "rb") as pipe:
                self._response = pipe.read()
            _, status = os.waitpid(self._child, 0)
            # A killed process may have written a part of its result.
            if os.WIFSIGNALED(status):
                self._response = f"-{self._name} failed: signal {os.WTERMSIG(status)} ended its process".encode()
        if not self._response.startswith(b"+"):
            raise StartupError(self._response[1:].decode() or f"{self._name} failed; the log has the details")
        return self._response[1:]


def run_in_child(task: Callable[[], bytes], name: str) -> bytes:
    """Runs a function in a child process and returns its result. Raises StartupError on failure."""
    return ChildTask(task, name).result()


def _encode_result(task: Callable[[], bytes]) -> bytes:
    try:
        return b"+" + task()
    except PenstockError as error:
        return b"-" + str(error).encode()
    except Exception:
        log.exception("the child process failed")
        return b"-"


@contextmanager
def report_start_failure(name: str) -> Generator[None]:
    """Exits a child process that cannot start with a one-line message instead of a traceback."""
    try:
        yield
    except (PenstockError, ImportError) as error:
        sys.stderr.write(f"penstock: the {name} process cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(1)
