"""Command-line interface: its output and its errors."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from penstock import __version__
from penstock.cli import browser_url, main
from penstock.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path


def run_cli(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, words, env=dict(env))


def test_version_is_printed():
    assert run_cli("version").output == f"penstock {__version__}\n"
    assert json.loads(run_cli("version", "--json").output) == {"version": __version__, "commit": None}


def test_settings_are_printed_as_a_table():
    assert run_cli("settings").output.startswith("| key in `penstock.toml` |")


def test_openapi_document_is_printed_as_json():
    assert json.loads(run_cli("openapi").output)["info"]["title"] == "Penstock management API"


def test_check_reports_all_config_problems_and_setting_limits(tmp_path: Path):
    file = tmp_path / "config.json"
    good = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "openai"}, {"provider": "anthropic"}]}
    file.write_text(json.dumps(good))
    assert run_cli("check", str(file)).exit_code == 0
    done = run_cli("check", str(file), MAX_ROOT_CONFIG_TARGETS="1")
    assert (done.exit_code, "$.targets must hold at most 1 targets, not 2" in done.output) == (1, True)
    file.write_text(json.dumps({"retry": {"attempts": 6}, "odd": 1}))
    done = run_cli("check", str(file))
    assert (done.exit_code, "$.retry.attempts must be" in done.output, "$.odd is not" in done.output) == (1, True, True)


def test_check_reads_the_file_that_the_gateway_would_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli("check").output.startswith("the environment, without a settings file, is good")
    misspelt = run_cli("check", PENSTOCK_SERVER_PROT="1")
    assert (misspelt.exit_code, "PENSTOCK_SERVER_PROT" in misspelt.output) == (1, True)
    missing = run_cli("check", PENSTOCK_CONFIG="none.toml")
    assert (missing.exit_code, "none.toml': No such file" in missing.output) == (1, True)
    (tmp_path / "other.toml").write_text("")
    assert "other.toml is good" in run_cli("check", PENSTOCK_CONFIG=str(tmp_path / "other.toml")).output
    (tmp_path / "penstock.toml").write_text("")
    assert run_cli("check").output.startswith("penstock.toml is good")
    checked = json.loads(run_cli("check", "--json").output)
    assert (checked["file"], checked["is_good"], checked["keys"]) == ("penstock.toml", True, 0)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_check_reports_an_unreadable_config(tmp_path: Path, content: str | None):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    done = run_cli("check", str(file))
    assert (done.exit_code, done.output.startswith("penstock: ")) == (1, True)
    assert ("cannot read" if content is None else "cannot be used") in done.output


def test_check_accepts_a_valid_file(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text("[[keys]]\nname = 'a'\nkey = 'canary-1'\n")
    done = run_cli("check", str(file))
    assert (done.exit_code, "is good: 1 keys" in done.output) == (0, True)
    assert "canary" not in done.output


def test_check_reports_invalid_prices_with_their_paths(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[[prices]]\nprovider = "openai"\nmodel = "m"\n[prices.pay_as_you_go]\nrequest_token = {price = 1}\n'
    )
    assert run_cli("check", str(file)).exit_code == 0
    file.write_text('[[prices]]\nprovider = "openai"\n[[prices]]\nprovider = "a"\nmodel = "b"\nvalid_from = "soon"\n')
    done = run_cli("check", str(file))
    assert (done.exit_code, "prices[0]" in done.output, "prices[1].valid_from" in done.output) == (1, True, True)


def test_check_reports_problems_without_secrets(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text("[[keys]]\nname = 'a'\nkey = 'canary-1'\nport = 1\n")
    done = run_cli("check", str(file))
    assert done.exit_code == 1
    assert "keys[0].port: is not known" in done.output
    assert "canary" not in done.output


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (("--host", "::"), "no gateway key is configured"),
        (("--port", "70000"), "--port: 70000 is not allowed"),
        (("--mock", "/no/such/program"), "cannot start the mock provider '/no/such/program': No such file"),
        (("--config", "/no/such/file"), "cannot read '/no/such/file'"),
    ],
)
def test_serve_reports_why_it_cannot_start(words: tuple[str, ...], content: str):
    done = run_cli("serve", "--no-store", *words)
    assert done.exit_code == 1
    assert content in done.output
    assert "Traceback" not in done.output


def test_init_stores_the_owners_email_in_lower_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sign-in searches for addresses in lower case."""
    monkeypatch.chdir(tmp_path)
    done = run_cli("init", "--email", "nobody")
    assert (done.exit_code, "'nobody' is not allowed" in done.output) == (1, True)
    assert not list(tmp_path.iterdir())
    done = run_cli("init", "--email", " Ann@Example.com", API_KEY_PREFIX="acme")
    assert (done.exit_code, "acme" in done.output) == (0, True)
    with closing(sqlite3.connect("penstock-data/penstock.db")) as connection:
        assert connection.execute("SELECT email FROM users").fetchall() == [("ann@example.com",)]


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ({}, "http://127.0.0.1:8787"),
        ({"PENSTOCK_SERVER_HOST": "0.0.0.0"}, "http://127.0.0.1:8787"),
        ({"PENSTOCK_SERVER_HOST": "::"}, "http://[::1]:8787"),
        ({"PENSTOCK_SERVER_PUBLIC_URL": "https://ai.example.com"}, "https://ai.example.com"),
    ],
)
def test_links_for_browsers_have_an_address_that_they_can_open(server: dict[str, str], url: str):
    assert browser_url(load_settings(None, server)) == url
