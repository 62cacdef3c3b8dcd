"""The first thing a newcomer does: `make run` in a fresh copy, and the lines that it prints pasted into a shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gateway import TARGET
from tests.processes import Program, free_port, wait
from tests.shape.repository import ROOT, files

if TYPE_CHECKING:
    from pathlib import Path

# The registries' crates need not be compiled again, our own are: cargo tells workspaces apart by their path.
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "CARGO_TARGET_DIR": str(TARGET)}
BUILD_SECONDS = 900
READY = "listens on http://"


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    copy = tmp_path / "penstock"
    for path in files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    return copy


def pasted(line: str, folder: Path) -> str:
    """Run a line as it stands; only the interpreter is the one that has the SDK."""
    command = line.replace("python3 ", f"{sys.executable} ", 1)
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        cwd=folder,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS + 120)
def test_make_run_answers_the_lines_that_it_prints(fresh_copy: Path, tmp_path: Path):
    command = ["make", "run", f"ARGS=--port {free_port()}"]
    program = Program(command, tmp_path / "make.log", env=ENVIRONMENT, cwd=fresh_copy)
    try:
        wait("`make run` ready", lambda: (program.must_live(), READY in program.output())[1] or None, BUILD_SECONDS)
        lines = wait(
            "its lines",
            lambda: [line for line in program.output().splitlines() if line.startswith(("curl ", "python3 "))] or None,
        )
        whole, streamed, messages, health, sdk = (pasted(line, tmp_path) for line in lines)
        # Ctrl-C reaches everything in the foreground.
        os.killpg(program.pid, signal.SIGINT)
        program.process.wait(30)
        left = program.members()
    finally:
        program.kill()
    assert '"chat.completion"' in whole
    assert streamed.rstrip().endswith("data: [DONE]")
    assert '"message"' in messages
    assert '"success"' in health
    assert sdk.strip()
    assert not left
