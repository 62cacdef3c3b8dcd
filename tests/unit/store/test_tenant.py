"""Reads of a tenant: prepared queries with parameters of any length, and errors of invalid values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import bindparam, insert, select

from penstock.errors import InvalidError
from penstock.settings import Store
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.prompt_tables import collections
from penstock.store.tables import organisations, workspaces
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

TIMESTAMPS = {"created_at": 1, "last_updated_at": 2**40}
WORKSPACE_FIELDS = {
    "organisation_id": "o",
    "name": "n",
    "status": "active",
    "defaults": {"a": [1]},
    "creation_source": "api",
}
WORKSPACES_BY_ID = (
    select(workspaces).where(workspaces.c.id.in_(bindparam("ids", expanding=True))).order_by(workspaces.c.id)
)


async def insert_rows(database: Database) -> None:
    async with database.write_transaction() as connection:
        organisation = {"id": "o", "slug": "o", "name": "é", "settings": {"on": True}, **TIMESTAMPS}
        await connection.execute(insert(organisations).values(organisation))
        rows = [
            {
                "id": str(number),
                "slug": f"w{number}",
                "is_default": number == 1,
                "settings": {"on": number > 1},
                **TIMESTAMPS,
            }
            for number in range(1, 4)
        ]
        await connection.execute(insert(workspaces), [{**WORKSPACE_FIELDS, **row} for row in rows])


def run_scenario(url: Secret, work: Any) -> None:
    async def run() -> None:
        database = Database(Store(), url)
        await migrate(database)
        await insert_rows(database)
        await work(database)
        await database.close()

    asyncio.run(run())


def test_prepared_query_reads_lists_of_any_length_within_the_tenant(store_url: Secret):
    async def scenario(database: Database) -> None:
        async with database.read_connection() as connection:
            tenant, other = (TenantStore(connection, name, None) for name in ("o", "p"))
            for ids in (["1"], ["1", "3"], []):
                rows = await tenant.fetch_prepared(WORKSPACES_BY_ID, workspaces, ids=ids)
                assert [row["id"] for row in rows] == ids
                assert all(row["defaults"] == {"a": [1]} and row["last_updated_at"] == 2**40 for row in rows)
                assert not await other.fetch_prepared(WORKSPACES_BY_ID, workspaces, ids=ids)
            tenant.among = frozenset({"2", "3"})
            rows = await tenant.fetch_prepared(WORKSPACES_BY_ID, workspaces, ids=["1", "3"])
            assert [(row["id"], row["is_default"]) for row in rows] == [("3", False)]

    run_scenario(store_url, scenario)


def test_rejects_a_row_of_an_inaccessible_workspace(store_url: Secret):
    async def scenario(database: Database) -> None:
        async with database.write_transaction() as connection:
            tenant = TenantStore(connection, "o", None)
            tenant.among = frozenset({"2", "3"})
            row = {"id": "c", "name": "c", "slug": "c", "is_default": False, "status": "active", **TIMESTAMPS}
            with pytest.raises(InvalidError, match="workspace_id is required"):
                await tenant.insert(collections, {**row, "workspace_id": "1"})
            assert not await tenant.organisation().count(collections)
            await tenant.insert(collections, {**row, "workspace_id": "2"})
            tenant.workspace_id = "1"
            await tenant.insert(collections, {**row, "id": "d", "slug": "d"})
            assert await tenant.organisation().count(collections) == len(["c", "d"])

    run_scenario(store_url, scenario)


def test_invalid_value_is_reported_and_connection_stays_usable(store_url: Secret):
    async def scenario(database: Database) -> None:
        for _ in range(2):
            with pytest.raises(InvalidError, match="name must be Unicode text"):
                async with database.read_connection() as connection:
                    await TenantStore(connection, "o", None).fetch_rows(
                        select(workspaces).where(workspaces.c.name == "half \ud800"), workspaces
                    )
            async with database.read_connection() as connection:
                assert await TenantStore(connection, "o", None).count(workspaces) == 3
        # The next read sees what another connection has committed.
        async with database.write_transaction() as connection:
            await connection.execute(workspaces.delete().where(workspaces.c.id == "3"))
        async with database.read_connection() as connection:
            assert await TenantStore(connection, "o", None).count(workspaces) == 2

    run_scenario(store_url, scenario)
