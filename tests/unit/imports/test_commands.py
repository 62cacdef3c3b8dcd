"""`penstock import`: files, exit statuses, and the examples of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from penstock.cli import main

DOCS = Path(__file__).parents[3] / "docs"
ONE_MODEL = "model_list: [{model_name: a, litellm_params: {model: openai/gpt-4o}}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs the commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(product: str, *words: str, status: int = 0) -> Result:
    done = CliRunner().invoke(
        main, ["import", product, *words, "--out", "state.yaml", "--report", "report.json"], catch_exceptions=False
    )
    assert done.exit_code == status, done.output
    return done


def read_state(folder: Path) -> dict[str, Any]:
    return YAML(typ="safe").load((folder / "state.yaml").read_text())


def example(page: str, language: str) -> str:
    (first, *_) = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return first


def test_litellm_example_of_the_docs(folder: Path):
    (folder / "config.yaml").write_text(example("migrate-from-litellm.md", "yaml"))
    assert run("litellm", "config.yaml").stdout == example("migrate-from-litellm.md", "text")
    (config,) = read_state(folder)["workspaces"][0]["configs"]
    assert config["slug"] == "litellm"
    assert (folder / "state.yaml").stat().st_mode & 0o777 == 0o600


def test_portkey_example_of_the_docs(folder: Path):
    (folder / "workspace.json").write_text(example("migrate-from-portkey.md", "json"))
    run("portkey", "workspace.json")
    (workspace,) = read_state(folder)["workspaces"]
    assert workspace["virtual_keys"][0]["key"] == "${PORTKEY_OPENAI_PROD_KEY}"
    assert (workspace["configs"][0]["slug"], workspace["prompts"][0]["slug"]) == ("pc-main-1f2e3d", "pp-greeting")


def test_tensorzero_example_of_the_docs(folder: Path):
    (folder / "config/sub").mkdir(parents=True)
    (folder / "config/sub/tensorzero.toml").write_text(example("migrate-from-tensorzero.md", "toml"))
    run("tensorzero", "config/**/*.toml")
    (workspace,) = read_state(folder)["workspaces"]
    names = [item["then"] for item in workspace["configs"][0]["config"]["strategy"]["conditions"]]
    assert names == ["tensorzero::model_name::gpt-4o", "tensorzero::function_name::answer"]


def test_does_not_replace_existing_files(folder: Path):
    (folder / "config.yaml").write_text(ONE_MODEL)
    (folder / "report.json").write_text("mine")
    assert "'report.json' exists already" in run("litellm", "config.yaml", status=1).output
    assert (folder / "report.json").read_text() == "mine"
    assert not (folder / "state.yaml").exists()
    run("litellm", "config.yaml", "--force")
    assert json.loads((folder / "report.json").read_text())["summary"]["exact"] == 2


def test_unsupported_values_decide_the_exit_status(folder: Path):
    (folder / "config.yaml").write_text(f"{ONE_MODEL}magic: 1\n")
    done = run("litellm", "config.yaml", status=3)
    assert "unsupported: config.yaml:2: magic: is not known to the importer" in done.stderr
    assert (folder / "state.yaml").exists()
    run("litellm", "config.yaml", "--force", "--allow")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "give a SOURCE, or --database"),
        (("missing.yaml",), 1, "cannot read 'missing.yaml': No such file"),
        (("*.yaml",), 1, "no file matches '*.yaml'"),
        (("--database", "mysql://u:canary@h/d"), 1, "must be the URL of a PostgreSQL database"),
        (("--database", "postgresql://u:canary@127.0.0.1:1/d"), 1, "cannot read the database: ConnectionRefusedError"),
        (("--database", "postgresql://h/d", "--salt-key-env", "NOT_SET"), 1, "'NOT_SET' of --salt-key-env is not set"),
    ],
)
def test_reports_what_cannot_be_read(folder: Path, words: tuple[str, ...], status: int, message: str):
    done = run("litellm", *words, status=status)
    assert message in done.output
    assert "canary" not in done.output
    assert list(folder.iterdir()) == []


def test_output_and_report_are_two_files():
    done = CliRunner().invoke(main, ["import", "litellm", "x", "--out", "a", "--report", "./a"])
    assert (done.exit_code, "must be two files" in done.output) == (2, True)
