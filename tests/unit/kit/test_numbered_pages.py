"""Pagination. Every row is on exactly one page in any sort order, and late pages cost as little as early ones."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert

from penstock.errors import InvalidError
from penstock.ids import new_id
from penstock.kit.numbered_pages import PageRequest, fetch_page
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import configs, organisations, users, workspaces
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

TIMESTAMPS = {"created_at": 1, "last_updated_at": 1}


async def create_users(connection: AsyncConnection, count: int) -> str:
    organisation = new_id()
    row = {"id": organisation, "slug": "o", "name": "o", "settings": {}, **TIMESTAMPS}
    await connection.execute(insert(organisations).values(row))
    fixed = {"organisation_id": organisation, "first_name": "", "last_name": "", "role": "member", **TIMESTAMPS}
    body = [{"id": new_id(), "email": f"{number}@x", **fixed} for number in range(count)]
    if body:
        await connection.execute(insert(users), body)
    return organisation


def run_in_transaction(url: Secret, work: Any) -> None:
    async def run() -> None:
        database = Database(Store(), url)
        try:
            await migrate(database)
            async with database.write_transaction() as connection:
                await work(connection)
        finally:
            await database.close()

    asyncio.run(run())


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("count", [0, 1, 7, 20])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_every_row_is_on_exactly_one_page(store_url: Secret, count: int, size: int, order: str):
    async def scenario(connection: AsyncConnection) -> None:
        tenant = TenantStore(connection, await create_users(connection, count), None)
        received: list[str] = []
        for number in range(count // size + 2):
            total, page = await fetch_page(tenant, users, PageRequest(size=size, number=number, order=order))
            assert total == count
            received += [row["email"] for row in page]
        expected = [f"{number}@x" for number in range(count)]
        assert received == (expected if order == "asc" else expected[::-1])

    run_in_transaction(store_url, scenario)


def test_equal_sort_values_are_ordered_by_id(store_url: Secret):
    async def scenario(connection: AsyncConnection) -> None:
        organisation = await create_users(connection, 0)
        fixed = {
            "organisation_id": organisation,
            "is_default": False,
            "status": "active",
            "defaults": {},
            "settings": {},
        }
        for number in range(9):
            row = {"id": new_id(), "slug": str(number), "name": "same", "creation_source": "api", **fixed, **TIMESTAMPS}
            await connection.execute(insert(workspaces).values(row))
        tenant = TenantStore(connection, organisation, None)
        pages = [
            await fetch_page(tenant, workspaces, PageRequest(size=2, number=number, sort="name")) for number in range(5)
        ]
        assert [row["slug"] for _, page in pages for row in page] == [str(number) for number in range(9)][::-1]

    run_in_transaction(store_url, scenario)


@pytest.mark.slow(8)
@pytest.mark.figures
def test_page_1000_costs_at_most_half_more_than_page_1(tmp_path: Path):
    async def scenario(connection: AsyncConnection) -> None:
        tenant = TenantStore(connection, await create_users(connection, 100_000), None)

        async def measure_page_seconds(number: int) -> float:
            durations = []
            for _ in range(9):
                started = time.perf_counter()
                await fetch_page(tenant, users, PageRequest(size=100, number=number))
                durations.append(time.perf_counter() - started)
            return min(durations)

        early, middle, late = (
            await measure_page_seconds(0),
            await measure_page_seconds(499),
            await measure_page_seconds(999),
        )
        print(f"page 1: {early * 1000:.2f} ms, page 500: {middle * 1000:.2f} ms, page 1,000: {late * 1000:.2f} ms")
        assert late <= 1.5 * early
        # The middle page is the farthest from either end.
        assert middle <= 2.5 * early

    run_in_transaction(Secret(f"sqlite:///{tmp_path}/penstock.db"), scenario)


def test_rows_of_other_tenants_are_not_visible(store_url: Secret):
    async def scenario(connection: AsyncConnection) -> None:
        mine = await create_users(connection, 3)
        other = TenantStore(connection, new_id(), None)
        (first, *_) = (await fetch_page(TenantStore(connection, mine, None), users, PageRequest()))[1]
        assert await fetch_page(other, users, PageRequest()) == (0, [])
        assert await other.find(users, first["id"]) is None
        await other.update(users, first["id"], {"role": "owner"})
        assert await other.delete(users, users.c.id == first["id"]) == 0
        assert (await TenantStore(connection, mine, None).find(users, first["id"])) == first
        inside = TenantStore(connection, mine, "workspace-a")
        assert (await inside.count(configs), inside.workspace_id) == (0, "workspace-a")

    run_in_transaction(store_url, scenario)


def test_rejects_an_unsupported_sort_column(store_url: Secret):
    async def scenario(connection: AsyncConnection) -> None:
        tenant = TenantStore(connection, await create_users(connection, 3), None)
        with pytest.raises(InvalidError, match="sort 'name' is not allowed here"):
            await fetch_page(tenant, users, PageRequest(sort="name"))

    run_in_transaction(store_url, scenario)
