"""Backup and restore of everything that a gateway stores: the tables, uploaded files, and the embedded log store.

A backup is a ZIP file. It contains the tables as JSON lines, so a backup of one kind of database can be restored in
another. It does not contain the master key, with which a reader could decrypt all credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock import __version__
from penstock.errors import SettingsError
from penstock.jobs.backup_archive import (
    FILES_DIR,
    FORMAT,
    LOGS_DIR,
    MANIFEST,
    TABLES_DIR,
    BackupSource,
    Manifest,
    copy_into,
    copy_out,
    create_archive,
    delete_after_failure,
    iter_files,
    open_archive,
    plan_files,
    read_manifest,
)
from penstock.jobs.backup_tables import count_rows, insert_tables, iter_lines, reflect_tables
from penstock.jobs.prepare import MigrationSealer, create_data_dir, open_database
from penstock.schemas import format_required_timestamp, now
from penstock.secrets.references import resolve_master_key
from penstock.secrets.vault import Vault, load_master_keys
from penstock.settings.buckets import FOLDER
from penstock.store.migrate import acquire_migration_lock, migrate, newest_revision
from penstock.store.revision import current_revision

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable

    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings import Settings
    from penstock.store.database import Database

    # Starts a progress display: takes the total number of rows and files, and returns a callback for the number of
    # completed ones.
    StartProgress = Callable[[int], Callable[[int], None]]


async def write_backup(settings: Settings, path: Path, start: StartProgress, *, with_logs: bool) -> Manifest:
    """Writes a backup to a new file with mode 0600; a failed backup leaves no file. The gateway may serve requests
    meanwhile.

    With `with_logs` the gateway must be stopped, because the embedded log store belongs to one process. Raises
    `SettingsError` if there is no store, or if the file exists.
    """
    if with_logs:
        check_log_store_is_free(settings)
    database = open_database(settings)
    try:
        if not database.exists:
            message = f"there is no store at {database.file!r}; hint: penstock init creates one"
            raise SettingsError(message)
        revision = await current_revision(database)
        if revision is None:
            message = "the store has no tables yet; hint: penstock init"
            raise SettingsError(message)
        async with database.backup_connection() as connection:
            tables = await connection.run_sync(reflect_tables)
            counts = {table: await count_rows(connection, table) for table in tables}
            # Files are listed after the transaction has fixed the state of the tables, so that every row's file is
            # found. They are listed before the archive exists, which may be in one of the folders.
            sources = _list_sources(settings, with_logs=with_logs)
            advance = start(sum(counts.values()) + len(sources))
            with create_archive(path) as archive:
                return await _write_archive(archive, connection, revision, counts, sources, advance)
    finally:
        await database.close()


def _list_sources(settings: Settings, *, with_logs: bool) -> list[BackupSource]:
    folders = {FILES_DIR: settings.files_folder} if settings.files.store == FOLDER else {}
    if with_logs:
        folders[LOGS_DIR] = settings.log_store_folder
    return [source for prefix, folder in folders.items() for source in iter_files(Path(folder), prefix)]


async def _write_archive(
    archive: zipfile.ZipFile,
    connection: AsyncConnection,
    revision: str,
    counts: dict[Table, int],
    sources: list[BackupSource],
    advance: Callable[[int], None],
) -> Manifest:
    for table in counts:
        with archive.open(f"{TABLES_DIR}/{table.name}.jsonl", "w", force_zip64=True) as member:
            async for line in iter_lines(connection, table):
                member.write(line)
                advance(1)
    copied = {FILES_DIR: 0, LOGS_DIR: 0}
    for source in sources:
        copied[source.name.partition("/")[0]] += copy_into(archive, source)
        advance(1)
    manifest = Manifest(
        format=FORMAT,
        version=__version__,
        created_at=format_required_timestamp(now()),
        revision=revision,
        tables={table.name: count for table, count in counts.items()},
        files=copied[FILES_DIR],
        logs=copied[LOGS_DIR],
    )
    archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


async def restore_backup(settings: Settings, path: Path, start: StartProgress) -> Manifest:
    """Restores a backup into a store without an organisation, and migrates it to this release.

    Rows and files are restored completely or not at all. Raises `SettingsError` if the store is in use or files would
    be overwritten. Also raises it if the backup is damaged or has another master key.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive, path)
        targets = plan_files(archive, manifest, settings)
        # The key is read before the data folder is created: if the key is missing, the folder can still be created by
        # copying it there.
        key = load_master_keys(await resolve_master_key(settings))
        create_data_dir(settings)
        sealer = MigrationSealer.from_key(key)
        database = open_database(settings)
        try:
            # A missing embedded database has no rows to check. Connecting to it would create its file with a mode that
            # lets others read it.
            if database.exists:
                await _reject_used_store(database, manifest)
            advance = start(sum(manifest.tables.values()) + len(targets))
            await migrate(database, manifest.revision if manifest.revision != newest_revision() else "head", sealer)
            with delete_after_failure() as written:
                async with database.migration_transaction() as connection:
                    if not database.embedded:
                        await acquire_migration_lock(connection)
                    await _reject_rows(connection)
                    await insert_tables(connection, archive, manifest, advance)
                    # Raises an error if the master key is not the one of the backup, before files are written and the
                    # transaction is committed.
                    await Vault(key).load(connection)
                    for name, target in targets.items():
                        copy_out(archive, name, target, written)
                        advance(1)
            await migrate(database, sealing=sealer)
        finally:
            await database.close()
        return manifest


def check_log_store_is_free(settings: Settings) -> None:
    """Raises `SettingsError` if a running gateway has the embedded log store open, or if the log store is not
    embedded.
    """
    if settings.log_store.clickhouse_url:
        message = "the log store is a ClickHouse server; hint: back it up with its own tools, without --logs"
        raise SettingsError(message)
    file = Path(settings.log_store_folder) / "records" / "records.duckdb"
    if not file.exists():
        return
    import duckdb  # noqa: PLC0415 - it takes long to load, and only backups with logs need it

    try:
        duckdb.connect(file, read_only=True).close()
    except duckdb.Error:
        message = "a running gateway has the log store open; hint: stop it, or back up without --logs"
        raise SettingsError(message) from None


async def _reject_used_store(database: Database, manifest: Manifest) -> None:
    async with database.read_connection() as connection:
        await _reject_rows(connection)
    if await current_revision(database) not in {None, manifest.revision}:
        message = (
            "the store has empty tables of another revision than the backup; hint: restore into a new database, "
            "or with the release that wrote the backup"
        )
        raise SettingsError(message)


async def _reject_rows(connection: AsyncConnection) -> None:
    tables = {table.name: table for table in await connection.run_sync(reflect_tables)}
    organisations = tables.get("organisations")
    if organisations is not None and await count_rows(connection, organisations):
        message = "the store is in use: it has an organisation; hint: restore into a new database or folder"
        raise SettingsError(message)
