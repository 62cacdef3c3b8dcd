"""Reads the files in `deploy/`, and finds the settings that they name."""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from penstock import serve
from penstock.cli import main
from penstock.settings import Settings, iter_setting_specs, load_settings
from tests.shape.repository import ROOT, read_text, repository_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEPLOY = ROOT / "deploy"
# Variables that are no settings: those of the command line, and those of the Compose file alone.
OTHER_VARIABLES = {"PENSTOCK_CONFIG", "PENSTOCK_IMAGE", "PENSTOCK_PORT"}
# Seconds that the processes need after the drain time, before the supervisor has ended.
SECONDS_AFTER_DRAIN = serve.EDGE_GRACE + serve.CONTROL_GRACE + serve.LOGS_GRACE

HELM_OF_MAKE = ROOT / ".cache/helm/helm/helm"
# `make test` installs Helm on x86-64. Elsewhere, and for `make test-fast`, Helm of the machine is used if it has one.
HELM = str(HELM_OF_MAKE) if HELM_OF_MAKE.exists() and platform.machine() == "x86_64" else shutil.which("helm")
needs_helm = pytest.mark.skipif(not HELM, reason="helm is not installed; `make test-installs` does, on x86-64")


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs Helm in the root of the repository. Relative paths of charts and values files are relative to it."""
    assert HELM
    command = [HELM, *words]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=ROOT
    )


def read_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


def read_yaml_documents(text: str) -> list[Any]:
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document]


@functools.cache
def setting_variables() -> frozenset[str]:
    """Returns the names of all environment variables that are settings."""
    return frozenset(name for entry in iter_setting_specs() for name in (entry.env, *entry.other_envs))


@functools.cache
def setting_paths() -> frozenset[str]:
    """Returns the names of all settings in `penstock.toml`."""
    return frozenset(entry.path for entry in iter_setting_specs())


def files_of(folder: str) -> list[Path]:
    """Returns the files below a folder of `deploy/`, relative to the root of the repository."""
    return [path for path in repository_files() if path.is_relative_to(f"deploy/{folder}")]


def find_unknown_settings(text: str) -> set[str]:
    """Returns the variables and, in comments, the settings that a text names and that do not exist."""
    variables = set(re.findall(r"\bPENSTOCK_[A-Z0-9_]+", text)) - setting_variables() - OTHER_VARIABLES
    sections = "|".join(sorted({path.partition(".")[0] for path in setting_paths()}))
    comments = "\n".join(line for line in text.splitlines() if line.strip().startswith("#"))
    names = set(re.findall(rf"(?<![\w.-])((?:{sections})\.[a-z_]+)\b(?!\.)", comments))
    return variables | (names - setting_paths())


def load_text(text: str, environ: Mapping[str, str], folder: Path) -> Settings:
    """Loads a settings file with the project's own loader. Raises SettingsError with all problems."""
    file = folder / "penstock.toml"
    file.write_text(text)
    return load_settings(str(file), environ)


def check_command(words: list[str]) -> None:
    """Fails if the words are no command of the gateway, with options that it has."""
    command = main.commands[words[0]]
    options = {option for param in command.params for option in param.opts}
    assert {word.partition("=")[0] for word in words[1:] if word.startswith("--")} <= options, words


def unknown_settings_by_file(folder: str) -> dict[str, set[str]]:
    posix = {path.as_posix(): find_unknown_settings(read_text(path)) for path in files_of(folder)}
    assert posix, folder
    return {path: names for path, names in posix.items() if names}
