"""Migrations up and down. The newest revision has exactly the tables that the code declares."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, BigInteger, Boolean, Double, Integer, MetaData, String, func, insert, inspect, select
from sqlalchemy import table as named

from penstock.jobs.prepare import MigrationSealer
from penstock.prompts.default_labels import UNIVERSAL_LABELS
from penstock.secrets.vault import MasterKeys
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import SCRIPTS_DIR, migrate, newest_revision
from penstock.store.prompt_tables import collections, labels
from penstock.store.revision import current_revision
from penstock.store.tables import audit_log, key_digests, metadata, organisations, removed_members, users, versions
from tests.bootstrapped_store import PATIENT_STORE

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Column, Connection


def schema_difference(connection: Connection) -> list[Any]:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_migrations_create_and_drop_the_declared_tables(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
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


def describe_sqlite(path: Path) -> dict[str, Any]:
    """Returns everything that SQLite knows about the tables, except the order of columns and keys."""
    described: dict[str, Any] = {}
    connection = sqlite3.connect(path)
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind == "table":
            columns = {row[1:] for row in connection.execute(f"PRAGMA table_info({name})")}
            keys = {row[2:] for row in connection.execute(f"PRAGMA foreign_key_list({name})")}
            count = connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 - names of our tables
            described[name] = (columns, keys, count)
        else:
            described[name] = (kind, sql)
    connection.close()
    return described


def test_new_embedded_store_has_the_tables_that_migrations_make(tmp_path: Path):
    async def scenario() -> None:
        for name, targets in (("new", ("head",)), ("migrated", (first_revision(), "head"))):
            database = Database(PATIENT_STORE, Secret(f"sqlite:///{tmp_path}/{name}.db"))
            for target in targets:
                await migrate(database, target)
            assert await current_revision(database) == newest_revision()
            await database.close()

    asyncio.run(scenario())
    new, migrated = (describe_sqlite(tmp_path / f"{name}.db") for name in ("new", "migrated"))
    assert len(new) > 100
    assert new == migrated


def first_revision() -> str:
    return [script.revision for script in ScriptDirectory(str(SCRIPTS_DIR)).walk_revisions()][-1]


def test_newest_revision_is_that_of_alembic():
    assert newest_revision() == ScriptDirectory(str(SCRIPTS_DIR)).get_current_head()


def sample_value(column: Column[Any]) -> Any:
    """Returns a valid value for the column. A foreign key gets the ID of its parent row."""
    if isinstance(column.type, JSON):
        return {}
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, BigInteger | Double | Integer):
        return 1
    parents = [key.column.table.name for key in column.foreign_keys]
    assert isinstance(column.type, String)
    return (parents[0] if parents else column.table.name)[: column.type.length]


def insert_sample_rows(connection: Connection) -> None:
    """Inserts one row into each table, parents before children. No row has sealed data, the removed member left the
    whole organisation, and the audit row is no refusal, because a downgrade deletes refusals.
    """
    for table in metadata.sorted_tables:
        left_out = {column for column in table.columns if column.nullable and column.name.startswith("sealed")}
        remaining = (
            column
            for column in table.columns
            if column not in left_out | {removed_members.c.workspace_id, audit_log.c.refused_from}
        )
        row = {column.name: sample_value(column) for column in remaining}
        connection.execute(insert(table).values({**row, **({"config": "{}"} if "config" in row else {})}))


def count_rows(connection: Connection) -> dict[str, int]:
    there = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
    row = {name: connection.scalar(select(func.count()).select_from(named(name))) for name in there}
    return {name: count or 0 for name, count in row.items()}


def test_downgrade_and_upgrade_lose_no_row(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
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
        database = Database(PATIENT_STORE, store_url)
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
        database = Database(PATIENT_STORE, Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        await database.close()

    asyncio.run(scenario())
    assert oct((tmp_path / "penstock.db").stat().st_mode & 0o777) == "0o600"


def test_migration_lowercases_emails_unless_ambiguous(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        await migrate(database, "0010_removed_org_members")
        times = {"created_at": 1, "last_updated_at": 1}
        person = {"organisation_id": "o", "first_name": "", "last_name": "", "role": "owner", **times}
        typed = {"1": "Owner@Example.com", "2": "Twice@example.com", "3": "twice@example.com"}
        async with database.write_transaction() as connection:
            organisation = {"id": "o", "slug": "o", "name": "o", "settings": {}, **times}
            await connection.execute(insert(organisations).values(organisation))
            await connection.execute(
                insert(users), [{"id": own, "email": content, **person} for own, content in typed.items()]
            )
        await migrate(database)
        async with database.read_connection() as connection:
            rows = (await connection.execute(select(users.c.id, users.c.email))).all()
        assert {row.id: row.email for row in rows} == {**typed, "1": "owner@example.com"}
        await database.close()

    asyncio.run(scenario())


def test_migration_ends_keys_whose_creator_has_no_access(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        await migrate(database, "0012_removed_workspace_members")
        times = {"created_at": 1, "last_updated_at": 1}
        inside = {"organisation_id": "o", **times}
        location = {"slug": "w", "name": "w", "is_default": False, "defaults": {}, "settings": {}, "status": "active"}
        location["creation_source"] = "api"
        person = {"first_name": "", "last_name": "", **inside}
        key = {"name": "k", "type": "workspace-service", "status": "active", "creation_mode": "ui", "masked": "k"}
        key |= {"scopes": [], "defaults": {}, "workspace_id": "w", **inside}
        created_by = {"init": None, "by-init": "init", "by-gone": "gone", "by-member": "member"}
        created_by |= {"by-outsider": "outsider", "by-admin": "admin"}
        roles = {"member": "member", "outsider": "member", "admin": "admin"}
        async with database.write_transaction() as connection:
            await connection.run_sync(
                _insert_rows,
                {
                    "organisations": [{"id": "o", "slug": "o", "name": "o", "settings": {}, **times}],
                    "workspaces": [{"id": "w", **location, **inside}],
                    "users": [{"id": own, "email": own, "role": role, **person} for own, role in roles.items()],
                    "members": [
                        {"id": "m", "workspace_id": "w", "user_id": "member", "role": "member", "scopes": [], **inside}
                    ],
                    "api_keys": [{"id": own, "created_by": maker, **key} for own, maker in created_by.items()],
                    "key_digests": [
                        {"id": own, "organisation_id": "o", "api_key_id": own, "sha256": own, "created_at": 1}
                        for own in created_by
                    ],
                },
            )
        await migrate(database, sealing=MigrationSealer.from_key(MasterKeys([bytes(32)])))
        async with database.read_connection() as connection:
            query = select(key_digests.c.id, key_digests.c.holders, key_digests.c.expires_at)
            rows = {row.id: row for row in (await connection.execute(query)).all()}
        ended = {own for own, row in rows.items() if row.expires_at is not None}
        assert ended == {"by-gone", "by-outsider"}
        holders = {own: row.holders for own, row in rows.items() if row.holders}
        assert holders == {"by-member": ["member"], "by-outsider": ["outsider"], "by-admin": ["admin"]}
        await database.close()

    asyncio.run(scenario())


def test_migration_gives_each_workspace_a_default_collection_and_labels(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        await migrate(database, "0017_policies")
        times = {"created_at": 1, "last_updated_at": 1}
        location = {"slug": "w", "name": "w", "is_default": False, "defaults": {}, "settings": {}, "status": "active"}
        location |= {"organisation_id": "o", "creation_source": "api", **times}
        version = {"organisation_id": "o", "resource": "configs", "content": {}, "created_at": 1}
        config = {"name": "c", "config": "{}", "version_id": "v", "is_default": False, "status": "active"}
        config |= {"organisation_id": "o", "workspace_id": "two", "slug": "c", **times}
        async with database.write_transaction() as connection:
            await connection.run_sync(
                _insert_rows,
                {
                    "organisations": [{"id": "o", "slug": "o", "name": "o", "settings": {}, **times}],
                    "workspaces": [{**location, "id": name, "slug": name} for name in ("one", "two")],
                    "configs": [{"id": "c", **config}],
                    # A key of the organisation saved the first version.
                    "versions": [
                        {"id": "1", "workspace_id": None, "resource_id": "c", "number": 1, **version},
                        {"id": "2", "workspace_id": "two", "resource_id": "c", "number": 2, **version},
                        {"id": "3", "workspace_id": None, "resource_id": "deleted", "number": 1, **version},
                    ],
                },
            )
        await migrate(database)
        async with database.read_connection() as connection:
            folders = (await connection.execute(select(collections))).mappings().all()
            names = (await connection.execute(select(labels.c.workspace_id, labels.c.name))).all()
            owners = (await connection.execute(select(versions.c.id, versions.c.workspace_id))).all()
        assert {(row["workspace_id"], row["name"], row["is_default"]) for row in folders} == {
            (name, "Default", True) for name in ("one", "two")
        }
        assert len({row["slug"] for row in folders}) == 2
        assert {(row.workspace_id, row.name) for row in names} == {
            (location, name) for location in ("one", "two") for name in UNIVERSAL_LABELS
        }
        assert {row.id: row.workspace_id for row in owners} == {"1": "two", "2": "two", "3": None}
        await database.close()

    asyncio.run(scenario())


def _insert_rows(connection: Connection, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Inserts rows into the tables as they are now in the database, which is not how the code declares them."""
    there = MetaData()
    there.reflect(connection)
    for name, values in rows.items():
        connection.execute(insert(there.tables[name]), values)
