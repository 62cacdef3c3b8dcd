"""Software bill of materials (CycloneDX 1.6) of a release: the locked Python packages, Rust crates and npm packages that
its wheel and image contain.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
# Packages that only build the wheel. No release contains them.
BUILD_PACKAGES = frozenset({"maturin"})
# Matches the entry of one package in a lock: name, version and hashes.
PIN_PATTERN = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==(\S+)(?: ;[^\n]*?)?((?:[^\n]*\\\n +--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE
)
# Crates that a release contains: the engine and the mock provider. Other crates belong to tests and benches.
PACKED_CRATES = ("penstock-py", "penstock-mock")
CARGO_SECONDS = 300


def list_python_packages(lock: str) -> Iterator[dict[str, Any]]:
    """Yields the packages of a lock. A package has several files, so their hashes are properties."""
    for name, version, hashes in PIN_PATTERN.findall(lock):
        if name in BUILD_PACKAGES:
            continue
        digests = re.findall(r"sha256:([0-9a-f]{64})", hashes)
        yield _component("pypi", name, version) | {
            "properties": [{"name": "penstock:file:sha256", "value": digest} for digest in digests]
        }


def list_crates(metadata: dict[str, Any], checksums: dict[tuple[str, str], str]) -> Iterator[dict[str, Any]]:
    """Yields the crates that are linked into the programs, from `cargo metadata`."""
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {
        node["id"]: [
            edge["pkg"] for edge in node["deps"] if any(kind["kind"] in {None, "build"} for kind in edge["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    pending = [key for key, package in packages.items() if package["name"] in PACKED_CRATES]
    reached: set[str] = set()
    while pending:
        key = pending.pop()
        if key in reached:
            continue
        reached.add(key)
        pending += edges[key]
    for key in sorted(reached, key=lambda package: (packages[package]["name"], packages[package]["version"])):
        package = packages[key]
        if package["source"] is None:
            continue
        crate = _component("cargo", package["name"], package["version"])
        if digest := checksums.get((package["name"], package["version"])):
            crate["hashes"] = [{"alg": "SHA-256", "content": digest}]
        if package["license"]:
            crate["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        yield crate


def list_npm_packages(lock: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the packages that the console is built from; the bundler copies parts of them into it."""
    for path, package in sorted(lock["packages"].items()):
        if path and "version" in package and not package.get("optional"):
            name = path.rpartition("node_modules/")[2]
            yield _component("npm", name, package["version"])


def build_sbom(version: str) -> dict[str, Any]:
    """Returns the document. It has no date and no serial number, so the same locks give the same bytes."""
    command = [
        "cargo",
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]
    printed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=CARGO_SECONDS).stdout
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(crate["name"], crate["version"]): crate.get("checksum", "") for crate in locked}
    components = [
        *list_python_packages((ROOT / "requirements/run.txt").read_text()),
        *list_crates(json.loads(printed), checksums),
        *list_npm_packages(json.loads((ROOT / "console/package-lock.json").read_text())),
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "penstock", "version": version, "bom-ref": "penstock"},
        },
        "components": list({component["bom-ref"]: component for component in components}.values()),
    }


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    reference = f"pkg:{kind}/{quote(name, safe='/')}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": reference, "bom-ref": reference}


def main() -> None:
    """Writes the document to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    file.write_text(json.dumps(build_sbom(version), indent=1) + "\n")


if __name__ == "__main__":
    main()
