"""Mock provider that all compared gateways use as their upstream."""

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

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
READY_PREFIX = "listening on "


def find_binary(name: str) -> Path:
    """Returns the path of a program of the workspace: from its environment variable, or from the release folder."""
    override = os.environ.get(name.upper().replace("-", "_"))
    path = (
        Path(override)
        if override
        else REPOSITORY_ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / name
    )
    if not path.is_file():
        message = f"{path} is missing; run `cargo build --release -p penstock-mock`"
        raise SystemExit(message)
    return path


@contextmanager
def run_provider(port: int) -> Iterator[str]:
    """Runs the mock provider for the duration of the block and yields its address."""
    command = [find_binary("penstock-mock"), "--host", "127.0.0.1", "--port", str(port), "--no-ledger"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _read_address(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _read_address(process: subprocess.Popen[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    output = process.stdout or io.StringIO()
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=10).strip()
    except queue.Empty:
        line = ""
    if not line.startswith(READY_PREFIX):
        message = f"the mock provider printed {line!r} instead of its address"
        raise SystemExit(message)
    return line.removeprefix(READY_PREFIX)
