"""Manifests that agree with each other."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import packages_distributions

import penstock
from tests.shape.repository import ROOT, text, toml, under, verbs

LOCKS = {
    "run": {"build"},
    "test": {"build", "test", "lint", "lock"},
    "bench": {"build", "test", "lint", "lock", "bench"},
}


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def test_there_is_one_version():
    versions = {
        penstock.__version__,
        toml("pyproject.toml")["project"]["version"],
        toml("Cargo.toml")["workspace"]["package"]["version"],
    }
    assert len(versions) == 1


def test_there_is_one_licence():
    assert (
        toml("pyproject.toml")["project"]["license"]
        == toml("Cargo.toml")["workspace"]["package"]["license"]
        == "Apache-2.0"
    )
    assert "Apache License" in text("LICENSE")


def test_every_wish_is_locked():
    groups = toml("pyproject.toml")["dependency-groups"]
    for lock, asked in LOCKS.items():
        wishes = [
            *toml("pyproject.toml")["project"]["dependencies"],
            *(wish for group in asked for wish in groups[group]),
        ]
        locked = set(re.findall(r"^([a-z0-9._-]+)==", text(f"requirements/{lock}.txt"), re.MULTILINE))
        assert not {name_of(wish) for wish in wishes} - locked, lock


def test_every_package_that_is_installed_for_use_is_imported():
    source = "".join(text(path) for path in under("python", ".py"))
    brings: dict[str, set[str]] = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            brings.setdefault(re.sub(r"[-_.]+", "-", package.lower()), set()).add(module)
    needed = {name_of(wish) for wish in toml("pyproject.toml")["project"]["dependencies"]}
    unused = {
        name for name in needed if not re.search(rf"(from|import) ({'|'.join(brings[name])})\b", source, re.MULTILINE)
    }
    # SQLAlchemy loads its drivers, and Azure's libraries their transport.
    assert unused == {"aiohttp", "asyncpg"}


def banned() -> dict[str, set[str]]:
    """The crates that may not come in, and those that may bring them all the same."""
    return {row["crate"]: set(row.get("wrappers", [])) for row in toml("deny.toml")["bans"]["deny"]}


def test_no_banned_crate_is_locked():
    locked = toml("Cargo.lock")["package"]
    for crate, wrappers in banned().items():
        bringing = {
            package["name"]
            for package in locked
            if crate in {needed.split()[0] for needed in package.get("dependencies", [])}
        }
        assert bringing <= wrappers, crate
        assert wrappers or crate not in {package["name"] for package in locked}, crate


def test_a_larger_lock_holds_the_versions_of_the_smaller():
    pins = {lock: set(re.findall(r"^(\S+==\S+)", text(f"requirements/{lock}.txt"), re.MULTILINE)) for lock in LOCKS}
    assert pins["run"] <= pins["test"] <= pins["bench"]


def test_every_further_sdk_is_wished_for_locked_and_installed():
    (listed,) = re.findall(r"^SDKS := (.*)$", text("Makefile"), re.MULTILINE)
    groups = toml("pyproject.toml")["dependency-groups"]
    assert sorted(f"sdk-{name}" for name in listed.split()) == sorted(
        name for name in groups if name.startswith("sdk-")
    )
    for name in listed.split():
        lock = text(f"requirements/sdk-{name}.txt")
        locked = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))
        assert not {name_of(wish) for wish in groups[f"sdk-{name}"]} - locked, name
        # An older one is named after its package and the major version that it is kept for.
        package, _, major = name.rpartition("-")
        assert not package or re.search(rf"^{package}=={major}\.", lock, re.MULTILINE), name


def test_ci_calls_the_test_verb_and_nothing_of_its_own():
    commands = [line for line in text(".ci/run").splitlines() if line and not line.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test </dev/null"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_cleaning_takes_what_was_installed_and_what_was_built_wherever_that_is():
    command = ["make", "--dry-run", "clean", "CARGO_TARGET_DIR=/else/where"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert set(done.stdout.split()) >= {".venv", ".cache", "/else/where"}


def test_pre_commit_calls_verbs():
    called = re.findall(r"entry: make (\S+)", text(".pre-commit-config.yaml"))
    assert called
    assert set(called) <= verbs()
