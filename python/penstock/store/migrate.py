"""Database migrations. Runs Alembic outside a cluster node's startup path, so that no request waits for a migration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sqlalchemy import inspect, text
from sqlalchemy.util import await_only

from penstock.errors import StartupError
from penstock.store import columns, guardrail_tables, job_tables, limit_tables, prompt_tables, tables
from penstock.store.database import create_private_file
from penstock.store.revision import VERSION_TABLE, current_revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.database import Database

# Each of these modules adds its tables to the metadata when it is imported.
TABLE_MODULES = (tables, guardrail_tables, job_tables, limit_tables, prompt_tables)
SCRIPTS_DIR = Path(__file__).with_name("migrations")
# Advisory lock for migrations. If two nodes migrate at once, the second waits and then finds nothing to do.
MIGRATION_LOCK_ID = 0x70656E73
# Lock timeouts: the first for another node's migration, the second for tables in use. The second is shorter because all
# later queries on the table queue behind the migration.
MIGRATION_LOCK_TIMEOUT, TABLE_LOCK_TIMEOUT = "300s", "30s"


class ConfigSealer(Protocol):
    """Encrypts credentials that older releases stored as plain text, and decrypts them on downgrade."""

    async def seal(self, connection: AsyncConnection, config: str, owner: str) -> tuple[str, str | None]:
        """Returns the config with its credentials masked, and the credentials encrypted for the row `owner`; `None` if
        there are none.
        """
        ...

    async def open(self, connection: AsyncConnection, config: str, sealed: str, owner: str) -> str:
        """Returns the config with its credentials restored."""
        ...


class SyncConfigSealer(NamedTuple):
    """Synchronous variant of `ConfigSealer` for migration scripts. Both functions take a row's config and its id."""

    seal: Callable[[str, str], tuple[str, str | None]]
    open: Callable[[str, str, str], str]


async def migrate(
    database: Database, target: str = "head", sealing: ConfigSealer | None = None
) -> tuple[str | None, str | None]:
    """Migrates the database to `target`; returns the revisions before and after."""
    if database.embedded:
        await asyncio.to_thread(create_private_file, database.url)
        # Returns without a write if there is nothing to migrate, because only a write would wait for other processes.
        if target == "head" and await current_revision(database) == (last := newest_revision()):
            return last, last
    async with database.migration_transaction() as connection:
        if not database.embedded:
            await acquire_migration_lock(connection)
        elif target == "head" and await connection.run_sync(_is_empty):
            await connection.run_sync(_create_newest_tables)
            return None, newest_revision()
        done = await connection.run_sync(
            _run_migrations, target, _sync_sealer(connection, sealing) if sealing else None
        )
        if database.embedded and done[0] != done[1]:
            await _check_foreign_keys(connection)
        return done


def newest_revision() -> str | None:
    """Returns the revision that this release needs: the name of the last migration script. Does not use Alembic,
    because its modules take 0.1 s to load.
    """
    return max((path.stem for path in (SCRIPTS_DIR / "versions").glob("[0-9]*.py")), default=None)


def _is_empty(connection: Connection) -> bool:
    return not inspect(connection).get_table_names()


def _create_newest_tables(connection: Connection) -> None:
    """Creates the tables of a new embedded store at once, which takes a fifth of the time of all migrations."""
    columns.metadata.create_all(connection)
    names = (
        f"{VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
    )
    connection.execute(text(f"CREATE TABLE {names}"))
    insertion = text(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES (:revision)")  # noqa: S608 - a constant
    connection.execute(insertion, {"revision": newest_revision()})


async def _check_foreign_keys(connection: AsyncConnection) -> None:
    """Raises `StartupError` if a row violates a foreign key. SQLite does not enforce these during a migration."""
    row = (await connection.exec_driver_sql("PRAGMA foreign_key_check")).first()
    if row:
        message = (
            f"the store cannot be migrated, and is as it was: a row of {row[0]!r} refers to a row that does not exist"
        )
        raise StartupError(message)


async def acquire_migration_lock(connection: AsyncConnection) -> None:
    """Waits for the lock that migrations and restores of a PostgreSQL database share; the transaction's end frees it."""
    await connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK_TIMEOUT}'")
    await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK_ID})")
    await connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{TABLE_LOCK_TIMEOUT}'")


def _sync_sealer(connection: AsyncConnection, sealing: ConfigSealer) -> SyncConfigSealer:
    """Wraps an asynchronous sealer so that synchronous migration scripts can call it."""

    def seal(config: str, owner: str) -> tuple[str, str | None]:
        return await_only(sealing.seal(connection, config, owner))

    def unseal(config: str, sealed: str, owner: str) -> str:
        return await_only(sealing.open(connection, config, sealed, owner))

    return SyncConfigSealer(seal, unseal)


def _run_migrations(
    connection: Connection, target: str, rewriting: SyncConfigSealer | None
) -> tuple[str | None, str | None]:
    # Imported only here: a store that is up to date, or new, does not need the 13 MB of Alembic and its dependencies.
    from alembic import command  # noqa: PLC0415 - see the comment above
    from alembic.config import Config  # noqa: PLC0415 - see the comment above
    from alembic.util import CommandError  # noqa: PLC0415 - see the comment above

    config = Config()
    config.attributes["rewriting"] = rewriting
    config.set_main_option("script_location", str(SCRIPTS_DIR))
    config.attributes["connection"] = connection
    before = _read_revision(connection)
    # A database without tables can only be upgraded, also to the revision of an older backup.
    run_command = command.upgrade if target == "head" or before is None else command.downgrade
    try:
        run_command(config, target)
    except CommandError as error:
        message = f"the store cannot be migrated: {error}; hint: a newer release may have migrated it"
        raise StartupError(message) from None
    return before, _read_revision(connection)


def _read_revision(connection: Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - see the comment above

    return MigrationContext.configure(connection).get_current_revision()
