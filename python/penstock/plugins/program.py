"""Starts the plug-in process without the gateway's memory, open files and environment."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.errors import StartupError
from penstock.listen import open_private_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from penstock.settings import Settings
    from penstock.settings.guardrail_plugins import GuardrailPlugins

# Maximum time in which all plug-ins must be loaded.
LOAD_SECONDS = 120.0
# Environment variables that plug-ins receive. Others may contain credentials.
PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")


def register_plugins(settings: Settings) -> None:
    """Adds the checks of all plug-ins to the engine. Raises StartupError if one cannot be used."""
    if not settings.guardrail_plugins.paths:
        return
    described = describe_plugins(settings.guardrail_plugins)
    # Imported here, because without plug-ins this process does not need the engine.
    engine = importlib.import_module("penstock.engine")
    try:
        engine.register_plugins(described)
    except ValueError as error:
        message = f"guardrail_plugins.paths: {error}"
        raise StartupError(message) from None


def open_socket(settings: Settings) -> socket.socket | None:
    """Opens the Unix socket of the plug-in process, and sets its path in the engine. Returns `None` without
    plug-ins.
    """
    if not settings.guardrail_plugins.paths:
        return None
    engine = importlib.import_module("penstock.engine")
    engine.set_plugin_socket(settings.plugin_socket)
    return open_private_socket(settings.plugin_socket)


def describe_plugins(guardrail_plugins: GuardrailPlugins) -> bytes:
    """Returns the checks of all plug-ins as a JSON array. Raises StartupError if one cannot be loaded."""
    try:
        described = subprocess.run(  # noqa: S603 - runs only this Python interpreter
            _make_command("describe", guardrail_plugins, 0),
            env=_make_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"guardrail_plugins.paths: the plug-ins take longer than {LOAD_SECONDS:.0f} s to load"
        raise StartupError(message) from None
    if described.returncode != 0:
        lines = described.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {described.returncode}"]
        message = f"guardrail_plugins.paths: {lines[-1].removeprefix('penstock: ')}"
        raise StartupError(message)
    return described.stdout


class PluginProcess:
    """The plug-in process. Has the methods of `multiprocessing.Process` that the supervisor uses."""

    def __init__(self, guardrail_plugins: GuardrailPlugins, listener: socket.socket) -> None:
        """Stores the settings and the socket; `start` creates the process."""
        self._plugins, self._listener = guardrail_plugins, listener
        self._program: subprocess.Popen[bytes] | None = None
        # The process has the other end of this pipe. The pipe closes when the process exits.
        self._pipe: Any = None

    def start(self) -> None:
        """Starts the process."""
        read_end, write_end = os.pipe()
        self._pipe = os.fdopen(read_end, "rb", buffering=0)
        descriptor = self._listener.fileno()
        try:
            self._program = subprocess.Popen(  # noqa: S603 - runs only this Python interpreter
                _make_command("serve", self._plugins, descriptor),
                env=_make_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor, write_end),
                # Ctrl-C signals the whole foreground process group, but only the supervisor may stop it.
                process_group=0,
            )
        finally:
            os.close(write_end)

    @property
    def sentinel(self) -> int:
        """File descriptor that becomes readable when the process exits."""
        return self._pipe.fileno()

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return self._program.pid if self._program else None

    @property
    def exitcode(self) -> int | None:
        """Exit status, or the negative number of a signal; `None` while the process runs."""
        return self._program.poll() if self._program else None

    def is_alive(self) -> bool:
        """Returns true while the process runs."""
        return self._program is not None and self._program.poll() is None

    def join(self) -> None:
        """Waits until the process has exited."""
        if self._program:
            self._program.wait()


class PluginProcessFactory:
    """Creates the plug-in process for the supervisor."""

    def __init__(self, guardrail_plugins: GuardrailPlugins, listener: socket.socket) -> None:
        """Stores the settings and the socket of the process."""
        self._plugins, self._listener = guardrail_plugins, listener

    def prepare_worker(self, load: Callable[[], Any]) -> Any:  # noqa: ANN401 - it stands for a multiprocessing.Process
        """Returns a process that is not started. It runs a separate program, so `load` is not called."""
        del load
        return PluginProcess(self._plugins, self._listener)


def _make_command(verb: str, guardrail_plugins: GuardrailPlugins, descriptor: int) -> list[str]:
    # `-P` keeps modules of the working directory from being imported.
    numbers = [str(guardrail_plugins.memory_bytes), str(os.getpid()), str(descriptor)]
    return [sys.executable, "-P", "-m", "penstock.plugins.host", verb, *numbers, *guardrail_plugins.paths]


def _make_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
