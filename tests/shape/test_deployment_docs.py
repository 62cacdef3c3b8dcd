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
from tests.doc_examples import DOCUMENTS, FENCE_PATTERN
from tests.shape.repository import ROOT, read_text
from tests.unit.deploy.artefacts import (
    DEPLOY,
    check_command,
    find_unknown_settings,
    gateway_commands,
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
def test_files_and_values_of_examples_exist(page: str):
    actual = commands(page)
    assert actual
    for words in actual:
        for option, value in itertools.pairwise(words):
            if option in {"-f", "--file"}:
                assert (ROOT / value).is_file(), words
            elif option == "--set":
                value_at(value.partition("=")[0])
        sources = [word for word in words if word.startswith("deploy/")]
        assert all((ROOT / source).exists() for source in sources), words


@pytest.mark.parametrize(
    "page", [*DOCUMENTS, "README.md", "RELEASE.md", "CONTRIBUTING.md", "deploy/helm/penstock/README.md"]
)
def test_commands_of_the_gateway_have_options_and_arguments_that_exist(page: str):
    text = read_text(page)
    inline = re.findall(r"`((?:\S+/)?penstock(?:_run)? (?!COMMAND)[^`]+)`", FENCE_PATTERN.sub("", text))
    examples = [(block, True) for block in blocks(page, "sh")]
    for example, is_complete in [*examples, *((line.replace("\n", " "), False) for line in inline)]:
        for words in gateway_commands(example):
            check_command(words, is_complete=is_complete)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("penstock check a.toml # why", ["check", "a.toml"]),
        ("A=b /opt/penstock/bin/penstock health; echo 1", ["health"]),
        ("until penstock health; do sleep 1; done", ["health"]),
        ("docker compose run --rm -T --no-deps penstock restore - < penstock.zip", ["restore", "-"]),
        ("kubectl exec deployment/penstock -- penstock backup - > penstock.zip", ["backup", "-"]),
        ("podman run --name penstock \\\n  --volume penstock:/x penstock", ["serve"]),
    ],
)
def test_commands_are_found_behind_the_programs_that_start_them(line: str, expected: list[str]):
    assert list(gateway_commands(line)) == [expected]


@pytest.mark.parametrize(
    "words", ["keys", "keys made x", "keys create", "health --uri x", "completion tcsh", "check a b"]
)
def test_incomplete_and_unknown_commands_are_noticed(words: str):
    with pytest.raises(AssertionError, match=words.split(maxsplit=1)[0]):
        check_command(words.split())


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_compose_start_nothing_that_fills_the_store(page: str):
    """`prepare` creates an organisation, and then a restore refuses the store."""
    services = read_yaml(DEPLOY / "compose/compose.yaml")["services"]
    for words in commands(page):
        if words[:3] == ["docker", "compose", "run"]:
            (service,) = [word for word in words if word in services][:1]
            assert "prepare" not in services[service].get("depends_on", {}) or "--no-deps" in words, words


@pytest.mark.parametrize("page", ["docs/deploy-containers.md", "docs/deploy-kubernetes.md", "docs/deploy-server.md"])
def test_each_way_to_run_the_gateway_shows_how_to_back_up_and_restore_through_pipes(page: str):
    gateway_words = [words for block in blocks(page, "sh") for words in gateway_commands(block)]
    assert ["backup", "-"] in gateway_words
    attached = [words for words in commands(page) if words[:2] == ["kubectl", "attach"]]
    # In Kubernetes, the chart starts `restore -`.
    assert ["restore", "-"] in gateway_words or attached


def test_user_of_the_service_owns_all_files_that_root_puts_into_its_folder():
    folder = "/var/lib/penstock/"
    placed: set[str] = set()
    for block in blocks("docs/deploy-server.md", "sh"):
        lines = [
            shlex.split(line) for line in block.splitlines() if line.startswith(("install ", "touch ", "cp ", "chown "))
        ]
        files = {words[-1] for words in lines if words[0] != "chown" and words[-1].startswith(folder)}
        owned = {word for words in lines if words[0] == "chown" for word in words[2:]}
        assert files <= owned, block
        placed |= files
    assert placed == {f"{folder}penstock.key", f"{folder}penstock.toml"}


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
