"""Runs `penstock` commands as forks of a process that has already imported the package.

Imports are more than half of the CPU time of a start, and the tests start hundreds of gateways and commands. Tests
marked `figures` or `real_start` run the interpreter instead, because they look at memory, times or command lines.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Modules that the processes import while they run, so that no module of the package names them at its top.
LAZY_MODULES = (
    "aiosqlite",
    "anyio._backends._asyncio",
    "asyncpg",
    "genai_prices.data",
    "granian",
    "litestar.middleware",
    "redis.asyncio",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
)
# Files that run like the package itself, with some of its functions replaced.
LAUNCHERS = (Path(__file__).parent / "integration/launcher.py",)
# The embedded database starts threads, which a fork would lose.
NOT_PRELOADED = ("penstock.__main__", "penstock.logs.engines")


def preload() -> None:
    """Imports the package; called once, in the fork server."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith(NOT_PRELOADED):
            importlib.import_module(module.name)
    for name in LAZY_MODULES:
        importlib.import_module(name)
    _share_routes()
    assert threading.active_count() == 1, threading.enumerate()


def _share_routes() -> None:
    """Registers the routes of the control process once for all forks. That is most of the CPU time of its start."""
    app: Any = importlib.import_module("penstock.app")
    create_app, registered = app.create_app, app.create_documented_app()

    def create_with_routes(settings: Any, *parts: Any, **more: Any) -> Any:
        return create_app(settings, *parts, **more, registered=registered if settings.store_url else None)

    app.create_app = create_with_routes


class ForkedProcess:
    """A `penstock` command with the part of `subprocess.Popen` that tests use."""

    def __init__(self, command: Sequence[str], output: Path, env: Mapping[str, str], cwd: Path, errors: Path) -> None:
        self.args = list(command)
        self._process = _context().Process(
            target=run_command, args=(self.args[1:], str(output), str(errors), dict(env), str(cwd))
        )
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @staticmethod
    def can_run(command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Checks that the command is `python -m penstock …` or a launcher, and that this test may use a fork. The
        dynamic linker reads its variables only when a program starts.
        """
        if any(name.startswith("LD_") for name in env):
            return False
        is_penstock = list(command[:3]) == [sys.executable, "-m", "penstock"]
        return _is_enabled and (is_penstock or list(command[:2]) in [[sys.executable, str(file)] for file in LAUNCHERS])

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


_is_enabled = True


@contextmanager
def use_real_starts(*, real: bool) -> Iterator[None]:
    """Makes the commands of the `with` block start with the interpreter, if `real`."""
    global _is_enabled  # noqa: PLW0603 - one switch for each process
    before, _is_enabled = _is_enabled, not real
    try:
        yield
    finally:
        _is_enabled = before


def run_penstock(
    *words: str, env: Mapping[str, str], cwd: Path | None = None, input_text: str = "", timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """Runs one `penstock` command to its end; returns its exit status and its output."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors, body = (Path(folder) / name for name in ("output", "errors", "input"))
        body.write_text(input_text)
        command = [sys.executable, "-m", "penstock", *words]
        if not ForkedProcess.can_run(command, env):
            return subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                input=input_text,
                env=dict(env),
                cwd=cwd,
                timeout=timeout,
            )
        process = ForkedProcess(command, output, {**env, "TEST_INPUT": str(body)}, cwd or Path.cwd(), errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())


def run_command(words: list[str], output: str, errors: str, env: dict[str, str], cwd: str) -> None:
    """Turns this fork into `python` with these words: an own session, environment, folder and files."""
    os.setsid()
    os.chdir(cwd)
    body = env.pop("TEST_INPUT", os.devnull)
    os.environ.clear()
    os.environ.update(env)
    sys.stdout.flush()
    sys.stderr.flush()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [os.open(body, os.O_RDONLY), os.open(output, flags, 0o644), os.open(errors, flags, 0o644)]
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module("penstock", run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fork_server_preload"])
    return context
