"""AWS services emulated by moto in a separate process."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.processes import Program, free_port, responds_ok, wait_for

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def run_moto(folder: Path) -> Generator[str]:
    """Runs a moto server and yields its URL."""
    with run_moto_program(folder) as (_, url):
        yield url


@contextmanager
def run_moto_program(folder: Path) -> Generator[tuple[Program, str]]:
    """Runs a moto server and yields its process, which tests may freeze, and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    program, url = Program(command, folder / "moto.log", env={}, cwd=folder), f"http://127.0.0.1:{port}"

    def is_ready() -> bool | None:
        program.check_alive()
        return responds_ok(f"{url}/moto-api/") or None

    try:
        wait_for("moto", is_ready, 20)
        yield program, url
    finally:
        program.kill()
