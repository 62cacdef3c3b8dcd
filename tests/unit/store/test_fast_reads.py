"""Fast reads, which bypass the execution layer of SQLAlchemy. They return the same rows and report the same errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import bindparam, func, insert, select

from penstock.errors import InvalidError
from penstock.settings import Store
from penstock.store.database import Database
from penstock.store.fast_reads import ReadConnection
from penstock.store.migrate import migrate
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


def run_scenario(url: Secret, scene: Any) -> None:
    async def run() -> None:
        database = Database(Store(), url)
        await migrate(database)
        await insert_rows(database)
        await scene(database)
        await database.close()

    asyncio.run(run())


def test_rows_equal_those_of_sqlalchemy(store_url: Secret):
    def make_queries(number: int) -> list[Any]:
        ids = [str(one) for one in range(1, number + 1)]
        flag, name = workspaces.c.settings["on"].as_boolean(), workspaces.c.name
        return [
            select(workspaces).order_by(workspaces.c.id.desc()).limit(number),
            select(workspaces.c.id, workspaces.c.slug).where(workspaces.c.id.in_(ids)).order_by(workspaces.c.id),
            select(workspaces.c.id).where(flag, workspaces.c.is_default.is_(False)).order_by(workspaces.c.id),
            select(func.count().label("count")).where(name == "n", workspaces.c.description.is_(None)),
            select(workspaces, organisations.c.settings.label("above")).join(organisations).limit(number),
            select(workspaces).where(workspaces.c.id.in_([])),
        ]

    async def scenario(database: Database) -> None:
        # The second round executes cached statements with other values.
        for number in (2, 3):
            async with database.read_connection() as connection:
                assert isinstance(connection, ReadConnection)
                for query in make_queries(number):
                    said = [dict(row) for row in (await connection.execute(query)).mappings()]
                    assert await connection.fetch_rows(query) == said, str(query)
                for ids in (["1"], ["1", "3"], []):
                    said = [dict(row) for row in (await connection.execute(WORKSPACES_BY_ID, {"ids": ids})).mappings()]
                    assert await connection.fetch_prepared(WORKSPACES_BY_ID, {"ids": ids}) == said

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
