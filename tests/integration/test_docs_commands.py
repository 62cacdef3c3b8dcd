"""Runs the commands of the gateway on the pages of the documentation as a reader runs them.

A list names what needs other machines or programs. `test_docs_examples` runs the requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.certificates import EXAMPLE_FOLDER
from tests.doc_examples import DOCUMENTS, Example, page_examples, pages_with
from tests.integration.test_docs_examples import OTHER_PAGES, is_runnable
from tests.processes import free_port
from tests.shape.repository import ROOT, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.management_client import Client
    from tests.postgres import Postgres

ONE_STORE = True
TABLES = {"log_store": {"enabled": True}}
SECONDS = 60
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Commands that only read, so that they can run against any gateway.
READING = re.compile(r"penstock (analytics|limits (?!reset)|logs (list|search|tail)|rerate .*--dry-run)\b")
# Pages whose commands have tests of their own, by that test.
PAGES_TESTED_ELSEWHERE = {
    "docs/migrate-from-portkey.md": "tests/unit/imports",
    "docs/migrate-from-tensorzero.md": "tests/unit/imports",
    "docs/prompt-files.md": "tests/integration/test_prompt_files.py",
    "docs/quickstart.md": "tests/e2e/test_wheel.py",
    "docs/adr/0008-wheels-per-python-version.md": "benches/test_border.py",
    "docs/comparison.md": "benches/compare",
    "docs/architecture/providers-and-translation.md": "rust/llm/tests",
}
# Pages with snippets of Python and JavaScript, by the test that runs them.
SNIPPETS = {
    "docs/batches.md": "tests/integration/test_docs_commands.py",
    "docs/guardrail-batches.md": "tests/integration/test_provider_batches.py",
    "docs/guardrail-plugins.md": "tests/integration/test_guardrail_plugins.py",
    "docs/prompts.md": "tests/e2e/python/test_prompts.py",
    # The snippet needs a bucket; the test makes its calls with a provider of its own.
    "docs/provider-files.md": "tests/e2e/python/test_files.py",
    "docs/quickstart.md": "tests/e2e/test_docs_snippets.py",
    "docs/realtime.md": "tests/e2e/test_docs_snippets.py",
    "docs/sdks.md": "tests/e2e/test_docs_snippets.py",
}
# Programs that tests cannot run, and why. The commands of the gateway inside are parsed (test_deployment_docs).
UNAVAILABLE = {
    "aws": "needs a bucket",
    "chown": "needs a user of systemd",
    "claude": "is not installed by a package that tests may use",
    "cp": "copies files of a service or of a Compose project",
    "createdb": "needs the server of the example",
    "docker": "needs the daemon of Docker",
    "helm": "its templates are rendered by test_deployment_docs",
    "/etc/letsencrypt/renewal-hooks/deploy/copy-to-penstock": "is run by test_systemd",
    "install": "needs root",
    "kubectl": "needs a cluster",
    "mkdir": "needs root",
    "/opt/penstock/bin/penstock": "needs the service",
    "/opt/penstock/bin/pip": "needs root",
    "open-webui": "is too large to install",
    "penstock_run": "needs systemd",
    "podman": "needs the registry of base images; tests/image builds and runs the image",
    "python3.11": "needs root",
    "systemctl": "needs systemd",
    "touch": "needs root",
}
HARMLESS = {"cd", "export", "printf", "umask"}


class Shell:
    """Runs commands in a folder of their own, with the gateway that the tests use."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.environ = {"PATH": PATH, "HOME": str(folder), **environ}

    def run(self, command: str) -> str:
        """Returns what a command prints on both outputs. Fails if its exit status is not 0."""
        shell = ["/bin/bash", "-e", "-c", command]
        done = subprocess.run(
            shell, check=False, capture_output=True, text=True, timeout=SECONDS, env=self.environ, cwd=self.folder
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def shell_blocks(page: str) -> list[Example]:
    return page_examples(page, "sh")


def one_block(page: str, begin: str) -> str:
    (text,) = (example.text for example in shell_blocks(page) if example.text.startswith(begin))
    return text


def lines_of(example: Example) -> Iterator[str]:
    """Yields the commands of a block; those that continue on the next line are joined, and functions left out."""
    text = re.sub(r"^\w+\(\) \{.*?^\}$", "", example.text.replace("\\\n", " "), flags=re.DOTALL | re.MULTILINE)
    yield from (line for line in text.splitlines() if line.strip() and not line.startswith((" ", "#")))


def is_reading(example: Example) -> bool:
    return all(READING.match(line) and "tail" not in line for line in lines_of(example))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with a store in it."""
    shell = Shell(tmp_path_factory.mktemp("docs") / "old")
    assert "admin key" in shell.run("penstock init")
    return shell


def test_backup_of_the_page_is_restored_as_it_shows(store: Shell, tmp_path: Path):
    page = "docs/backup-and-restore.md"
    displayed = [example.text for example in page_examples(page, "")]
    backup, restore = (one_block(page, f"penstock {verb} /backups/") for verb in ("backup", "restore"))
    printed = store.run(backup.replace("/backups/", f"{tmp_path}/"))
    assert shape_of(displayed[0]) == shape_of(printed)
    # The command of step 2 puts the key into its place.
    (place,) = re.findall(r"`(mkdir -p -m 700 penstock-data && cp [^`]+)`", " ".join(read_text(page).split()))
    key = store.folder / "penstock-data/penstock.key"
    new = Shell(tmp_path / "new")
    new.run(place.replace("/safe/penstock.key", str(key)))
    printed = new.run(restore.replace("/backups/", f"{tmp_path}/"))
    assert shape_of(displayed[1]) == shape_of(printed)
    assert "the store is ready" in new.run("penstock init")
    piped = Shell(tmp_path / "piped")
    piped.run(place.replace("/safe/penstock.key", str(key)))
    first, second = one_block(page, "penstock backup - ").splitlines()
    store.run(first.replace("> ", f"> {tmp_path}/piped/"))
    assert "restored" in piped.run(second)


def test_store_moves_to_postgresql_as_the_page_shows(store: Shell, postgres: Postgres):
    backup, *_, restore, _serve = one_block("docs/backup-and-restore.md", "penstock backup move.zip").splitlines()
    store.run(backup)
    # In the same folder, so that the master key stays in its place.
    moved = Shell(store.folder, PENSTOCK_STORE_URL=postgres.create_database())
    assert "restored" in moved.run(restore)
    assert "the store is ready" in moved.run("penstock init")


def shape_of(text: str) -> list[str]:
    """Returns the lines of an output without numbers, paths and times."""
    text = re.sub(r"/\S+/(?=penstock\.)", "", re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text))
    return re.sub(r"[\d,]*\d", "N", text).strip().splitlines()


def test_checks_of_the_operations_page_succeed(tmp_path: Path):
    page = "docs/operations.md"
    shell = Shell(tmp_path / "node")
    shell.run("penstock init")
    (shell.folder / "penstock.toml").write_text(f"[server]\nport = {free_port()}\n")
    (shell.folder / "my-config.json").write_text('{"provider": "mock"}')
    assert "penstock.toml is good" in shell.run(one_block(page, "penstock check"))
    printed = shell.run(one_block(page, "penstock doctor"))
    displayed = page_examples(page, "")[0].text
    migrations = {path.stem for path in (ROOT / "python/penstock/store/migrations/versions").glob("*.py")}
    assert set(re.findall(r"\b\d{4}_\w+", displayed)) <= migrations
    # The page and the command name the same checks.
    names = set(re.findall(r"^(?:ok|WARNING|FAILED) +([\w ]+):", displayed, re.MULTILINE))
    assert len(names) >= 3
    assert names <= set(re.findall(r"^\w+ +([\w ]+):", printed, re.MULTILINE))
    assert "admin key" in shell.run(one_block(page, "penstock keys reset-admin"))
    assert "at revision" in shell.run(one_block("docs/upgrade.md", "penstock migrate"))


def test_health_checks_of_the_page_succeed(admin: Client, tmp_path: Path):
    shell = Shell(tmp_path, PENSTOCK_URL=admin.gateway.base_url)
    block = one_block("docs/operations.md", "penstock health")
    assert shell.run(block.replace("https://ai.example.com", admin.gateway.base_url)).count("ready: ") == 2


def test_certificate_of_the_page_is_accepted(tmp_path: Path):
    page = "docs/tls.md"
    shell = Shell(tmp_path)
    shell.run(one_block(page, "openssl req"))
    settings = page_examples(page, "toml")[0].text.replace(EXAMPLE_FOLDER, f"{tmp_path}/")
    (tmp_path / "penstock.toml").write_text(f"{settings}\n[[keys]]\nname = 'a'\nkey = 'key-of-the-tests'\n")
    check, _health = one_block(page, "penstock check").splitlines()
    assert "is good" in shell.run(check)


def test_completion_of_the_page_is_a_script_of_the_shell(tmp_path: Path):
    Shell(tmp_path).run(one_block("docs/commands.md", "eval") + "complete -p penstock")


READING_PAGES = [page for page in pages_with("sh") if any(map(is_reading, shell_blocks(page)))]


@pytest.mark.parametrize("page", READING_PAGES)
def test_commands_that_read_succeed(page: str, admin: Client, tmp_path: Path):
    workspace = admin.create("/v1/admin/workspaces", {"name": f"reads {page}"})["slug"]
    environ = {"PENSTOCK_URL": admin.gateway.base_url, "PENSTOCK_ADMIN_KEY": admin.key, "WORKSPACE": workspace}
    shell = Shell(tmp_path, **environ)
    for example in filter(is_reading, shell_blocks(page)):
        shell.run(re.sub(r"\bws-search-\w+", workspace, example.text))


def test_batch_of_the_page_is_completed(admin: Client, tmp_path: Path):
    (snippet,) = (example.text for example in page_examples("docs/batches.md", "python")[:1])
    line = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": []}}'
    (tmp_path / "lines.jsonl").write_text(line.replace("[]", '[{"role": "user", "content": "Hi"}]'))
    workspace = admin.create("/v1/admin/workspaces", {"name": "batches"})["slug"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    script = f"from openai import OpenAI\n{snippet}\nprint(batch.id)"
    script = script.replace("http://127.0.0.1:8787", admin.gateway.base_url).replace("<gateway key>", key)
    (tmp_path / "snippet.py").write_text(script.replace("@my-anthropic", "mock"))
    assert "gw_batch_" in Shell(tmp_path).run("python snippet.py")


# Beginnings of commands that the tests above run, or that every test of a gateway runs. They are as long as needed, so
# that no other command of the page begins like them. `test_tls` runs the health check with a file.
RUN_HERE = {
    "docs/backup-and-restore.md": (
        *(f"penstock {verb} {file}" for verb in ("backup", "restore") for file in ("/backups/", "- ", "move.zip")),
        "penstock serve",
    ),
    "docs/tokens.md": ("penstock limits reset",),
    "docs/commands.md": ('eval "$(penstock completion bash)"',),
    "docs/deploy-several-nodes.md": ("penstock init", "penstock serve"),
    "docs/operations.md": (
        *("penstock check penstock.toml", "penstock check my-config.json", "penstock doctor"),
        *("penstock keys reset-admin", "penstock health"),
    ),
    "docs/tls.md": ("penstock check penstock.toml", "penstock health --config penstock.toml", "openssl req -x509 "),
    "docs/upgrade.md": ("penstock migrate --wait 120",),
}


def test_every_example_is_run_or_names_a_program_that_tests_lack():
    untested: list[str] = []
    for page in set(DOCUMENTS) - OTHER_PAGES - PAGES_TESTED_ELSEWHERE.keys():
        for example in shell_blocks(page):
            if is_runnable(example) or is_reading(example):
                continue
            for line in lines_of(example):
                words = [word for word in line.split() if not re.match(r"\w+=", word)] or ["export"]
                if words[0] not in UNAVAILABLE | dict.fromkeys(HARMLESS) and not line.startswith(
                    RUN_HERE.get(page, ())
                ):
                    untested.append(f"{page}: {line}")
    assert not untested, "\n".join(untested)
    for path in (*PAGES_TESTED_ELSEWHERE.values(), *SNIPPETS.values()):
        assert (ROOT / path).exists(), path
    assert set(pages_with("python", "py", "js", "ts")) == SNIPPETS.keys()
