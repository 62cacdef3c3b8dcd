"""Migrations up and down. The newest revision has exactly the tables that the code declares."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, BigInteger, Boolean, Integer, String, func, insert, inspect, select
from sqlalchemy import table as named

from penstock.jobs.prepare import MigrationSealer
from penstock.secrets.vault import MasterKeys
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import SCRIPTS_DIR, current_revision, migrate, newest_revision
from penstock.store.tables import metadata, organisations, removed_members, users

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Column, Connection


def schema_difference(connection: Connection) -> list[Any]:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_migrations_create_and_drop_the_declared_tables(store_url: Secret):
    async def scenario() -> None:
        database = Database(Store(), store_url)
        assert await migrate(database) == (None, newest_revision())
        assert await migrate(database) == (newest_revision(), newest_revision())
        assert await current_revision(database) == newest_revision()
        async with database.read_connection() as connection:
            assert await connection.run_sync(schema_difference) == []
        assert await migrate(database, "base") == (newest_revision(), None)
        async with database.read_connection() as connection:
            assert await connection.run_sync(lambda there: inspect(there).get_table_names()) == ["alembic_version"]
        await database.close()

    asyncio.run(scenario())


def sample_value(column: Column[Any]) -> Any:
    """Returns a valid value for the column. A foreign key gets the ID of its parent row."""
    if isinstance(column.type, JSON):
        return {}
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, BigInteger | Integer):
        return 1
    parents = [key.column.table.name for key in column.foreign_keys]
    assert isinstance(column.type, String)
    return (parents[0] if parents else column.table.name)[: column.type.length]


def insert_sample_rows(connection: Connection) -> None:
    """Inserts one row into each table, parents before children. No row has sealed data, and the removed member left the
    whole organisation.
    """
    for table in metadata.sorted_tables:
        left_out = {column for column in table.columns if column.nullable and column.name.startswith("sealed")}
        kept = (column for column in table.columns if column not in left_out | {removed_members.c.workspace_id})
        row = {column.name: sample_value(column) for column in kept}
        connection.execute(insert(table).values({**row, **({"config": "{}"} if "config" in row else {})}))


def count_rows(connection: Connection) -> dict[str, int]:
    there = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
    found = {name: connection.scalar(select(func.count()).select_from(named(name))) for name in there}
    return {name: count or 0 for name, count in found.items()}


def test_downgrade_and_upgrade_lose_no_row(store_url: Secret):
    async def scenario() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        async with database.write_transaction() as connection:
            await connection.run_sync(insert_sample_rows)
            before = await connection.run_sync(count_rows)
        assert set(before.values()) == {1}
        for script in list(ScriptDirectory(str(SCRIPTS_DIR)).walk_revisions())[1:]:
            await migrate(database, script.revision)
            async with database.read_connection() as connection:
                after = await connection.run_sync(count_rows)
            # A downgrade drops newer tables; the other tables keep all rows.
            assert after == {name: before[name] for name in after}, script.revision
            before = after
        await migrate(database, sealing=MigrationSealer.from_key(MasterKeys([bytes(32)])))
        async with database.read_connection() as connection:
            after = await connection.run_sync(count_rows)
            assert await connection.run_sync(schema_difference) == []
        assert {name: after[name] for name in before} == before
        await database.close()

    asyncio.run(scenario())


def test_downgrade_drops_removals_from_single_workspaces(store_url: Secret):
    async def scenario() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        organisation = {"id": "o", "slug": "o", "name": "o", "settings": {}, "created_at": 1, "last_updated_at": 1}
        gone = {"organisation_id": "o", "user_id": "u", "email": "u@x.test", "created_at": 1}
        async with database.write_transaction() as connection:
            await connection.execute(insert(organisations).values(organisation))
            await connection.execute(
                insert(removed_members),
                [{**gone, "id": "1", "workspace_id": None}, {**gone, "id": "2", "workspace_id": "w"}],
            )
        await migrate(database, "0011_lowercase_emails")
        async with database.read_connection() as connection:
            assert (await connection.scalars(select(removed_members.c.id))).all() == ["1"]
        await database.close()

    asyncio.run(scenario())


def test_embedded_store_is_private_to_the_owner(tmp_path: Path):
    async def scenario() -> None:
        database = Database(Store(), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        await database.close()

    asyncio.run(scenario())
    assert oct((tmp_path / "penstock.db").stat().st_mode & 0o777) == "0o600"


def test_migration_lowercases_emails_unless_ambiguous(store_url: Secret):
    async def scenario() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        await migrate(database, "0010_removed_org_members")
        times = {"created_at": 1, "last_updated_at": 1}
        person = {"organisation_id": "o", "first_name": "", "last_name": "", "role": "owner", **times}
        typed = {"1": "Owner@Example.com", "2": "Twice@example.com", "3": "twice@example.com"}
        async with database.write_transaction() as connection:
            organisation = {"id": "o", "slug": "o", "name": "o", "settings": {}, **times}
            await connection.execute(insert(organisations).values(organisation))
            await connection.execute(
                insert(users), [{"id": own, "email": said, **person} for own, said in typed.items()]
            )
        await migrate(database)
        async with database.read_connection() as connection:
            found = (await connection.execute(select(users.c.id, users.c.email))).all()
        assert {row.id: row.email for row in found} == {**typed, "1": "owner@example.com"}
        await database.close()

    asyncio.run(scenario())
