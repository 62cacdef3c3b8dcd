"""Starts and watches the edge workers and the control process, and ends them in order."""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import msgspec
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes, TaskImpl
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from penstock import process
from penstock.errors import PenstockError, StartError
from penstock.snapshot import Published, Snapshot, gather_good

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import Settings

log = logging.getLogger("penstock")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
STEADY_SECONDS = 5.0
HOPELESS = 3
CONTROL_BACKLOG = 1024
# What a worker may take beyond the drain deadline to hand over its last records and go.
EDGE_GRACE, CONTROL_GRACE = 0.7, 5.0
SWITCH_INTERVAL = 0.0005


class Child:
    """One process that Granian runs for us, started again when it ends by itself."""

    def __init__(self, name: str, server: MPServer, load: Callable[[], Any]) -> None:
        """Describe the process; `start` makes it."""
        self.name = name
        self.failures = 0
        self.due = 0.0
        self.process: multiprocessing.Process | None = None
        self._server = server
        self._load = load
        self._born = 0.0

    def start(self) -> None:
        """Fork, and run Granian's worker in the child."""
        target = self._server._spawn_asgi_lifespan_worker  # noqa: SLF001
        worker = self._server._spawn_worker(0, target, self._load)  # noqa: SLF001
        self.process = worker.inner
        self._born = time.monotonic()
        worker.inner.start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.is_alive()

    def ended(self) -> str:
        """Note that it ended, set the time to start it again, and say how it ended."""
        code = self.process.exitcode if self.process else None
        self.process = None
        self.failures = 0 if time.monotonic() - self._born > STEADY_SECONDS else self.failures + 1
        # The first time at once: its connections wait in the kernel meanwhile.
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.failures - 2)) if self.failures > 1 else 0.0
        self.due = time.monotonic() + pause
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def send(self, number: int) -> None:
        """Send a signal if there is still someone to get it."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class Supervisor:
    """The process that a person starts: it holds the sockets and outlives its children."""

    def __init__(self, settings: Settings, snapshot: Snapshot, on_ready: Callable[[Settings], None]) -> None:
        """Bind everything that can fail to bind; nothing runs yet."""
        self.pid = os.getpid()
        self.edge_sockets = open_ports(settings)
        port: int = self.edge_sockets[0].getsockname()[1]
        server = msgspec.structs.replace(settings.server, port=port, run_dir=make_run_dir(settings))
        self.settings = msgspec.structs.replace(settings, server=server)
        self.snapshot = snapshot
        self.control_socket = open_control_socket(self.settings.control_socket)
        self.control = Child("control", control_server(self.control_socket), self._load_control)
        self.edges = [
            Child(f"edge {index}", edge_server(self.settings, listener), partial(self._load_edge, index))
            for index, listener in enumerate(self.edge_sockets, start=1)
        ]
        self._on_ready = on_ready
        self._probe: socket.socket | None = None
        self._steady = False
        self._asked_to_stop = 0
        self._asked_to_reload = False
        self._bell, self._ringer = os.pipe()

    @property
    def children(self) -> list[Child]:
        """All processes, those that face the network first."""
        return [*self.edges, self.control]

    def run(self) -> int:
        """Start everything, keep it running until asked to stop, and stop it."""
        multiprocessing.set_start_method("fork", force=True)
        self._catch_signals()
        # Whatever is imported by now is shared with the children for as long as nobody writes to it.
        gc.collect()
        gc.freeze()
        try:
            for child in self.children:
                child.start()
            self._probe = probe(self.settings)
            status = self._watch()
        finally:
            self._stop()
        return status

    def _catch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)
        # A child that is told to drain before it listens for it must not die of it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _signalled(self, number: int, _frame: object) -> None:
        if os.getpid() != self.pid:
            return
        if number == signal.SIGHUP:
            self._asked_to_reload = True
        else:
            self._asked_to_stop += 1
        os.write(self._ringer, b"!")

    def _watch(self) -> int:
        while not self._asked_to_stop:
            self._pause()
            if self._asked_to_reload:
                self._asked_to_reload = False
                self.control.send(signal.SIGHUP)
            for child in self.children:
                self._tend(child)
            if not self._steady and any(edge.failures >= HOPELESS for edge in self.edges):
                log.error("the edge worker cannot start; giving up")
                return 1
        return 0

    def _pause(self) -> None:
        waiting = [child.due for child in self.children if child.process is None]
        seconds = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        sentinels: list[Any] = [child.process.sentinel for child in self.children if child.process]
        probes = [self._probe] if self._probe else []
        ready = wait([self._bell, *probes, *sentinels], seconds)
        if self._bell in ready:
            os.read(self._bell, 64)
        if self._probe and self._probe in ready:
            self._hear()

    def _hear(self) -> None:
        answer = b""
        with suppress(OSError):
            answer = self._probe.recv(64) if self._probe else b""
        self._probe = None
        if b" 200 " in answer:
            self._steady = True
            self._on_ready(self.settings)
        else:
            time.sleep(0.05)
            self._probe = probe(self.settings)

    def _tend(self, child: Child) -> None:
        if child.process is None:
            if time.monotonic() >= child.due:
                child.start()
        elif not child.alive:
            how = child.ended()
            log.warning("the %s process ended by itself (%s); starting it again", child.name, how)

    def _stop(self) -> None:
        for listener in self.edge_sockets:
            listener.close()
        patience = self._asked_to_stop
        self._end(self.edges, self.settings.server.drain_seconds + EDGE_GRACE, patience)
        # Last, because the edge hands its last records to it.
        self._end([self.control], CONTROL_GRACE, patience + 1)
        self.control_socket.close()
        shutil.rmtree(self.settings.server.run_dir, ignore_errors=True)

    def _end(self, children: list[Child], seconds: float, patience: int) -> None:
        deadline = time.monotonic() + seconds
        while sentinels := [child.process.sentinel for child in children if child.process and child.alive]:
            left = deadline - time.monotonic()
            if left <= 0 or self._asked_to_stop > patience:
                break
            for child in children:
                child.send(signal.SIGUSR1)
            if self._bell in wait([self._bell, *sentinels], min(left, 0.5)):
                os.read(self._bell, 64)
        for child in children:
            if child.alive:
                log.warning("the %s process did not end in time and was killed", child.name)
                child.send(signal.SIGKILL)
            if child.process:
                child.process.join()

    def _load_edge(self, index: int) -> Any:  # noqa: ANN401 - what Granian calls is typed by its own door
        process.enter_child(self.pid)
        for number, listener in enumerate(self.edge_sockets, start=1):
            if number != index:
                listener.close()
        self.control_socket.close()
        sys.setswitchinterval(SWITCH_INTERVAL)
        with process.plain_failure(f"edge {index}"):
            door = importlib.import_module("penstock.door")
            app = door.create(self.settings, index, self._today().data)
        deadline = self.settings.server.drain_seconds
        process.leave_on_signal(
            partial(app.drain, deadline), after=self.settings.notice_seconds, at_latest=deadline + EDGE_GRACE / 2
        )
        gc.freeze()
        return app

    def _load_control(self) -> Any:  # noqa: ANN401
        process.enter_child(self.pid)
        for listener in self.edge_sockets:
            listener.close()
        with process.plain_failure("control"):
            published = Published(self._today())
            app = importlib.import_module("penstock.app").create_app(self.settings, published)
        process.leave_on_signal(
            published.close,
            after=0.0,
            at_latest=CONTROL_GRACE,
            orphaned=self.settings.server.drain_seconds + EDGE_GRACE,
            parent=self.pid,
        )
        gc.collect()
        gc.freeze()
        return app

    def _today(self) -> Snapshot:
        """Gather afresh; a source that is broken just now must not keep a worker from coming back."""
        try:
            return gather_good(self.settings)
        except PenstockError:
            # The watcher says what is wrong with it, once.
            return self.snapshot


def open_ports(settings: Settings) -> list[socket.socket]:
    """Listen, one socket per worker: held here, so that a worker's death never refuses a connection."""
    first = _listen(settings, settings.server.port, shared=False)
    if settings.server.workers == 1:
        return [first]
    # The first bind was exclusive, to find out whether the port is free; sharing must be said before a bind.
    port: int = first.getsockname()[1]
    first.close()
    return [_listen(settings, port, shared=True) for _ in range(settings.server.workers)]


def _listen(settings: Settings, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.address, port))
        listener.listen(settings.server.backlog)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {settings.address}:{port}: {(error.strerror or str(error)).lower()}"
        raise StartError(message) from None
    return listener


def make_run_dir(settings: Settings) -> str:
    """Make the private folder; its name is short because a Unix socket's path must be."""
    try:
        if settings.server.run_dir:
            os.makedirs(settings.server.run_dir, mode=0o700, exist_ok=True)  # noqa: PTH103
            os.chmod(settings.server.run_dir, stat.S_IRWXU)  # noqa: PTH101
            return settings.server.run_dir
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        return tempfile.mkdtemp(prefix="penstock-", dir=runtime if os.access(runtime, os.W_OK) else None)
    except OSError as error:
        message = f"cannot make the run folder: {error}"
        raise StartError(message) from None


def open_control_socket(path: str) -> socket.socket:
    """Listen on the control socket: who comes before control is up, waits instead of failing."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        listener.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)  # noqa: PTH101
        listener.listen(CONTROL_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path!r}: {error.strerror or error} (a path of at most 107 characters is allowed)"
        raise StartError(message) from None
    return listener


def edge_server(settings: Settings, listener: socket.socket) -> MPServer:
    """Describe to Granian how one edge worker faces the network."""
    server = settings.server
    return _granian(
        listener,
        server.backlog,
        http=HTTPModes.auto,
        backpressure=server.connections,
        http1_settings=HTTP1Settings(header_read_timeout=server.header_timeout_ms, max_buffer_size=server.header_bytes),
        http2_settings=HTTP2Settings(max_concurrent_streams=100, max_headers_size=server.header_bytes),
    )


def control_server(listener: socket.socket) -> MPServer:
    """Describe to Granian how the control process listens: to nobody but the engine."""
    # The edge keeps its connections; closing an idle one would race with its next request.
    return _granian(
        listener,
        CONTROL_BACKLOG,
        http=HTTPModes.http1,
        backpressure=4096,
        http1_settings=HTTP1Settings(header_read_timeout=24 * 3_600_000),
    )


def _granian(listener: socket.socket, backlog: int, **options: Any) -> MPServer:  # noqa: ANN401
    server = MPServer(
        "penstock",
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        task_impl=TaskImpl.asyncio,
        runtime_mode=RuntimeModes.st,
        blocking_threads=1,
        websockets=False,
        log_access=False,
        log_level=LogLevels.warning,
        **options,
    )
    uds = listener.family == socket.AF_UNIX
    # Granian listens again with its own backlog.
    extra = (backlog,) if sys.platform == "linux" else ()
    server._shd = SocketHolder(listener.fileno(), uds, *extra)  # noqa: SLF001
    server._sso = listener  # noqa: SLF001
    return server


def probe(settings: Settings) -> socket.socket | None:
    """Ask `/ready`; the answer comes when the first worker is."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.address, settings.address)  # noqa: S104
    try:
        asking = socket.create_connection((host, settings.server.port), timeout=1.0)
        asking.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    except OSError:
        return None
    return asking


def serve(settings: Settings, snapshot: Snapshot, on_ready: Callable[[Settings], None]) -> int:
    """Run the gateway until it is told to stop; give the exit status."""
    return Supervisor(settings, snapshot, on_ready).run()
