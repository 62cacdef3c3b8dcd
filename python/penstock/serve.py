"""Supervisor of the edge workers, the control process, the log worker and plug-ins. Starts, watches and restarts them,
and stops them in order.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import msgspec

# Granian's allocator (jemalloc) reads this variable once. By default it adds a page to each large allocation, which is
# a tenth of a connection's memory.
os.environ.setdefault("_RJEM_MALLOC_CONF", "cache_oblivious:false")

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes, TaskImpl
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from penstock import listen, process, process_log
from penstock.certificate import CHECK_SECONDS
from penstock.child_process import ChildProcess, PlainFactory
from penstock.handover import HANDSHAKE_SECONDS, RETIRE_SECONDS, WorkerHandover
from penstock.plugins import program as plugin_program
from penstock.snapshot.build import SnapshotBackup, SnapshotChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import Settings
    from penstock.snapshot.build import Snapshot

log = logging.getLogger("penstock")

# Maximum delay in seconds before a process that keeps exiting is restarted, for each kind of process. Without an edge
# worker no client is served, so its delay is short.
EDGE_PAUSE, CONTROL_PAUSE, LOGS_PAUSE, PLUGINS_PAUSE = 0.5, 5.0, 5.0, 5.0
# Time in seconds after the drain deadline in which a process must write its last records and exit.
EDGE_GRACE, CONTROL_GRACE, PLUGINS_GRACE = 4.0, 5.0, 2.0
# Time in seconds in which the log worker reads the rest of the spool at shutdown. Unread entries are read after the
# next start.
LOGS_GRACE = 8.0
LOG_WORKER_TITLE = "log"
THREAD_SWITCH_INTERVAL_SECONDS = 0.0005
# Maximum bytes per read from a connection. Every read requires a switch between two threads, even for few bytes.
MAX_READ_BYTES = 128 * 1024


class GranianServer(MPServer):
    """Granian's server, used only to create single worker processes. The supervisor watches them itself."""

    def __init__(self, listener: socket.socket, backlog: int, **options: Any) -> None:  # noqa: ANN401 - Granian's own
        """Prepares to serve ASGI on a socket that stays open in this process when the worker exits."""
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            "penstock",
            interface=Interfaces.ASGI,
            loop=Loops.uvloop,
            task_impl=TaskImpl.asyncio,
            blocking_threads=1,
            log_access=False,
            log_dictconfig=process_log.GRANIAN_LOGGING,
            log_level=LogLevels.warning,
            **options,
        )
        holder: Any = SocketHolder
        # Granian calls `listen` again with this backlog.
        extra = (backlog,) if sys.platform == "linux" else ()
        self._shd = holder(listener.fileno(), listener.family == socket.AF_UNIX, *extra)
        self._sso = listener
        self.handover: WorkerHandover | None = None

    def prepare_worker(self, load: Callable[[], Any]) -> multiprocessing.Process:
        """Returns an unstarted process that loads an application and serves it."""
        if self.handover:
            # In order: TLS is used, certificate, key, passphrase, minimum version, and three options for client
            # certificates.
            version = f"tls{self.handover.minimum_version}"
            context: tuple[Any, ...] = (True, *self.handover.certificate.paths, None, version, None, (), False)
            self.ssl_ctx = context
        spawn: Any = self._spawn_worker  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return spawn(0, self._spawn_asgi_lifespan_worker, load).inner

    @classmethod
    def for_edge(cls, settings: Settings, listener: socket.socket, handover: WorkerHandover | None) -> GranianServer:
        """Returns the server of an edge worker, which accepts clients from the network."""
        server = settings.server
        created = cls(
            listener,
            server.backlog,
            # Both runtime modes use one thread here. `mt` wakes it only if it sleeps, while `st` needs three system
            # calls for each request.
            runtime_mode=RuntimeModes.mt,
            websockets=True,
            http=HTTPModes.auto,
            backpressure=server.connections,
            http1_settings=HTTP1Settings(
                # Granian counts this timeout from the end of the previous request, so it also limits idle connections.
                # The engine has its own timeout for request heads.
                header_read_timeout=max(server.keep_alive_ms, server.header_timeout_ms),
                # The engine enforces the limit on header size.
                max_buffer_size=max(server.header_bytes, MAX_READ_BYTES),
            ),
            http2_settings=HTTP2Settings(max_concurrent_streams=100, max_headers_size=server.header_bytes),
        )
        created.handover = handover
        return created

    @classmethod
    def for_control(cls, listener: socket.socket) -> GranianServer:
        """Returns the server of the control process, which accepts only the engine's connections."""
        return cls(
            listener,
            listen.CONTROL_BACKLOG,
            runtime_mode=RuntimeModes.st,
            websockets=False,
            http=HTTPModes.http1,
            backpressure=4096,
            # One day. The edge reuses idle connections. If one were closed after a shorter time, the edge might send a
            # request on it at the same moment.
            http1_settings=HTTP1Settings(header_read_timeout=24 * 3_600_000),
        )


class Supervisor:
    """The parent process. It owns the listening sockets and outlives its children."""

    def __init__(self, settings: Settings, snapshot: Snapshot, on_ready: Callable[[Settings], None]) -> None:
        """Opens all sockets, so that errors are reported before a process starts. `run` starts the processes."""
        self.pid = os.getpid()
        self._stop_signals = 0
        self._is_reload_requested = False
        self._wake_reader, self._wake_writer = os.pipe()
        # Signals are handled from here on, because `_stop` must remove the sockets and folders that the following code
        # creates.
        self._install_signal_handlers()
        self.edge_sockets = listen.open_listeners(settings)
        self.metrics_socket = listen.open_metrics_listener(settings)
        port: int = self.edge_sockets[0].getsockname()[1]
        server = msgspec.structs.replace(
            settings.server, port=port, run_dir=listen.make_run_dir(settings), connections=_limit_connections(settings)
        )
        self.settings = msgspec.structs.replace(settings, server=server)
        self.snapshot_backup = SnapshotBackup(snapshot)
        self.control_socket = listen.open_private_socket(self.settings.control_socket)
        self.control = ChildProcess(
            "control", GranianServer.for_control(self.control_socket), self._load_control, CONTROL_PAUSE
        )
        self.handover = WorkerHandover(settings.server) if settings.server.has_tls else None
        self.edges = [
            ChildProcess(
                f"edge {index}",
                GranianServer.for_edge(self.settings, listener, self.handover),
                partial(self._load_edge, index),
                EDGE_PAUSE,
            )
            for index, listener in enumerate(self.edge_sockets, start=1)
        ]
        for index, child in enumerate(self.edges, start=1):
            child.number = index
        self.log_socket = listen.open_private_socket(self.settings.log_socket)
        # The log worker is not essential: requests do not depend on it.
        self.log_worker = ChildProcess("log", PlainFactory(), self._run_log_worker, LOGS_PAUSE, is_essential=False)
        self.plugin_socket = plugin_program.open_socket(self.settings)
        self.plugin_processes: list[ChildProcess] = []
        if self.plugin_socket:
            factory = plugin_program.PluginProcessFactory(settings.guardrail_plugins, self.plugin_socket)
            # The plug-in process is not essential: without it, only checks of plug-ins fail.
            self.plugin_processes = [ChildProcess("plug-ins", factory, lambda: None, PLUGINS_PAUSE, is_essential=False)]
        self._on_ready = on_ready
        self._probe: socket.socket | None = None
        self._is_ready = False
        # Pipe whose write end is open in this process and the edge workers. When the last of them has exited, the
        # control process reads the end of the pipe.
        self._lifeline, self._held = os.pipe()
        # Pipe for the log worker, whose write end is also open in the control process.
        self._log_lifeline, self._log_held = os.pipe()

    @property
    def children(self) -> list[ChildProcess]:
        """All child processes, the edge workers first."""
        return [*self.edges, self.control, *self.log_workers, *self.plugin_processes]

    @property
    def log_workers(self) -> list[ChildProcess]:
        """The log worker, unless records are disabled."""
        return [self.log_worker] if self.settings.records.enabled else []

    def run(self) -> int:
        """Starts all processes, restarts them until a stop signal arrives, and stops them. Returns the exit status."""
        multiprocessing.set_start_method("fork", force=True)
        process.set_process_title(f"supervisor {self.settings.server.port}")
        # The child processes share the memory of all modules that are imported by now (copy-on-write).
        process.freeze_heap()
        try:
            for child in self.children:
                child.start()
            self._probe = self._request_ready()
            status = self._supervise()
        finally:
            self._stop()
        return status

    def _install_signal_handlers(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # SIGUSR1 makes a child process drain. It must not kill a child that has not installed its handler yet.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: object) -> None:
        if os.getpid() != self.pid:
            return
        if number == signal.SIGHUP:
            self._is_reload_requested = True
        else:
            self._stop_signals += 1
        os.write(self._wake_writer, b"!")

    def _supervise(self) -> int:
        while not self._stop_signals:
            self._wait_for_event()
            if self._is_reload_requested:
                self._is_reload_requested = False
                self.control.send_signal(signal.SIGHUP)
            if self.handover:
                self.handover.replace_if_changed(self.edges)
            for child in self.children:
                self._restart_if_exited(child)
                if child.hopeless:
                    log.error("the %s process cannot start; giving up", child.name)
                    return 1
        return 0

    def _wait_for_event(self) -> None:
        waiting = [child.due for child in self.children if child.process is None]
        seconds = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        sentinels: list[Any] = [child.process.sentinel for child in self.children if child.process]
        probes: list[Any] = [self._probe] if self._probe else []
        if self.handover:
            seconds = CHECK_SECONDS if seconds is None else min(seconds, CHECK_SECONDS)
            probes.append(self.handover.reports)
            sentinels += [process.sentinel for process in self.handover.processes]
        ready = wait([self._wake_reader, *probes, *sentinels], seconds)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 64)
        if self._probe and self._probe in ready:
            self._read_ready_probe()
        if self.handover and self.handover.reports in ready:
            self.handover.read_starts()
            if not self._is_ready:
                self._probe = self._request_ready(is_started=True)

    def _request_ready(self, *, is_started: bool = False) -> socket.socket | None:
        """Requests `/ready`. Over TLS a worker must accept the handshake, so the request is sent only after the first
        worker has started.
        """
        if self.handover is None:
            return listen.request_ready(self.settings)
        return listen.request_ready_over_tls(self.settings, self.handover.certificate.paths[0]) if is_started else None

    def _read_ready_probe(self) -> None:
        response = b""
        with suppress(OSError):
            response = self._probe.recv(64) if self._probe else b""
        self._probe = None
        if b" 200 " in response:
            self._is_ready = True
            self._on_ready(self.settings)
        else:
            time.sleep(0.05)
            self._probe = self._request_ready(is_started=True)

    def _restart_if_exited(self, child: ChildProcess) -> None:
        if child.process is None:
            if time.monotonic() >= child.due:
                child.start()
        elif not child.is_alive:
            exit_reason = child.record_exit()
            if self.handover and child in self.edges and self.handover.take_back(self.edges.index(child) + 1, child):
                return
            log.warning("the %s process exited unexpectedly (%s); restarting it", child.name, exit_reason)

    def _stop(self) -> None:
        log.info("stopping; open requests may finish within %g s", self.settings.server.drain_seconds)
        for listener in self.edge_sockets:
            listener.close()
        allowed_signals = self._stop_signals
        replaced_workers = self.handover.replaced_workers if self.handover else []
        self._stop_children(
            [*self.edges, *replaced_workers], self.settings.server.drain_seconds + EDGE_GRACE, allowed_signals
        )
        self._stop_children([self.control], CONTROL_GRACE, allowed_signals + 1)
        self._stop_children(self.plugin_processes, PLUGINS_GRACE, allowed_signals + 1)
        # The log worker stops last, because the others write their last records to the spool.
        self._stop_children(self.log_workers, LOGS_GRACE, allowed_signals + 2)
        self.control_socket.close()
        self.log_socket.close()
        self._close_metrics_socket()
        if self.plugin_socket:
            self.plugin_socket.close()
        listen.remove_run_dir(self.settings)
        log.info("stopped")

    def _stop_children(self, children: list[ChildProcess], seconds: float, allowed_signals: int) -> None:
        deadline = time.monotonic() + seconds
        while sentinels := [child.process.sentinel for child in children if child.process and child.is_alive]:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._stop_signals > allowed_signals:
                break
            for child in children:
                child.send_signal(signal.SIGUSR1)
            if self._wake_reader in wait([self._wake_reader, *sentinels], min(remaining, 0.5)):
                os.read(self._wake_reader, 64)
        for child in children:
            if child.is_alive:
                log.warning("the %s process did not end in time and was killed", child.name)
                child.send_signal(signal.SIGKILL)
            if child.process:
                child.process.join()

    def _close_metrics_socket(self) -> None:
        if self.metrics_socket:
            self.metrics_socket.close()

    def _load_edge(self, index: int) -> Any:  # noqa: ANN401 - the ASGI application that Granian calls
        process.set_parent_death_signal(signal.SIGUSR1)
        process.detach_child(self.pid)
        process.set_process_title(f"edge {index}")
        for number, listener in enumerate(self.edge_sockets, start=1):
            if number != index:
                listener.close()
        self.control_socket.close()
        self.log_socket.close()
        self._close_metrics_socket()
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL_SECONDS)
        with process.report_start_failure(f"edge {index}"):
            asgi = importlib.import_module("penstock.asgi")
            app = asgi.create_edge_app(
                self.settings, self.edges[index - 1].number, self.snapshot_backup.load_latest().to_json()
            )
        deadline = self.settings.server.drain_seconds
        process.shut_down_on_signal(
            partial(app.drain, deadline),
            close_delay=self.settings.shutdown_delay_seconds,
            at_latest=deadline + EDGE_GRACE / 2,
        )
        if self.handover:

            def retire() -> None:
                listen.stop_accepting(self.settings)
                app.drain(RETIRE_SECONDS)

            process.retire_on_signal(retire, close_delay=HANDSHAKE_SECONDS, at_latest=RETIRE_SECONDS + EDGE_GRACE)
            app.call_when_started(partial(self.handover.report_start, index))
        process.freeze_heap(collect=False)
        return app

    def _load_control(self) -> Any:  # noqa: ANN401 - as above
        process.detach_child(self.pid)
        process.set_process_title("control")
        process.lower_priority()
        for listener in self.edge_sockets:
            listener.close()
        self.log_socket.close()
        os.close(self._held)
        with process.report_start_failure("control"):
            importlib.import_module("penstock.engine").start_preemption_ticker(process.TIME_SLICE_SECONDS)
            published = SnapshotChannel(self.snapshot_backup.load_latest(), self.snapshot_backup)
            app = importlib.import_module("penstock.app").create_app(
                self.settings, published, metrics_socket=self.metrics_socket
            )

        def clean_up() -> None:
            published.close()
            if os.getppid() != self.pid:
                listen.remove_run_dir(self.settings)

        # If the supervisor dies, this process exits only after the edge workers, because they still send requests to it
        # while they drain.
        process.shut_down_on_pipe_close(self._lifeline, process.shut_down_on_signal(clean_up, at_latest=CONTROL_GRACE))
        process.freeze_heap()
        return app

    def _run_log_worker(self) -> None:
        process.detach_child(self.pid)
        process.set_process_title(LOG_WORKER_TITLE)
        for listener in (*self.edge_sockets, self.control_socket):
            listener.close()
        self._close_metrics_socket()
        os.close(self._held)
        os.close(self._log_held)
        with process.report_start_failure("log"):
            worker = importlib.import_module("penstock.logs.worker").LogWorker(self.settings)
        # The priority is lowered after the imports, which would take long next to busy processes. All threads of the
        # worker start later and inherit it.
        process.lower_priority()
        importlib.import_module("penstock.engine").start_preemption_ticker(process.TIME_SLICE_SECONDS)
        process.freeze_heap()
        process.run_until_stopped(partial(worker.run, self.log_socket), self._log_lifeline, at_latest=LOGS_GRACE)


def _limit_connections(settings: Settings) -> int:
    configured, limit = settings.server.connections, process.raise_open_file_limit()
    if configured > limit:
        log.warning(
            "server.connections is lowered to %d from %d because of the limit on open files (hint: ulimit -n)",
            limit,
            configured,
        )
    return min(configured, limit)


def serve(settings: Settings, snapshot: Snapshot, on_ready: Callable[[Settings], None]) -> int:
    """Runs the gateway until a stop signal arrives; returns the exit status."""
    return Supervisor(settings, snapshot, on_ready).run()
