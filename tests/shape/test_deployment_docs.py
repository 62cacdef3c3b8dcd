"""Examples of the pages about deployments: settings are valid, and commands name options, values and files that exist."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from penstock.settings import Settings
from penstock.snapshot.build import build_valid_snapshot
from tests.certificates import with_certificate
from tests.shape.repository import ROOT, read_text
from tests.unit.deploy.artefacts import (
    DEPLOY,
    check_command,
    find_unknown_settings,
    load_text,
    needs_helm,
    read_yaml,
    run_helm,
)

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [
    "docs/deploy-containers.md",
    "docs/deploy-kubernetes.md",
    "docs/deploy-server.md",
    "docs/deploy-several-nodes.md",
    "docs/sizing.md",
    "docs/tls.md",
    "docs/upgrade.md",
    "deploy/helm/penstock/README.md",
]
VALUES = read_yaml(DEPLOY / "helm/penstock/values.yaml")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read_text(page), re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Returns the commands of the shell examples as words, and those in tables."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:penstock|penstock_run|helm|docker) [^`]+)`", read_text(page))
    return [shlex.split(line, comments=True) for line in lines if line.strip() not in {"", "}"} and "() {" not in line]


def value_at(path: str) -> Any:
    actual: Any = VALUES
    for name in path.split("."):
        actual = actual[name]
    return actual


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short_and_name_settings_that_exist(page: str):
    lines = read_text(page).splitlines()
    assert len(lines) <= 200
    assert not [line for line in lines if len(line) > 120]
    assert not find_unknown_settings(read_text(page)) - {"PENSTOCK_"}


@pytest.mark.parametrize("page", PAGES)
def test_settings_of_examples_are_valid(page: str, tmp_path: Path):
    for block in blocks(page, "toml"):
        build_valid_snapshot(load_text(with_certificate(block, tmp_path), {}, tmp_path))


def test_values_of_examples_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-tests")
    actual = blocks("docs/deploy-kubernetes.md", "yaml")
    assert actual
    for block in actual:
        file = tmp_path / "values.yaml"
        file.write_text(block)
        values = read_yaml(file)
        assert values.keys() <= VALUES.keys()
        build_valid_snapshot(load_text(values["config"], {}, tmp_path))


def test_settings_file_of_the_container_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEAM_A_KEY", "key-of-team-a")
    (line,) = [line for line in blocks("docs/deploy-containers.md", "sh")[1].splitlines() if line.startswith("printf")]
    text = subprocess.run(["sh", "-c", line.partition(" > ")[0]], check=True, capture_output=True, text=True).stdout
    assert build_valid_snapshot(load_text(text, {}, tmp_path)).keys == 1


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/sizing.md"])
def test_commands_of_examples_exist(page: str):
    actual = commands(page)
    assert actual
    for words in actual:
        # In a container or on a server, the command comes after the program that starts it.
        if words[0] in {"penstock", "penstock_run", "/opt/penstock/bin/penstock"}:
            check_command(words[1:])
        elif words[:2] == ["podman", "exec"]:
            check_command(words[words.index("penstock", 3) + 1 :])
        for option, value in itertools.pairwise(words):
            if option in {"-f", "--file"}:
                assert (ROOT / value).is_file(), words
            elif option == "--set":
                value_at(value.partition("=")[0])
        sources = [word for word in words if word.startswith("deploy/")]
        assert all((ROOT / source).exists() for source in sources), words


def test_memory_bounds_of_the_page_are_those_of_the_settings():
    settings = Settings()
    bounds = [
        settings.limits.buffered_body_bytes,
        settings.routing.cache_bytes,
        settings.routing.inline_config_bytes,
        settings.routing.recovery_bytes,
        settings.records.outbox_bytes,
    ]
    assert f"add up to {sum(bounds) // 1024**2} MiB" in read_text("docs/sizing.md")


@needs_helm
@pytest.mark.parametrize("page", ["docs/deploy-kubernetes.md", "deploy/helm/penstock/README.md"])
def test_helm_renders_the_examples(page: str):
    chart = "deploy/helm/penstock"
    result = [words for words in commands(page) if words[0] == "helm" and chart in words and words[1] != "lint"]
    assert result
    for words in result:
        options = words[words.index(chart) + 1 :]
        done = run_helm("template", "penstock", chart, "--kube-version", "1.33", *options)
        assert done.returncode == 0, done.stderr
