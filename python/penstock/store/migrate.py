"""Brings the tables up to date; never on the way of a cluster's node to its first request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from penstock.store.database import make_private

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from penstock.store.database import Database

SCRIPTS = Path(__file__).with_name("migrations")
# Two nodes that migrate at once: the second waits and finds nothing to do.
LOCK = 0x70656E73


async def migrate(database: Database, target: str = "head") -> tuple[str | None, str | None]:
    """Migrate, and give the revision before and after."""
    if database.embedded:
        await asyncio.to_thread(make_private, database.url)
    async with database.writing() as connection:
        if not database.embedded:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        return await connection.run_sync(_migrate, target)


async def revision(database: Database) -> str | None:
    """Say which revision the tables have."""
    async with database.reading() as connection:
        return await connection.run_sync(_revision)


def newest() -> str | None:
    """Say which revision this release needs."""
    return ScriptDirectory(str(SCRIPTS)).get_current_head()


def _migrate(connection: Connection, target: str) -> tuple[str | None, str | None]:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    before = _revision(connection)
    go = command.downgrade if target == "base" else command.upgrade
    go(config, target)
    return before, _revision(connection)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
