"""Installation of compared gateways from Debian, PyPI or npm. Later runs use the cached installation."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from benches.compare.peers.peer import REPOSITORY_ROOT, PeerUnavailable, run_command

if TYPE_CHECKING:
    from pathlib import Path

# Debian installs servers in directories that are not in an ordinary user's PATH.
SEARCH_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def install_debian_program(program: str, package: str) -> str:
    """Returns the path of a program. Installs its Debian package if it is missing and the user has permission."""
    run_command(REPOSITORY_ROOT / ".ci/debian", f"{program}={package}")
    if actual := shutil.which(program, path=SEARCH_PATH):
        return actual
    message = f"the Debian package `{package}` does not contain `{program}`"
    raise PeerUnavailable(message)


def install_python_package(cache: Path, requirement: str) -> Path:
    """Returns the `bin` folder of a virtual environment with one requirement installed."""
    programs = cache / "venv" / "bin"
    if _is_installed(cache, requirement):
        return programs
    run_command(sys.executable, "-m", "venv", "--clear", cache / "venv")
    run_command(programs / "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    _mark_installed(cache, requirement)
    return programs


def install_npm_packages(cache: Path, dependencies: dict[str, str]) -> Path:
    """Returns the `node_modules` folder, with each package installed in exactly the given version."""
    expected = json.dumps({"private": True, "dependencies": dependencies, "overrides": dependencies})
    modules = cache / "node_modules"
    if _is_installed(cache, expected):
        return modules
    if not shutil.which("npm"):
        message = "`npm` is missing; install the Debian package `npm`"
        raise PeerUnavailable(message)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text(expected)
    run_command("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=cache)
    _mark_installed(cache, expected)
    return modules


def _is_installed(cache: Path, contents: str) -> bool:
    """Returns true if the last completed installation had the same contents."""
    note = cache / "installed"
    return note.is_file() and note.read_text() == contents


def _mark_installed(cache: Path, contents: str) -> None:
    (cache / "installed").write_text(contents)
