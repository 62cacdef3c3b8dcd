"""Reads the files in `deploy/`, and finds the settings that they name."""

from __future__ import annotations

import functools
import itertools
import platform
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import click
import pytest
from ruamel.yaml import YAML

from penstock import serve
from penstock.cli import main
from penstock.settings import Settings, iter_setting_specs, load_settings
from tests.shape.repository import ROOT, read_text, repository_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEPLOY = ROOT / "deploy"
# Variables that are no settings: those of the command line, and those of the Compose file alone.
OTHER_VARIABLES = {"PENSTOCK_CONFIG", "PENSTOCK_COMMIT", "PENSTOCK_IMAGE", "PENSTOCK_PORT"}
# Programs that start the gateway, or another command of it, in a container.
CONTAINER_PROGRAMS = {"docker", "podman", "kubectl"}
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


def check_command(words: list[str], *, is_complete: bool = True) -> None:
    """Fails if the words are no command of the gateway, with subcommand, options and arguments that it has. Sentences
    name commands without their arguments, so these are not complete.
    """
    rest = list(words)
    command: click.Command = main
    context = click.Context(main, info_name="penstock")
    while isinstance(command, click.Group):
        assert rest or not is_complete, f"{words}: a subcommand is missing"
        if not rest:
            return
        if rest[0] == "--version":
            return
        assert rest[0] in command.commands, f"{words}: no such command: {rest[0]}"
        command = command.commands[rest.pop(0)]
        context = click.Context(command, parent=context)
    try:
        values, extra, _ = command.make_parser(context).parse_args(rest)
    except click.UsageError as error:
        raise AssertionError(f"{words}: {error.format_message()}") from None
    assert not extra, f"{words}: too many arguments: {extra}"
    for param in command.params:
        value = values.get(param.name or "")
        if isinstance(param, click.Argument) and is_complete:
            # The parser of click marks a missing argument with an object of its own.
            assert isinstance(value, str | tuple) or not param.required, f"{words}: {param.name} is missing"
        if isinstance(param.type, click.Choice) and isinstance(value, str):
            assert value in param.type.choices, f"{words}: {value} is not allowed"


def gateway_commands(text: str) -> Iterator[list[str]]:
    """Yields the commands of the gateway in a shell example: what follows `penstock`, also where it runs in a container,
    in a pod, or with the user of the service.
    """
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r"\w+\(\) \{", line):
            continue  # A function of the shell.
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:
            # A line of a quoted body, which continues on the next line.
            assert not re.match(r"\s*penstock", line), line
            continue
        for is_operator, group in itertools.groupby(tokens, key=lambda word: set(word) <= set("();<>|&")):
            words = list(itertools.dropwhile(is_prefix, group))
            if is_operator or not words:
                continue
            if words[0].rpartition("/")[2] in {"penstock", "penstock_run"}:
                yield words[1:]
            elif words[0] in CONTAINER_PROGRAMS and {"run", "exec"} & set(words) and "penstock" in words:
                # The last such word is the image, the service or, in a container that exists, the program.
                command = words[len(words) - words[::-1].index("penstock") :]
                yield command or ["serve"]


def is_prefix(word: str) -> bool:
    """Returns true for words before a command: keywords of the shell, and variables for this command alone."""
    return word in {"until", "while", "if", "do", "then", "sudo"} or bool(re.match(r"[A-Z_]+=", word))


def unknown_settings_by_file(folder: str) -> dict[str, set[str]]:
    posix = {path.as_posix(): find_unknown_settings(read_text(path)) for path in files_of(folder)}
    assert posix, folder
    return {path: names for path, names in posix.items() if names}
