"""Migrations lead to the tables that the code names, up and down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from penstock.secret import Secret
from penstock.settings import Store
from penstock.store.database import Database
from penstock.store.migrate import migrate, newest, revision
from penstock.store.tables import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection


def difference(connection: Connection) -> list[Any]:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_the_migrations_make_the_tables_that_the_code_names_and_take_them_away(store_url: Secret):
    async def scene() -> None:
        database = Database(Store(), store_url)
        assert await migrate(database) == (None, newest())
        assert await migrate(database) == (newest(), newest())
        assert await revision(database) == newest()
        async with database.reading() as connection:
            assert await connection.run_sync(difference) == []
        assert await migrate(database, "base") == (newest(), None)
        async with database.reading() as connection:
            assert await connection.run_sync(lambda there: inspect(there).get_table_names()) == ["alembic_version"]
        await database.close()

    asyncio.run(scene())


def test_an_embedded_store_is_for_its_owner_alone(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        await database.close()

    asyncio.run(scene())
    assert oct((tmp_path / "penstock.db").stat().st_mode & 0o777) == "0o600"
