"""Listening sockets of the gateway: its TCP port, and the private Unix socket of the control process."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.certificate import create_client_context
from penstock.errors import SettingsError, StartupError
from penstock.settings.monitoring import parse_listen_address

if TYPE_CHECKING:
    from penstock.settings import Settings

READY_REQUEST = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
CONTROL_BACKLOG, METRICS_BACKLOG = 1024, 64
# TCP keep-alive: idle seconds before the first probe, seconds between probes, and number of probes.
TCP_KEEPALIVE_OPTIONS = (
    {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4} if sys.platform == "linux" else {}
)


def check_open_host(settings: Settings, keys: int) -> None:
    """Raises SettingsError if the gateway would listen on a public address without authentication."""
    if settings.is_loopback or keys or settings.store_url or settings.security.require_key is not None:
        return
    message = (
        f"no gateway key is configured, so anyone who reaches {settings.server.host!r} could spend your providers' money\n"
        "hint: add a key to penstock.toml ([[keys]] with name and key),\n"
        "hint: or listen on this machine only (--host 127.0.0.1),\n"
        "hint: or declare that a proxy in front of the gateway authenticates its callers (PENSTOCK_SECURITY_REQUIRE_KEY=false)"
    )
    raise SettingsError(message)


def check_ports_are_free(settings: Settings) -> None:
    """Raises an error if another process listens on a port of the settings."""
    _open_listener(settings, settings.server.port, shared=False).close()
    if metrics := open_metrics_listener(settings):
        metrics.close()


def open_listeners(settings: Settings) -> list[socket.socket]:
    """Opens one listening socket per worker. The supervisor keeps them open, so that no connection is refused when a
    worker dies.
    """
    first = _open_listener(settings, settings.server.port, shared=False)
    if settings.server.workers == 1:
        return [first]
    # The first bind was exclusive, to detect a port in use. It is repeated with `SO_REUSEPORT`, which must be set
    # before a bind.
    port: int = first.getsockname()[1]
    first.close()
    return [_open_listener(settings, port, shared=True) for _ in range(settings.server.workers)]


def open_metrics_listener(settings: Settings) -> socket.socket | None:
    """Opens the socket of `metrics.listen`; `None` if the metrics have no separate port."""
    if not (settings.metrics.enabled and settings.metrics.listen):
        return None
    host, port = parse_listen_address(settings.metrics.listen)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(METRICS_BACKLOG)
    except OSError as error:
        listener.close()
        message = (
            f"cannot listen on {settings.metrics.listen} (metrics.listen): {(error.strerror or str(error)).lower()}"
        )
        raise StartupError(message) from None
    return listener


def _open_listener(settings: Settings, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.bind_address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit the options of the listening socket.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        # The kernel closes a connection whose client does not read sent data. The engine cannot detect this, because
        # it has already passed the data to the server.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.server.write_stall_ms)
        # Keep-alive probes detect clients that vanished. Nothing else would detect this on a WebSocket, which may be
        # silent in both directions.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_KEEPALIVE_OPTIONS.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.bind_address, port))
        listener.listen(settings.server.backlog)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {settings.bind_address}:{port}: {(error.strerror or str(error)).lower()}"
        raise StartupError(message) from None
    return listener


def stop_accepting(settings: Settings) -> None:
    """Makes this process stop accepting connections, so that other processes with the same listening socket accept
    them. Connections that this process has accepted continue, even if they are still in their TLS handshake.
    """
    path = f"{settings.server.run_dir}/retired-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.setblocking(False)
        deaf.bind(path)
        deaf.listen(1)
        # After its file is removed, no client can connect to this Unix socket.
        os.unlink(path)
        for name in os.listdir("/proc/self/fd"):
            if _is_listening(int(name), settings.server.port):
                # The Unix socket replaces the listening socket. The server continues to accept from this file
                # descriptor, but gets no connections.
                os.dup2(deaf.fileno(), int(name))


def _is_listening(descriptor: int, port: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            address = duplicate.getsockname()
            is_tcp = duplicate.family in {socket.AF_INET, socket.AF_INET6} and address[1] == port
            return is_tcp and bool(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def make_run_dir(settings: Settings) -> str:
    """Creates the private directory for Unix sockets. Its name is short, because the path of a Unix socket has a
    maximum length.
    """
    try:
        if settings.server.run_dir:
            os.makedirs(settings.server.run_dir, mode=0o700, exist_ok=True)
            os.chmod(settings.server.run_dir, stat.S_IRWXU)
            return settings.server.run_dir
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        return tempfile.mkdtemp(prefix="penstock-", dir=runtime if os.access(runtime, os.W_OK) else None)
    except OSError as error:
        message = f"cannot create the run directory: {error}"
        raise StartupError(message) from None


def remove_run_dir(settings: Settings) -> None:
    """Removes the sockets, and the directory if it contains nothing else."""
    for path in (settings.control_socket, settings.log_socket, settings.plugin_socket):
        with suppress(OSError):
            os.unlink(path)
    with suppress(OSError):
        os.rmdir(settings.server.run_dir)


def open_private_socket(path: str) -> socket.socket:
    """Listens on a private Unix socket. Connections wait in the backlog until the control process accepts them."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        listener.listen(CONTROL_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path!r}: {error.strerror or error} (a path of at most 107 characters is allowed)"
        raise StartupError(message) from None
    return listener


def local_host(settings: Settings) -> str:
    """Returns the IP address at which programs on this machine reach the gateway."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.bind_address, settings.bind_address)  # noqa: S104 - the wildcard address is replaced, not bound


def request_ready_over_tls(settings: Settings, certificate: str) -> socket.socket | None:
    """Like `request_ready`, for a gateway with a certificate. The TLS handshake waits until a worker accepts the
    connection.
    """
    try:
        plain = socket.create_connection((local_host(settings), settings.server.port), timeout=5.0)
        client = create_client_context(certificate).wrap_socket(plain)
        client.sendall(READY_REQUEST)
    except OSError:
        return None
    return client


def request_ready(settings: Settings) -> socket.socket | None:
    """Sends a request to `/ready` and returns the connection. The response arrives when the first worker is ready.
    Returns `None` if the port cannot be reached.
    """
    try:
        client = socket.create_connection((local_host(settings), settings.server.port), timeout=1.0)
        client.sendall(READY_REQUEST)
    except OSError:
        return None
    return client
