"""Files of a release: the sdist builds a wheel, and the wheel of the release is installed and answers quickly.

`make release` writes the files to DIST, and `make test-release` runs these tests. They need the package index, or the
cache of pip, and a machine without other load.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import Program, free_port, wait_for
from tests.shape.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BUILD_SECONDS = 1800
pytestmark = [pytest.mark.release, pytest.mark.timeout(BUILD_SECONDS)]

# From the start of the installation to the first answered request. Downloads are not counted.
MAX_FIRST_REQUEST_SECONDS = 15.0
MAX_INSTALLED_BYTES = 120 * 1000**2


@pytest.fixture(scope="module")
def dist() -> Path:
    """The folder with the files of the release."""
    return ROOT / os.environ["DIST"]


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> None:
    environ = {**os.environ, **environ}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS, cwd=cwd, env=environ
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def pip(environment: Path, *words: str | Path) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    run(sys.executable, "-m", "pip", "--python", environment / "bin/python", *words, *options)


def test_sdist_builds_a_wheel_with_engine_and_console(dist: Path, tmp_path: Path):
    (archive,) = dist.glob("penstock-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = (item for item in tmp_path.iterdir() if item.is_dir())
    # A folder of its own: the engine that the tests use stays as it is.
    target = str(ROOT / "target/sdist")
    command = [sys.executable, "-m", "maturin", "build", "--locked", "--profile", os.environ["PROFILE"]]
    run(*command, "--out", tmp_path, cwd=folder, CARGO_TARGET_DIR=target)
    (wheel,) = tmp_path.glob("penstock-*.whl")
    with zipfile.ZipFile(wheel) as opened_wheel:
        names = opened_wheel.namelist()
    assert "penstock/console/index.html" in names
    assert [name for name in names if re.fullmatch(r"penstock/_engine\..*\.so", name)]


def test_wheel_answers_soon_after_its_installation_began_and_is_small(dist: Path, tmp_path: Path):
    (wheel,) = dist.glob("penstock-*.whl")
    packages, environment = tmp_path / "packages", tmp_path / "environment"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", packages, wheel)
    venv.create(environment, symlinks=True)
    port = free_port()
    started = time.monotonic()
    pip(environment, "install", "--no-index", "--find-links", packages, wheel)
    command = [environment / "bin/penstock", "serve", "--mock", "--port", str(port)]
    program = Program(command, tmp_path / "serve.log", env={"PATH": ""}, cwd=tmp_path)
    try:
        (key,) = wait_for("the start lines", lambda: (program.check_alive(), read_keys(program))[1], 60)
        headers = {**MOCK_HEADERS, "x-gateway-api-key": key}
        assert send_raw_request(f"http://127.0.0.1:{port}", CHAT_PATH, chat_body(), headers).status == 200
        seconds = time.monotonic() - started
    finally:
        program.stop()
        program.kill()
    (installed,) = environment.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"first request after {seconds:.1f} s; {size / 1000**2:.0f} MB in site-packages")
    assert seconds <= MAX_FIRST_REQUEST_SECONDS
    assert size <= MAX_INSTALLED_BYTES


def read_keys(program: Program) -> list[str] | None:
    return re.findall(r"^export PENSTOCK_API_KEY=(\S+)$", program.read_output(), re.MULTILINE) or None
