"""Faults of the first steps: keys that are lost, not copied or ignored, and files that `check` calls good."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.ids import sha256_hex

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Postgres

OTHER_KEY = "another-admin-key-0123456789"


def run_cli(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, words, env=dict(env))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_rows(query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect("penstock-data/penstock.db")) as store:
        return store.execute(query).fetchall()


def test_no_master_key_is_created_for_a_store_of_another_one(folder: Path):
    assert run_cli("init").exit_code == 0
    copied = folder / "penstock-data/penstock.key"
    shutil.move(copied, folder / "backup.key")
    done = run_cli("init")
    assert (done.exit_code, "copy the file from there" in done.output, copied.exists()) == (1, True, False)
    done = run_cli("check", str(write_settings(folder, "")))
    assert (done.exit_code, "no master key" in done.output) == (1, True)
    copied.write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
    done = run_cli("init")
    assert (done.exit_code, "copy penstock.key from the first node" in done.output) == (1, True)
    shutil.copy(folder / "backup.key", copied)
    assert run_cli("init").exit_code == 0


def write_settings(folder: Path, content: str) -> Path:
    file = folder / "penstock.toml"
    file.write_text(content)
    return file


@pytest.mark.usefixtures("folder")
def test_lost_admin_key_is_replaced_on_the_machine(caplog: pytest.LogCaptureFixture):
    first = run_cli("init").output.rpartition(" ")[2].strip()
    done = run_cli("init", PENSTOCK_ADMIN_KEY=OTHER_KEY)
    assert "PENSTOCK_ADMIN_KEY (store.admin_key) is not a key of this store" in caplog.text
    assert done.exit_code == 0
    second = run_cli("keys", "reset-admin").output.rpartition(" ")[2].strip()
    assert read_rows("select sha256 from key_digests") == [(sha256_hex(second),)]
    assert second != first
    assert "is the admin key now" in run_cli("keys", "reset-admin", PENSTOCK_ADMIN_KEY=OTHER_KEY).output
    assert read_rows("select sha256 from key_digests") == [(sha256_hex(OTHER_KEY),)]
    caplog.clear()
    assert run_cli("init", PENSTOCK_ADMIN_KEY=OTHER_KEY).exit_code == 0
    assert "not a key of this store" not in caplog.text
    assert read_rows("select count(*) from api_keys") == [(1,)]
    audited = read_rows("select uri, action, resource_type, user_type from audit order by id")
    assert audited == [("penstock keys reset-admin", "rotate", "organisation_service_api_keys", "api_key")] * 2
    with closing(sqlite3.connect("penstock-data/penstock.db")) as store:
        store.execute("delete from api_keys")
        store.commit()
    run_cli("keys", "reset-admin")
    assert read_rows("select name, count(*) from api_keys") == [("admin", 1)]


def test_commands_for_a_store_create_none(folder: Path):
    for words in (("migrate",), ("keys", "reset-admin")):
        done = run_cli(*words)
        assert (done.exit_code, "there is no store at" in done.output, list(folder.iterdir())) == (1, True, [])


def test_check_rejects_what_serve_rejects(folder: Path):
    done = run_cli("check", str(write_settings(folder, '[server]\nhost = "0.0.0.0"\nport = 8835\n')))
    assert (done.exit_code, "no gateway key is configured" in done.output) == (1, True)
    tables = '[[providers]]\nslug = "my-openai"\nprovider = "openai"\n[[configs]]\nslug = "c"\n'
    config = json.dumps(
        {"targets": [{"provider": "@my-openai"}, {"provider": "@my-opena"}], "strategy": {"mode": "fallback"}}
    )
    content = f"{tables}config = '{config}'\n"
    done = run_cli("check", str(write_settings(folder, content)))
    assert done.exit_code == 1
    expected = (
        "configs[0].config.targets[1].provider: names the saved provider '@my-opena', which does not exist in this file"
    )
    assert f"{expected}; did you mean '@my-openai'?" in done.output
    run_cli("init")
    done = run_cli("check", str(write_settings(folder, f'{content}[store]\nurl = "sqlite:///penstock.db"\n')))
    assert (done.exit_code, "unless the store has it" in done.stderr) == (0, True)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("seconds", ["0", "0.5"])
def test_migration_of_an_unreachable_database_fails(tmp_path: Path, seconds: str):
    url = f"postgresql://penstock:canary@/penstock?host={tmp_path}/absent"
    done = run_cli("migrate", "--wait", seconds, PENSTOCK_STORE_URL=url)
    assert (done.exit_code, "canary" in done.output) == (1, False)
    assert ("the database did not answer within 0.5 seconds: " in done.output) == (seconds != "0")


class DatabaseStarter(logging.Handler):
    """Makes the database reachable as soon as the command logs that it waits."""

    def __init__(self, address: Path, target: Path) -> None:
        super().__init__()
        self.messages: list[str] = []
        self._address, self._target = address, target

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self._address.symlink_to(self._target)


@pytest.mark.parametrize("_kind", ["postgresql"])
@pytest.mark.usefixtures("folder")
def test_migration_waits_for_the_database(tmp_path: Path, postgres: Postgres, _kind: str):
    address = tmp_path / "later"
    starter = DatabaseStarter(address, postgres.folder)
    logging.getLogger("penstock").addHandler(starter)
    url = postgres.create_database().replace(str(postgres.folder), str(address))
    try:
        done = run_cli("migrate", "--wait", "60", PENSTOCK_STORE_URL=url)
    finally:
        logging.getLogger("penstock").removeHandler(starter)
    assert (done.exit_code, "it was at none" in done.output) == (0, True), done.output
    (message,) = starter.messages
    assert message.startswith("waiting for the database: ")
