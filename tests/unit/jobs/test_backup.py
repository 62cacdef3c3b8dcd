"""Backup and restore: between both kinds of databases, from older releases, and what is rejected."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pytest
from sqlalchemy import MetaData, insert, select, update

from penstock.errors import SettingsError
from penstock.jobs.backup import Manifest, restore_backup, write_backup
from penstock.jobs.prepare import initialise_store
from penstock.settings import Settings, load_settings
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate, newest_revision
from penstock.store.prompt_tables import collections
from penstock.store.revision import current_revision
from penstock.store.tables import organisations
from tests.bootstrapped_store import PATIENT_STORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.store.migrate import ConfigSealer
    from tests.postgres import Postgres

MASTER_KEY, OTHER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
KINDS = ("sqlite", "postgresql")


def no_progress(_total: int) -> Callable[[int], None]:
    return lambda _: None


def settings_for(folder: Path, url: str, key: str = MASTER_KEY) -> Settings:
    folder.mkdir(exist_ok=True)
    file = folder / "penstock.toml"
    file.write_text(
        f'[store]\nurl = "{url}"\nstatement_ms = 40000\nacquire_ms = 20000\n[records]\npath = "{folder}/r"\n'
    )
    return load_settings(str(file), {"PENSTOCK_STORE_MASTER_KEY": key})


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Returns a function that makes the URL of an empty database of a kind."""

    def make(kind: str, name: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        server: Postgres = request.getfixturevalue("postgres")
        return server.create_database()

    return make


def read_tables(url: str) -> dict[str, list[dict[str, Any]]]:
    """Returns all rows of a database by table."""

    async def run() -> dict[str, list[dict[str, Any]]]:
        database = Database(PATIENT_STORE, Secret(url))
        metadata = MetaData()
        try:
            async with database.read_connection() as connection:
                await connection.run_sync(metadata.reflect)
                actual = {}
                for table in metadata.sorted_tables:
                    query = select(table).order_by(*table.primary_key.columns)
                    actual[table.name] = [dict(row) for row in (await connection.execute(query)).mappings()]
                return actual
        finally:
            await database.close()

    return asyncio.run(run())


def fill(settings: Settings, url: str) -> None:
    """Creates an organisation, encrypted credentials, and collections that refer to younger ones."""
    initialise_store(settings, "owner@example.com")

    async def run() -> None:
        database = Database(PATIENT_STORE, Secret(url))
        try:
            async with database.write_transaction() as connection:
                await connection.execute(
                    update(organisations).values(name='A "name" with ünïcode\n', settings={"a": 1})
                )
                first = (await connection.execute(select(collections))).mappings().first()
                assert first is not None
                parent = {**first, "id": "ffffffff-0000-7000-8000-000000000000", "slug": "parent", "is_default": False}
                await connection.execute(insert(collections).values(parent))
                is_first = collections.c.id == first["id"]
                change = {"parent_collection_id": parent["id"]}
                await connection.execute(update(collections).where(is_first).values(change))
        finally:
            await database.close()

    asyncio.run(run())


def run_backup(settings: Settings, file: Path, *, with_logs: bool = False) -> Manifest:
    return asyncio.run(write_backup(settings, file, no_progress, with_logs=with_logs))


def run_restore(settings: Settings, file: Path) -> Manifest:
    return asyncio.run(restore_backup(settings, file, no_progress))


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_restored_store_has_the_same_rows(tmp_path: Path, new_url: Callable[[str, str], str], source: str, target: str):
    before, after = new_url(source, "before"), new_url(target, "after")
    old = settings_for(tmp_path / "old", before)
    fill(old, before)
    files = Path(old.files_folder)
    files.mkdir()
    (files / "one").write_bytes(b"\0content\xff" * 1000)
    backup = tmp_path / "backup.zip"
    written = run_backup(old, backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    new = settings_for(tmp_path / "new", after)
    assert run_restore(new, backup) == written
    assert read_tables(after) == read_tables(before)
    assert (Path(new.files_folder) / "one").read_bytes() == (files / "one").read_bytes()
    assert written.files == 1
    assert MASTER_KEY.encode() not in backup.read_bytes()


def test_backup_of_an_older_release_is_migrated(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/before.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)

    async def migrate_to(target: str, sealing: ConfigSealer | None = None) -> str | None:
        database = Database(PATIENT_STORE, Secret(url))
        try:
            await migrate(database, target, sealing)
            return await current_revision(database)
        finally:
            await database.close()

    assert asyncio.run(migrate_to("0018_prompts")) == "0018_prompts"
    written = run_backup(old, tmp_path / "backup.zip")
    assert written.revision == "0018_prompts"
    after = f"sqlite:///{tmp_path}/after.db"
    run_restore(settings_for(tmp_path / "new", after), tmp_path / "backup.zip")
    tables = read_tables(after)
    assert tables["alembic_version"] == [{"version_num": newest_revision()}]
    assert tables["organisations"] == read_tables(url)["organisations"]
    assert "guardrails" in tables


def test_another_master_key_restores_nothing(tmp_path: Path):
    url, after = f"sqlite:///{tmp_path}/before.db", f"sqlite:///{tmp_path}/after.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    (Path(old.files_folder)).mkdir()
    (Path(old.files_folder) / "one").write_bytes(b"content")
    run_backup(old, tmp_path / "backup.zip")
    other = settings_for(tmp_path / "new", after, OTHER_KEY)
    with pytest.raises(SettingsError, match="another master key"):
        run_restore(other, tmp_path / "backup.zip")
    assert read_tables(after)["organisations"] == []
    assert not Path(other.files_folder).exists()
    run_restore(settings_for(tmp_path / "new", after), tmp_path / "backup.zip")
    assert read_tables(after)["organisations"] == read_tables(url)["organisations"]


def test_store_and_files_in_use_are_never_overwritten(tmp_path: Path):
    url, after = f"sqlite:///{tmp_path}/before.db", f"sqlite:///{tmp_path}/after.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    Path(old.files_folder).mkdir()
    (Path(old.files_folder) / "one").write_bytes(b"content")
    backup = tmp_path / "backup.zip"
    run_backup(old, backup)
    with pytest.raises(SettingsError, match="would be overwritten"):
        run_restore(old, backup)
    (Path(old.files_folder) / "one").unlink()
    with pytest.raises(SettingsError, match="it has an organisation"):
        run_restore(old, backup)
    with pytest.raises(SettingsError, match="exists; hint: choose another name"):
        run_backup(old, backup)
    with pytest.raises(SettingsError, match="no store"):
        run_backup(settings_for(tmp_path / "new", after), tmp_path / "other.zip")
    assert sorted(path.name for path in tmp_path.glob("*.zip")) == ["backup.zip"]
    assert not list(tmp_path.glob(".*.zip*"))


@pytest.mark.parametrize("kind", KINDS)
def test_second_of_two_restores_at_once_reports_that_the_store_is_in_use(
    tmp_path: Path, new_url: Callable[[str, str], str], kind: str
):
    url, after = f"sqlite:///{tmp_path}/before.db", new_url(kind, "after")
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    backup = tmp_path / "backup.zip"
    run_backup(old, backup)

    async def restore(name: str) -> Manifest:
        return await restore_backup(settings_for(tmp_path / name, after), backup, no_progress)

    async def run() -> list[Manifest | BaseException]:
        return await asyncio.gather(restore("one"), restore("two"), return_exceptions=True)

    done = asyncio.run(run())
    (problem,) = [item for item in done if isinstance(item, BaseException)]
    assert isinstance(problem, SettingsError)
    assert "it has an organisation" in str(problem)
    assert read_tables(after) == read_tables(url)


def rewrite(file: Path, change: Callable[[str, bytes], dict[str, bytes]]) -> Path:
    """Copies a backup; `change` returns what replaces each member."""
    changed = file.with_name("changed.zip")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            for target, content in change(name, old.read(name)).items():
                new.writestr(target, content)
    return changed


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("manifest.json", None, "not a backup of Penstock"),
        ("manifest.json", b"{}", "not a backup of Penstock"),
        ("manifest.json", b'{"format": 2}', "not a backup of Penstock"),
        ("tables/users.jsonl", b"", "incomplete: users has 0 rows, and should have 1"),
        ("tables/users.jsonl", b'{"id"', "not a complete backup"),
        ("tables/users.jsonl", b"[1]", "not a complete backup"),
        ("tables/users.jsonl", None, "incomplete: 'tables/users.jsonl' cannot be read"),
        ("files/one", b"x", "incomplete: it has 1 files, and should have 0"),
        ("files/../../outside", b"x", "name that is not allowed"),
        ("files/a/../../outside", b"x", "name that is not allowed"),
    ],
)
def test_damaged_backup_restores_nothing(tmp_path: Path, name: str, content: bytes | None, words: str):
    url, after = f"sqlite:///{tmp_path}/before.db", f"sqlite:///{tmp_path}/after.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    run_backup(old, tmp_path / "backup.zip")

    def change(member: str, original: bytes) -> dict[str, bytes]:
        replaced = {} if content is None else {name: content}
        if member == name:
            return replaced
        return {member: original, **(replaced if member == "manifest.json" and name.startswith("files/") else {})}

    changed = rewrite(tmp_path / "backup.zip", change)
    with pytest.raises(SettingsError, match=words):
        run_restore(settings_for(tmp_path / "new", after), changed)
    if Path(f"{tmp_path}/after.db").exists():
        assert not read_tables(after).get("organisations")
    assert not (tmp_path / "outside").exists()


def write_source(tmp_path: Path) -> tuple[str, Settings, Path]:
    """Makes a store with one uploaded file; returns its URL, its settings and the path of the file."""
    url = f"sqlite:///{tmp_path}/before.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    file = Path(old.files_folder) / "one"
    file.parent.mkdir()
    file.write_bytes(bytes(range(256)) * 100)
    return url, old, file


@pytest.mark.parametrize("offset", [0, 40])
def test_damaged_file_in_a_backup_restores_no_rows_either(tmp_path: Path, offset: int):
    """The first byte that is damaged makes the compression invalid, the other one the checksum."""
    url, old, file = write_source(tmp_path)
    backup, damaged = tmp_path / "backup.zip", tmp_path / "damaged.zip"
    run_backup(old, backup)
    content = bytearray(backup.read_bytes())
    with zipfile.ZipFile(backup) as archive:
        member = archive.getinfo("files/one")
    # A local header has 30 bytes, the name, and 20 bytes for sizes of 64 bits.
    content[member.header_offset + 30 + len(member.filename) + 20 + offset] ^= 0xFF
    damaged.write_bytes(content)
    after = f"sqlite:///{tmp_path}/after.db"
    new = settings_for(tmp_path / "new", after)
    with pytest.raises(SettingsError, match="not a complete backup"):
        run_restore(new, damaged)
    assert read_tables(after)["organisations"] == []
    assert not (Path(new.files_folder) / "one").exists()
    run_restore(new, backup)
    assert read_tables(after) == read_tables(url)
    assert (Path(new.files_folder) / "one").read_bytes() == file.read_bytes()


def test_file_that_is_deleted_during_a_backup_is_not_counted(tmp_path: Path):
    _, old, file = write_source(tmp_path)

    def delete_file(total: int) -> Callable[[int], None]:
        file.unlink()
        return no_progress(total)

    backup = tmp_path / "backup.zip"
    written = asyncio.run(write_backup(old, backup, delete_file, with_logs=False))
    assert written.files == 0
    assert run_restore(settings_for(tmp_path / "new", f"sqlite:///{tmp_path}/after.db"), backup) == written


def test_restored_sqlite_file_is_private(tmp_path: Path):
    _, old, _ = write_source(tmp_path)
    run_backup(old, tmp_path / "backup.zip")
    previous = os.umask(0o022)
    try:
        run_restore(settings_for(tmp_path / "new", f"sqlite:///{tmp_path}/after.db"), tmp_path / "backup.zip")
    finally:
        os.umask(previous)
    assert (tmp_path / "after.db").stat().st_mode & 0o777 == 0o600


def test_newer_format_is_rejected_by_name(tmp_path: Path):
    file = tmp_path / "backup.zip"
    manifest = Manifest(format=9, version="9.0", created_at="", revision="x", tables={})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", msgspec.json.encode(manifest))
    with pytest.raises(SettingsError, match="has the format 9; allowed: 1"):
        run_restore(settings_for(tmp_path / "new", f"sqlite:///{tmp_path}/after.db"), file)


def test_file_that_is_no_archive_is_named(tmp_path: Path):
    (tmp_path / "backup.zip").write_text("text")
    new = settings_for(tmp_path / "new", f"sqlite:///{tmp_path}/after.db")
    with pytest.raises(SettingsError, match=r"backup\.zip' is not a complete backup"):
        run_restore(new, tmp_path / "backup.zip")
    with pytest.raises(SettingsError, match="cannot read"):
        run_restore(new, tmp_path / "none.zip")


def test_logs_are_included_only_while_no_gateway_uses_them(tmp_path: Path):
    url, after = f"sqlite:///{tmp_path}/before.db", f"sqlite:///{tmp_path}/after.db"
    old = settings_for(tmp_path / "old", url)
    fill(old, url)
    folder = Path(old.log_store_folder) / "records"
    folder.mkdir(parents=True)
    with duckdb.connect(folder / "records.duckdb") as connection:
        connection.execute("CREATE TABLE one AS SELECT 7 AS number")
    script = f"import duckdb, time; c = duckdb.connect({str(folder / 'records.duckdb')!r}); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout
        gateway.stdout.readline()
        with pytest.raises(SettingsError, match="has the log store open; hint: stop it"):
            run_backup(old, tmp_path / "backup.zip", with_logs=True)
        gateway.kill()
    assert run_backup(old, tmp_path / "backup.zip", with_logs=True).logs == 1
    new = settings_for(tmp_path / "new", after)
    run_restore(new, tmp_path / "backup.zip")
    with duckdb.connect(Path(new.log_store_folder) / "records/records.duckdb", read_only=True) as connection:
        assert connection.execute("SELECT number FROM one").fetchall() == [(7,)]


def run_command(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs a command of the gateway with pipes, as `kubectl exec` and `docker compose exec` do."""
    environ = {"PATH": os.environ["PATH"], "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY}
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, check=False, capture_output=True, timeout=60, input=data, env=environ)


def test_backup_and_restore_through_pipes(tmp_path: Path):
    url, old, _ = write_source(tmp_path)
    after = f"sqlite:///{tmp_path}/piped.db"
    new = settings_for(tmp_path / "piped", after)
    written = run_command("backup", "-", "--config", f"{tmp_path}/old/penstock.toml")
    assert written.returncode == 0, written.stderr
    # Nothing but the archive is on standard output.
    assert written.stdout.startswith(b"PK")
    assert b"standard output: " in written.stderr
    assert b"the master key" in written.stderr
    assert zipfile.ZipFile(io.BytesIO(written.stdout)).testzip() is None
    restored = run_command("restore", "-", "--config", f"{tmp_path}/piped/penstock.toml", data=written.stdout)
    assert restored.returncode == 0, restored.stderr
    assert read_tables(after) == read_tables(url)
    names = {path.name for path in Path(old.files_folder).iterdir()}
    assert names == {path.name for path in Path(new.files_folder).iterdir()}


def test_piped_backup_that_is_cut_off_restores_nothing(tmp_path: Path):
    _, old, _ = write_source(tmp_path)
    run_backup(old, tmp_path / "backup.zip")
    data = (tmp_path / "backup.zip").read_bytes()[:-100]
    settings_for(tmp_path / "piped", f"sqlite:///{tmp_path}/piped.db")
    done = run_command("restore", "-", "--config", f"{tmp_path}/piped/penstock.toml", data=data)
    assert done.returncode == 1
    assert b"standard input is not a complete backup" in done.stderr
    assert not (tmp_path / "piped.db").exists()


def test_json_and_an_archive_never_share_standard_output(tmp_path: Path):
    done = run_command("backup", "-", "--json", "--config", f"{tmp_path}/penstock.toml")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"name a file" in done.stderr
