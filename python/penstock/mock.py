"""Runs the mock provider next to the gateway, for a first try and for tests."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import process
from penstock.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Generator

DEFAULT_PORT = 8788
# Program of the mock provider that a wheel contains.
BUNDLED_PROGRAM = Path(__file__).with_name("bin") / "penstock-mock"
START_TIMEOUT_SECONDS = 10.0
READY_PREFIX = b"listening on "


@contextmanager
def run_mock_provider(binary: str, port: int | None = None) -> Generator[str]:
    """Starts the mock provider, yields its URL, and stops it on exit. Without a port it listens on `DEFAULT_PORT`, or
    on any free port if that is in use. Raises `StartupError` if it cannot listen.
    """
    if port is None:
        port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else 0
    elif port and not _is_free(port):
        message = f"--mock-port {port} is in use; choose another one, or 0 for any that is free"
        raise StartupError(message)
    child = _start_process(binary, port)
    try:
        yield _read_url(child)
    finally:
        child.terminate()
        try:
            child.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


def _start_process(binary: str, port: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - the operator chooses the program
            [binary, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            preexec_fn=lambda: process.set_parent_death_signal(signal.SIGKILL),  # noqa: PLW1509 - this process has no other threads yet
        )
    except OSError as error:
        hint = "; hint: make wheel, or name the program" if Path(binary) == BUNDLED_PROGRAM else ""
        message = f"cannot start the mock provider {binary!r}: {error.strerror or error}{hint}"
        raise StartupError(message) from None


def _read_url(child: subprocess.Popen[bytes]) -> str:
    output = child.stdout
    if output and select.select([output], [], [], START_TIMEOUT_SECONDS)[0]:
        line = os.read(output.fileno(), 256)
        if line.startswith(READY_PREFIX):
            return line.removeprefix(READY_PREFIX).split()[0].decode()
    message = "the mock provider did not print its address"
    raise StartupError(message)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
