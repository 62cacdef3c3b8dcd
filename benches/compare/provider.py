"""The pretend provider that every gateway has behind it."""

from __future__ import annotations

import io
import os
import queue
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
READY = "listening on "


def binary(name: str) -> Path:
    """Where a program of the workspace was built: told by its variable, or in the release folder."""
    told = os.environ.get(name.upper().replace("-", "_"))
    path = Path(told) if told else REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / name
    if not path.is_file():
        message = f"{path} is missing; hint: `cargo build --release -p penstock-mock`"
        raise SystemExit(message)
    return path


@contextmanager
def running(port: int) -> Iterator[str]:
    """The provider's address, for as long as the block lasts."""
    command = [binary("penstock-mock"), "--host", "127.0.0.1", "--port", str(port), "--no-ledger"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _address(process: subprocess.Popen[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    output = process.stdout or io.StringIO()
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=10).strip()
    except queue.Empty:
        line = ""
    if not line.startswith(READY):
        message = f"the pretend provider said {line!r} instead of where it listens"
        raise SystemExit(message)
    return line.removeprefix(READY)
