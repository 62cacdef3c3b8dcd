"""Backup and restore of everything that a gateway stores: the tables, uploaded files, and the embedded log store.

A backup is a ZIP file. The tables are in it as JSON lines, so a backup of one kind of database can be restored in
another. The master key is not in it, because a reader of both could decrypt all credentials.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import msgspec
from sqlalchemy import JSON, MetaData, Table, func, insert, select, update

from penstock import __version__
from penstock.errors import SettingsError
from penstock.jobs.prepare import MigrationSealer, create_data_dir, open_database
from penstock.schemas import format_required_timestamp, now
from penstock.secrets.references import resolve_master_key
from penstock.secrets.vault import Vault, load_master_keys
from penstock.settings.buckets import FOLDER
from penstock.store.migrate import current_revision, migrate, newest_revision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings import Settings
    from penstock.store.database import Database

    # Takes the number of rows and files; returns a function that counts those that are done.
    StartProgress = Callable[[int], Callable[[int], None]]

FORMAT = 1
MANIFEST, TABLES_DIR, FILES_DIR, LOGS_DIR = "manifest.json", "tables", "files", "logs"
REVISION_TABLE = "alembic_version"
# Rows per statement, and the size of a part of a file that is copied at once.
BATCH_ROWS, CHUNK_BYTES = 500, 1024 * 1024
MAX_MANIFEST_BYTES, MAX_LINE_BYTES = 1024 * 1024, 256 * 1024 * 1024


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains."""

    format: int
    version: str
    created_at: str
    # Revision of the tables.
    revision: str
    # Number of rows by table, in an order in which they can be inserted.
    tables: dict[str, int]
    files: int = 0
    logs: int = 0


class BackupSource(msgspec.Struct, frozen=True):
    """A file that goes into the backup."""

    path: Path
    name: str


async def write_backup(settings: Settings, path: Path, start: StartProgress, *, with_logs: bool) -> Manifest:
    """Writes a backup to a new file with mode 0600; a failed backup leaves no file. Requests go on meanwhile.

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
            tables = await connection.run_sync(_reflect_tables)
            counts = {table: await _count_rows(connection, table) for table in tables}
            # Listed after the state of the tables is fixed, so that a file that a row refers to is never missed; and
            # before the archive exists, because it may be in one of the folders.
            sources = _list_sources(settings, with_logs=with_logs)
            advance = start(sum(counts.values()) + len(sources))
            with _new_archive(path) as archive:
                return await _write_archive(archive, connection, revision, counts, sources, advance)
    finally:
        await database.close()


def _list_sources(settings: Settings, *, with_logs: bool) -> list[BackupSource]:
    folders = {FILES_DIR: settings.files_folder} if settings.files.store == FOLDER else {}
    if with_logs:
        folders[LOGS_DIR] = settings.log_store_folder
    return [source for prefix, folder in folders.items() for source in _iter_files(Path(folder), prefix)]


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
            async for line in _iter_lines(connection, table):
                member.write(line)
                advance(1)
    copied = {FILES_DIR: 0, LOGS_DIR: 0}
    for source in sources:
        copied[source.name.partition("/")[0]] += _copy_into(archive, source)
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

    Rows and files are restored completely or not at all. Raises `SettingsError` if the store is in use, if files would
    be overwritten, if the master key is not the one of the backup, or if the backup is damaged.
    """
    with _open_archive(path) as archive:
        manifest = _read_manifest(archive, path)
        targets = _plan_files(archive, manifest, settings)
        create_data_dir(settings)
        resolved = await resolve_master_key(settings)
        key = load_master_keys(resolved)
        sealer = MigrationSealer.from_key(key)
        database = open_database(settings)
        try:
            # A connection would create the file of an embedded database, readable by others; `migrate` creates it.
            if database.exists:
                await _reject_used_store(database, manifest)
            advance = start(sum(manifest.tables.values()) + len(targets))
            await migrate(database, manifest.revision if manifest.revision != newest_revision() else "head", sealer)
            with _delete_after_failure() as written:
                async with database.migration_transaction() as connection:
                    await _insert_tables(connection, archive, manifest, advance)
                    # Fails here, before anything is written or committed, if this is another master key.
                    await Vault(key).load(connection)
                    for name, target in targets.items():
                        _copy_out(archive, name, target, written)
                        advance(1)
            await migrate(database, sealing=sealer)
        finally:
            await database.close()
        return manifest


@contextmanager
def _delete_after_failure() -> Generator[list[Path]]:
    """Yields a list for files that are written; deletes them if the block fails."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def check_log_store_is_free(settings: Settings) -> None:
    """Raises `SettingsError` if a running gateway has the embedded log store open, or if there is none."""
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


def _reflect_tables(connection: Connection) -> list[Table]:
    """Returns the tables of the database as it is, parents first, so that older revisions can be copied too."""
    metadata = MetaData()
    metadata.reflect(connection)
    tables = [table for table in metadata.sorted_tables if table.name != REVISION_TABLE]
    for table in tables:
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return tables


async def _count_rows(connection: AsyncConnection, table: Table) -> int:
    return await connection.scalar(select(func.count()).select_from(table)) or 0


async def _iter_lines(connection: AsyncConnection, table: Table) -> AsyncIterator[bytes]:
    query = select(table).order_by(*table.primary_key.columns)
    async with connection.stream(query.execution_options(yield_per=BATCH_ROWS)) as rows:
        async for row in rows.mappings():
            yield msgspec.json.encode(dict(row)) + b"\n"


async def _reject_used_store(database: Database, manifest: Manifest) -> None:
    async with database.read_connection() as connection:
        tables = {table.name: table for table in await connection.run_sync(_reflect_tables)}
        organisations = tables.get("organisations")
        if organisations is not None and await _count_rows(connection, organisations):
            message = "the store is in use: it has an organisation; hint: restore into a new database or folder"
            raise SettingsError(message)
    if await current_revision(database) not in {None, manifest.revision}:
        message = (
            "the store has empty tables of another revision than the backup; hint: restore into a new database, "
            "or with the release that wrote the backup"
        )
        raise SettingsError(message)


async def _insert_tables(
    connection: AsyncConnection, archive: zipfile.ZipFile, manifest: Manifest, advance: Callable[[int], None]
) -> None:
    tables = {table.name: table for table in await connection.run_sync(_reflect_tables)}
    if missing := sorted(set(manifest.tables) - set(tables)):
        message = f"the backup has tables that its revision {manifest.revision} does not have: {', '.join(missing)}"
        raise SettingsError(message)
    for name, count in manifest.tables.items():
        table = tables[name]
        own_references = _self_references(table)
        deferred: list[dict[str, Any]] = []
        inserted = 0
        for rows in _read_rows(archive, name):
            deferred += _take_references(rows, own_references)
            await connection.execute(insert(table), rows)
            inserted += len(rows)
            advance(len(rows))
        if inserted != count:
            message = f"the backup is incomplete: {name} has {inserted} rows, and should have {count}"
            raise SettingsError(message)
        for row in deferred:
            values = {column: row[column] for column in own_references}
            await connection.execute(update(table).where(table.c.id == row["id"]).values(values))


def _self_references(table: Table) -> list[str]:
    """Returns the columns that refer to other rows of the same table. They are filled once all rows exist."""
    return [key.parent.name for key in table.foreign_keys if key.column.table is table]


def _take_references(rows: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    taken = [{"id": row["id"], **{name: row[name] for name in columns}} for row in rows] if columns else []
    for row in rows:
        row.update(dict.fromkeys(columns))
    return [row for row in taken if any(row[name] is not None for name in columns)]


def _read_rows(archive: zipfile.ZipFile, table: str) -> Iterator[list[dict[str, Any]]]:
    with _open_member(archive, f"{TABLES_DIR}/{table}.jsonl") as member:
        rows: list[dict[str, Any]] = []
        while line := member.readline(MAX_LINE_BYTES):
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            if len(rows) == BATCH_ROWS:
                yield rows
                rows = []
        if rows:
            yield rows


def _iter_files(folder: Path, prefix: str) -> Iterator[BackupSource]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield BackupSource(path, f"{prefix}/{path.relative_to(folder).as_posix()}")


def _plan_files(archive: zipfile.ZipFile, manifest: Manifest, settings: Settings) -> dict[str, Path]:
    """Returns the target of each file of the archive. Raises `SettingsError` if one exists, is outside its folder, or is
    missing in the archive.
    """
    folders = {FILES_DIR: Path(settings.files_folder), LOGS_DIR: Path(settings.log_store_folder)}
    targets: dict[str, Path] = {}
    for name in archive.namelist():
        first, *rest = PurePosixPath(name).parts or ("",)
        if first not in folders:
            continue
        if not rest or ".." in rest or name.startswith("/") or name.endswith("/"):
            message = f"the backup has a file with a name that is not allowed: {name!r}"
            raise SettingsError(message)
        targets[name] = folders[first].joinpath(*rest)
    if len(targets) != manifest.files + manifest.logs:
        message = (
            f"the backup is incomplete: it has {len(targets)} files, and should have {manifest.files + manifest.logs}"
        )
        raise SettingsError(message)
    if existing := [str(path) for path in targets.values() if path.exists()]:
        message = (
            f"{len(existing)} files would be overwritten, such as {existing[0]!r}; hint: restore into a new folder"
        )
        raise SettingsError(message)
    return targets


def _copy_into(archive: zipfile.ZipFile, source: BackupSource) -> bool:
    """Copies a file; returns false if it was deleted meanwhile, because requests go on."""
    try:
        opened = source.path.open("rb")
    except FileNotFoundError:
        return False
    except OSError as error:
        message = f"cannot read {str(source.path)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    with opened, archive.open(source.name, "w", force_zip64=True) as member:
        while chunk := opened.read(CHUNK_BYTES):
            member.write(chunk)
    return True


def _copy_out(archive: zipfile.ZipFile, name: str, target: Path, written: list[Path]) -> None:
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open_member(archive, name) as member, os.fdopen(_create_private(target), "wb") as opened:
            written.append(target)
            while chunk := member.read(CHUNK_BYTES):
                opened.write(chunk)
    except OSError as error:
        message = f"cannot write {str(target)!r}: {error.strerror or error}"
        raise SettingsError(message) from None


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(name)
    except (KeyError, RuntimeError) as error:
        # Not there, encrypted, or compressed in a way that no backup uses.
        reason = error.args[0] if error.args else error
        message = f"the backup is incomplete: {name!r} cannot be read: {reason}"
        raise SettingsError(message) from None


def _create_private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


@contextmanager
def _new_archive(path: Path) -> Generator[zipfile.ZipFile]:
    if path.exists():
        message = f"{str(path)!r} exists; hint: choose another name"
        raise SettingsError(message)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(_create_private(draft), "wb") as opened:
            with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                yield archive
            opened.flush()
            os.fsync(opened.fileno())
        draft.rename(path)
    except OSError as error:
        message = f"cannot write {str(path)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _open_archive(path: Path) -> Generator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        message = f"cannot read {str(path)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    except (zipfile.BadZipFile, zlib.error, msgspec.DecodeError, EOFError, zipfile.LargeZipFile) as error:
        message = f"{str(path)!r} is not a complete backup: {error}"
        raise SettingsError(message) from None


def _read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    try:
        with archive.open(MANIFEST) as member:
            content = member.read(MAX_MANIFEST_BYTES)
        manifest = msgspec.json.decode(content, type=Manifest)
    except (KeyError, RuntimeError, msgspec.ValidationError):
        message = f"{str(path)!r} is not a backup of Penstock: it has no valid {MANIFEST}"
        raise SettingsError(message) from None
    if manifest.format != FORMAT:
        message = f"{str(path)!r} has the format {manifest.format}; allowed: {FORMAT}; hint: use a newer release"
        raise SettingsError(message)
    return manifest
