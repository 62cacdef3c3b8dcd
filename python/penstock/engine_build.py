"""Checks that the engine was built from the sources of this checkout. Otherwise an engine of another build would fail
at some later call.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from penstock import __version__, engine
from penstock.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Crates that the engine is built from. `rust/py/build.rs` has the same list.
CRATES = ("core", "llm", "net", "py")
# Folder of the Rust sources in a checkout. A wheel has none: its engine and its Python files were built together.
RUST_FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "rust")
HINT = "hint: run `make build` in a checkout; otherwise install the package again"


def check_engine_build(rust_folder: str = RUST_FOLDER) -> None:
    """Raises StartupError if the engine has another version, or was built from other Rust sources than those of this
    checkout.
    """
    if __version__ != engine.VERSION:
        raise StartupError(f"the engine has version {engine.VERSION}, but Penstock is {__version__}; {HINT}")
    if os.path.exists(os.path.join(rust_folder, "py", "build.rs")) and (
        digest_sources(rust_folder) != engine.SOURCES_SHA256
    ):
        folder = os.path.realpath(rust_folder)
        raise StartupError(f"the engine was built from other sources than those in {folder!r}; {HINT}")


def digest_sources(rust_folder: str) -> str:
    """Returns the digest of the engine's `.rs` files, as `rust/py/build.rs` computes it."""
    result = hashlib.sha256()
    for crate in CRATES:
        for path in sorted(_list_sources(rust_folder, f"{crate}/src"), key=str.encode):
            result.update(path.encode() + b"\0")
            with open(os.path.join(rust_folder, path), "rb") as file:
                result.update(file.read() + b"\0")
    return result.hexdigest()


def _list_sources(rust_folder: str, path: str) -> Iterator[str]:
    with os.scandir(os.path.join(rust_folder, path)) as entries:
        for entry in entries:
            name = f"{path}/{entry.name}"
            if entry.is_dir():
                yield from _list_sources(rust_folder, name)
            elif name.endswith(".rs"):
                yield name
