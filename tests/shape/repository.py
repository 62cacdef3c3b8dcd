"""Files and manifests of the repository, for the tests of its structure."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IGNORED_FOLDERS = [
    line for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/") and "*" not in line
]
# A pattern with a slash at its start or in the middle is a path from the root; others match at any depth.
IGNORED_PATHS = {line.strip("/") for line in IGNORED_FOLDERS if "/" in line[:-1]}
IGNORED_NAMES = {".git"} | {line.strip("/") for line in IGNORED_FOLDERS if "/" not in line[:-1]}


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Returns every file of the repository, relative to its root, without built or installed files."""
    paths: list[Path] = []
    for folder, below, names in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        below[:] = [
            name for name in below if name not in IGNORED_NAMES and (here / name).as_posix() not in IGNORED_PATHS
        ]
        paths += [here / name for name in names if not name.endswith((".so", ".pyc")) and name not in IGNORED_NAMES]
    return tuple(sorted(paths))


def files_under(folder: str, *suffixes: str) -> list[Path]:
    """Returns the files below a folder that have one of the suffixes."""
    return [path for path in repository_files() if path.is_relative_to(folder) and path.suffix in suffixes]


def read_text(path: Path | str) -> str:
    return (ROOT / path).read_text()


@functools.cache
def read_toml(path: str) -> dict[str, Any]:
    return tomllib.loads(read_text(path))


@functools.cache
def make_targets() -> frozenset[str]:
    """Returns the names of the targets in the Makefile."""
    return frozenset(re.findall(r"^([a-z][a-z-]*):", read_text("Makefile"), re.MULTILINE))


@functools.cache
def workspace_crates() -> dict[str, dict[str, Any]]:
    """Returns the workspace's crates by name, as `cargo metadata` reports them."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    return {package["name"]: package for package in json.loads(done.stdout)["packages"]}


def crate_dependencies(crate: str) -> set[str]:
    """Returns the normal dependencies of a crate, without build and dev dependencies."""
    return {
        dependency["name"] for dependency in workspace_crates()[crate]["dependencies"] if dependency["kind"] is None
    }
