"""Manifests that agree with each other."""

from __future__ import annotations

import re

import penstock
from tests.shape.repository import ROOT, text, toml, verbs

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


def test_pre_commit_calls_verbs():
    called = re.findall(r"entry: make (\S+)", text(".pre-commit-config.yaml"))
    assert called
    assert set(called) <= verbs()
