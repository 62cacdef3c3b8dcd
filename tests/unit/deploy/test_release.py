"""Files of a release: the software bill of materials, and an sdist that contains what a build needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.shape.repository import ROOT, read_text, read_toml

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 300


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("release") / "penstock-sbom.cdx.json"
    subprocess.run([sys.executable, ROOT / "deploy/release/sbom.py", file], check=True, timeout=SECONDS)
    return json.loads(file.read_text())


def test_sbom_lists_every_locked_python_package_with_hashes(sbom: Any):
    pinned = set(re.findall(r"^([a-z0-9._-]+)==(\S+)", read_text("requirements/run.txt"), re.MULTILINE))
    listed = [item for item in sbom["components"] if item["purl"].startswith("pkg:pypi/")]
    assert {(item["name"], item["version"]) for item in listed} == {item for item in pinned if item[0] != "maturin"}
    assert all(item["properties"] for item in listed)


def test_sbom_lists_linked_crates_and_no_crates_of_tests(sbom: Any):
    crates = {item["name"]: item for item in sbom["components"] if item["purl"].startswith("pkg:cargo/")}
    assert {"tokio", "pyo3", "rustls", "mimalloc"} <= crates.keys()
    assert not {"criterion", "penstock-core"} & crates.keys()
    assert all(re.fullmatch(r"[0-9a-f]{64}", item["hashes"][0]["content"]) for item in crates.values())


def test_sbom_has_the_console_and_unique_references(sbom: Any):
    references = [item["bom-ref"] for item in sbom["components"]]
    assert len(references) == len(set(references))
    assert any(reference.startswith("pkg:npm/svelte@") for reference in references)
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert sbom["metadata"]["component"]["version"] == read_toml("pyproject.toml")["project"]["version"]


@pytest.mark.slow(8)
def test_sdist_has_every_crate_and_the_console(tmp_path: Path):
    maturin = [sys.executable, "-m", "maturin", "sdist", "--out", tmp_path]
    subprocess.run(maturin, check=True, capture_output=True, timeout=SECONDS, cwd=ROOT, stdin=subprocess.DEVNULL)
    (archive,) = tmp_path.glob("penstock-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = (item for item in tmp_path.iterdir() if item.is_dir())
    assert (folder / "python/penstock/console/index.html").is_file()
    # Fails if a crate of the workspace or the lock is missing.
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--no-deps"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, cwd=folder)
    assert {"penstock-py", "penstock-core"} <= {load["name"] for load in json.loads(done.stdout)["packages"]}
