"""`make run` in a fresh copy, as a newcomer runs it. The commands that it prints are pasted into a shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.gateway import CARGO_TARGET_DIR
from tests.processes import Program, free_port, wait_for
from tests.shape.repository import ROOT, repository_files

# The shared target directory avoids compiling crates again. Only those that depend on the path of Python are compiled.
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ["HOME"],
    "CARGO_TARGET_DIR": str(CARGO_TARGET_DIR),
    # A release build of our crates takes longer than most of the other tests together.
    "PROFILE": "dev",
}
BUILD_SECONDS = 900
READY_MESSAGE = "listens on http://"
COMMAND_PREFIXES = ("export ", "curl ", "python3 ", "sdk/bin/")


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    copy = tmp_path / "penstock"
    for path in repository_files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    return copy


@pytest.fixture
def terminal(tmp_path: Path) -> Path:
    """Folder in which the printed commands run. The SDK is already in its virtual environment but pip is not, so
    nothing is downloaded.
    """
    folder = tmp_path / "terminal"
    venv.create(folder / "sdk", symlinks=True)
    (packages,) = (folder / "sdk/lib").glob("python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith("pip"):
            (packages / installed.name).symlink_to(installed)
    return folder


def run_line(line: str, folder: Path) -> str:
    """Runs a printed line unchanged; `python3` is the interpreter that runs the tests."""
    done = subprocess.run(
        ["/bin/bash", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={"PATH": f"{sys.base_exec_prefix}/bin:/usr/bin:/bin", "PIP_NO_INDEX": "1"},
        cwd=folder,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow(95)
@pytest.mark.timeout(BUILD_SECONDS + 120)
def test_make_run_serves_the_commands_that_it_prints(fresh_copy: Path, terminal: Path, tmp_path: Path):
    command = ["make", "run", f"ARGS=--port {free_port()}"]
    program = Program(command, tmp_path / "make.log", env=ENVIRONMENT, cwd=fresh_copy)
    try:
        wait_for(
            "`make run` ready",
            lambda: (program.check_alive(), READY_MESSAGE in program.read_output())[1] or None,
            BUILD_SECONDS,
        )
        lines = wait_for(
            "its lines",
            lambda: [line for line in program.read_output().splitlines() if line.startswith(COMMAND_PREFIXES)] or None,
        )
        key, *commands = lines
        complete, streamed, messages, health, _, sdk = (run_line(f"{key}; {line}", terminal) for line in commands)
        # Ctrl-C sends SIGINT to the whole foreground process group.
        os.killpg(program.pid, signal.SIGINT)
        program.process.wait(30)
        remaining = program.session_processes()
    finally:
        program.kill()
    assert '"chat.completion"' in complete
    assert streamed.rstrip().endswith("data: [DONE]")
    assert '"message"' in messages
    assert '"success"' in health
    assert sdk.strip()
    assert not remaining
