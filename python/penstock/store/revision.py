"""Revision of the store's tables, read without Alembic, whose modules would take 9 MB of a process that only reads the
revision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from penstock.store.database import Database

VERSION_TABLE = "alembic_version"


async def current_revision(database: Database) -> str | None:
    """Returns the revision of the tables; `None` if the database has never been migrated."""
    async with database.read_connection() as connection:
        if not await connection.run_sync(_has_version_table):
            return None
        row = (await connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")).first()  # noqa: S608 - a constant
        return row[0] if row else None


def _has_version_table(connection: Connection) -> bool:
    return inspect(connection).has_table(VERSION_TABLE)
