"""Consistency of the manifests: version, licence, locked dependencies, build targets."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.extras import MODULES
from tests.shape.repository import ROOT, files_under, make_targets, read_text, read_toml

if TYPE_CHECKING:
    from pathlib import Path

LOCK_GROUPS = {
    "run": {"build"},
    "test": {"build", "test", "lint", "lock"},
    "bench": {"build", "test", "lint", "lock", "bench"},
}


def package_name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def test_there_is_one_version():
    versions = {
        penstock.__version__,
        read_toml("pyproject.toml")["project"]["version"],
        read_toml("Cargo.toml")["workspace"]["package"]["version"],
    }
    assert len(versions) == 1


def test_there_is_one_licence():
    assert (
        read_toml("pyproject.toml")["project"]["license"]
        == read_toml("Cargo.toml")["workspace"]["package"]["license"]
        == "Apache-2.0"
    )
    assert "Apache License" in read_text("LICENSE")


def test_every_declared_dependency_is_locked():
    groups = read_toml("pyproject.toml")["dependency-groups"]
    for lock, requested in LOCK_GROUPS.items():
        project = read_toml("pyproject.toml")["project"]
        extras = project["optional-dependencies"]
        wishes = [
            *project["dependencies"],
            *(requirement for name in extras if name != "all" for requirement in extras[name]),
            *(requirement for group in requested for requirement in groups[group]),
        ]
        locked = set(re.findall(r"^([a-z0-9._-]+)==", read_text(f"requirements/{lock}.txt"), re.MULTILINE))
        assert not {package_name(requirement) for requirement in wishes} - locked, lock


def test_every_runtime_dependency_is_imported():
    source = "".join(read_text(path) for path in files_under("python", ".py"))
    brings: dict[str, set[str]] = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            brings.setdefault(re.sub(r"[-_.]+", "-", package.lower()), set()).add(module)
    needed = {package_name(requirement) for requirement in read_toml("pyproject.toml")["project"]["dependencies"]}
    unused = {
        name for name in needed if not re.search(rf"(from|import) ({'|'.join(brings[name])})\b", source, re.MULTILINE)
    }
    # SQLAlchemy loads its drivers by name.
    assert unused == {"aiosqlite"}


def test_the_extra_for_everything_lists_all_others():
    extras = read_toml("pyproject.toml")["project"]["optional-dependencies"]
    assert extras["all"] == [f"penstock[{','.join(sorted(extras.keys() - {'all'}))}]"]
    assert MODULES.keys() == extras.keys() - {"all", "vault"}


def read_banned_crates() -> dict[str, set[str]]:
    """Returns each banned crate with the wrapper crates that may still depend on it."""
    return {row["crate"]: set(row.get("wrappers", [])) for row in read_toml("deny.toml")["bans"]["deny"]}


def test_no_banned_crate_is_locked():
    locked = read_toml("Cargo.lock")["package"]
    for crate, wrappers in read_banned_crates().items():
        bringing = {
            package["name"]
            for package in locked
            if crate in {needed.split()[0] for needed in package.get("dependencies", [])}
        }
        assert bringing <= wrappers, crate
        assert wrappers or crate not in {package["name"] for package in locked}, crate


def is_licence_allowed(expression: str) -> bool:
    """Evaluates the licence of a crate: parts joined by AND, each of which is a choice by OR or a slash."""
    allowed = set(read_toml("deny.toml")["licenses"]["allow"])
    parts = expression.replace("(", "").replace(")", "").split(" AND ")
    return all(allowed & {name.strip() for name in re.split(r" OR |/", part)} for part in parts)


def test_every_crate_has_an_allowed_licence():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--all-features"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    metadata = json.loads(done.stdout)
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    licences = {
        package["name"]: package["license"] or "none"
        for package in metadata["packages"]
        if package["id"] in used and package["source"]
    }
    assert len(licences) > 100
    assert {name: text for name, text in licences.items() if not is_licence_allowed(text)} == {}


def test_larger_lock_has_the_versions_of_the_smaller():
    pins = {
        lock: set(re.findall(r"^(\S+==\S+)", read_text(f"requirements/{lock}.txt"), re.MULTILINE))
        for lock in LOCK_GROUPS
    }
    assert pins["run"] <= pins["test"] <= pins["bench"]


def test_every_optional_sdk_is_declared_locked_and_installed():
    (listed,) = re.findall(r"^SDKS := (.*)$", read_text("Makefile"), re.MULTILINE)
    groups = read_toml("pyproject.toml")["dependency-groups"]
    assert sorted(f"sdk-{name}" for name in listed.split()) == sorted(
        name for name in groups if name.startswith("sdk-")
    )
    for name in listed.split():
        lock = read_text(f"requirements/sdk-{name}.txt")
        locked = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))
        assert not {package_name(requirement) for requirement in groups[f"sdk-{name}"]} - locked, name
        # The group of an older SDK is named after its package and the major version that it pins.
        package, _, major = name.rpartition("-")
        assert not package or re.search(rf"^{package}=={major}\.", lock, re.MULTILINE), name


def test_ci_only_runs_make_test():
    commands = [line for line in read_text(".ci/run").splitlines() if line and not line.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test </dev/null"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_clean_removes_all_install_and_build_folders():
    command = ["make", "--dry-run", "clean", "CARGO_TARGET_DIR=/else/where"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert set(done.stdout.split()) >= {".venv", ".cache", "/else/where"}


@pytest.mark.parametrize(("machine", "is_installed"), [("x86_64", True), ("aarch64", False)])
def test_helm_is_only_installed_on_machines_that_can_run_it(tmp_path: Path, machine: str, is_installed: bool):
    command = ["make", "--dry-run", "test-installs", f"MACHINE={machine}", f"STAMPS={tmp_path}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert ("installing the helm program" in done.stdout) == is_installed
    assert "Node packages" in done.stdout


def test_pre_commit_only_calls_make_targets():
    called = re.findall(r"entry: make (\S+)", read_text(".pre-commit-config.yaml"))
    assert called
    assert set(called) <= make_targets()


def test_image_gets_every_file_that_the_console_is_generated_from():
    sources = set(re.findall(r'new URL\("\.\./\.\./(docs/[^"]+)"', read_text("console/scripts/generate-types.mjs")))
    assert sources
    copied = re.findall(r"^COPY (docs/.+) docs/$", read_text("deploy/container/Containerfile"), re.MULTILINE)
    assert set(copied[0].split()) == sources
    assert sources <= {line.removeprefix("!") for line in read_text(".containerignore").splitlines()}
    prerequisites = re.findall(r"^\$\(STAMPS\)/console:.+$", read_text("Makefile"), re.MULTILINE)
    assert sources <= set(prerequisites[0].split())
