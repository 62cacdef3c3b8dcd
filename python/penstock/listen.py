"""Binds what the gateway listens on: its port, and the private socket of the control process."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import SettingsError, StartupError

if TYPE_CHECKING:
    from penstock.settings import Settings

CONTROL_BACKLOG = 1024
# After so many seconds without a word a caller is asked, so often, and so many times.
TCP_KEEPALIVE_OPTIONS = (
    {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4} if sys.platform == "linux" else {}
)


def check_open_host(settings: Settings, keys: int) -> None:
    """Refuse to be reachable from other machines with nothing that asks who is calling."""
    if settings.is_loopback or keys or settings.store_url or settings.security.require_key is not None:
        return
    message = (
        f"no gateway key is configured, so anyone who reaches {settings.server.host!r} could spend your providers' money\n"
        "hint: add a key to penstock.toml ([[keys]] with name and key),\n"
        "hint: or listen on this machine only (--host 127.0.0.1),\n"
        "hint: or say that something in front of the gateway checks its callers (PENSTOCK_SECURITY_REQUIRE_KEY=false)"
    )
    raise SettingsError(message)


def open_listeners(settings: Settings) -> list[socket.socket]:
    """Listen, one socket per worker: held here, so that a worker's death never refuses a connection."""
    first = _open_listener(settings, settings.server.port, shared=False)
    if settings.server.workers == 1:
        return [first]
    # The first bind was exclusive, to find out whether the port is free; sharing must be said before a bind.
    port: int = first.getsockname()[1]
    first.close()
    return [_open_listener(settings, port, shared=True) for _ in range(settings.server.workers)]


def _open_listener(settings: Settings, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.bind_address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit these.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        # What was handed to the server is out of the engine's sight: who does not read it is left by the kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.server.write_stall_ms)
        # Who vanished without a word is asked, where nothing is said to them: a WebSocket may be silent both ways.
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


def make_run_dir(settings: Settings) -> str:
    """Make the private folder; its name is short because a Unix socket's path must be."""
    try:
        if settings.server.run_dir:
            os.makedirs(settings.server.run_dir, mode=0o700, exist_ok=True)
            os.chmod(settings.server.run_dir, stat.S_IRWXU)
            return settings.server.run_dir
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        return tempfile.mkdtemp(prefix="penstock-", dir=runtime if os.access(runtime, os.W_OK) else None)
    except OSError as error:
        message = f"cannot make the run folder: {error}"
        raise StartupError(message) from None


def remove_run_dir(settings: Settings) -> None:
    """Take away what was put there, and the folder unless it holds something of somebody else's."""
    for path in (settings.control_socket, settings.record_socket):
        with suppress(OSError):
            os.unlink(path)
    with suppress(OSError):
        os.rmdir(settings.server.run_dir)


def open_private_socket(path: str) -> socket.socket:
    """Listen where only our own processes come: who comes before control is up, waits instead of failing."""
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


def request_ready(settings: Settings) -> socket.socket | None:
    """Ask `/ready`; the answer comes when the first worker is."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.bind_address, settings.bind_address)  # noqa: S104 - it is replaced
    try:
        asking = socket.create_connection((host, settings.server.port), timeout=1.0)
        asking.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    except OSError:
        return None
    return asking
