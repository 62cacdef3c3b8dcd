"""AWS services emulated by moto in a separate process."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2

from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def run_moto(folder: Path) -> Generator[str]:
    """Runs a moto server and yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    program, url = Program(command, folder / "moto.log", env={}, cwd=folder), f"http://127.0.0.1:{port}"

    def is_ready() -> bool | None:
        program.check_alive()
        try:
            return httpx2.get(f"{url}/moto-api/", timeout=2).status_code == httpx2.codes.OK or None
        except httpx2.TransportError:
            return None

    try:
        wait_for("moto", is_ready, 20)
        yield url
    finally:
        program.kill()
