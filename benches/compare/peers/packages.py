"""Installation of compared gateways from Debian, PyPI or npm. Later runs use the cached installation."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from benches.compare.peers.peer import REPOSITORY, Unavailable, run

if TYPE_CHECKING:
    from pathlib import Path

# Debian installs servers in directories that are not in an ordinary user's PATH.
SEARCHED = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def debian(program: str, package: str) -> str:
    """Returns the path of a program. Installs its Debian package if it is missing and the user has permission."""
    run(REPOSITORY / ".ci/debian", f"{program}={package}")
    if found := shutil.which(program, path=SEARCHED):
        return found
    message = f"the Debian package `{package}` does not contain `{program}`"
    raise Unavailable(message)


def python(cache: Path, requirement: str) -> Path:
    """Returns the `bin` folder of a virtual environment with one requirement installed."""
    programs = cache / "venv" / "bin"
    if _remembers(cache, requirement):
        return programs
    run(sys.executable, "-m", "venv", "--clear", cache / "venv")
    run(programs / "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    _remember(cache, requirement)
    return programs


def node(cache: Path, dependencies: dict[str, str]) -> Path:
    """Returns the `node_modules` folder, with each package installed in exactly the given version."""
    wanted = json.dumps({"private": True, "dependencies": dependencies, "overrides": dependencies})
    modules = cache / "node_modules"
    if _remembers(cache, wanted):
        return modules
    if not shutil.which("npm"):
        message = "`npm` is missing; install the Debian package `npm`"
        raise Unavailable(message)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text(wanted)
    run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=cache)
    _remember(cache, wanted)
    return modules


def _remembers(cache: Path, what: str) -> bool:
    """Returns true if the last completed installation had the same contents."""
    note = cache / "installed"
    return note.is_file() and note.read_text() == what


def _remember(cache: Path, what: str) -> None:
    (cache / "installed").write_text(what)
