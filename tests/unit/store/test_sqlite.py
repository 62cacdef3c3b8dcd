"""Transactions of the embedded database: what concurrent, failed and cancelled ones leave behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert, select, text

from penstock.errors import UnavailableError
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import organisations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ORGANISATION_ROW = {"id": "1", "slug": "o", "name": "o", "settings": {}, "created_at": 1, "last_updated_at": 1}
SLOW_QUERY = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :most) SELECT count(*) FROM n"
)


def run_scenario(folder: Path, work: Callable[[Database], Awaitable[None]], connections: int = 1) -> None:
    async def run() -> None:
        database = Database(Store(connections=connections, acquire_ms=200), Secret(f"sqlite:///{folder}/penstock.db"))
        await migrate(database)
        async with database.write_transaction() as connection:
            await connection.execute(insert(organisations).values(ORGANISATION_ROW))
        await work(database)
        await database.close()

    asyncio.run(run())


def test_long_read_does_not_block_the_event_loop(tmp_path: Path):
    async def scenario(database: Database) -> None:
        ticks = 0

        async def count_ticks() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(count_ticks())
        async with database.read_connection() as connection:
            assert await connection.scalar(SLOW_QUERY, {"most": 1_000_000}) == 1_000_000
            assert ticks > 10
        ticking.cancel()

    run_scenario(tmp_path, scenario)


def test_cancelled_read_leaves_the_connection_usable(tmp_path: Path):
    async def scenario(database: Database) -> None:
        async def run_slow_read() -> None:
            async with database.read_connection() as connection:
                await connection.scalar(SLOW_QUERY, {"most": 300_000})

        for _ in range(4):
            reading = asyncio.create_task(run_slow_read())
            await asyncio.sleep(0.01)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            # The pool has only one connection.
            async with asyncio.timeout(5), database.read_connection() as connection:
                assert (await connection.execute(select(organisations.c.id))).scalars().all() == ["1"]
            async with database.write_transaction() as connection:
                await connection.execute(organisations.update().values(name="p"))

    run_scenario(tmp_path, scenario)


def test_reads_of_a_transaction_see_one_state(tmp_path: Path):
    async def scenario(database: Database) -> None:
        async with database.read_connection() as connection:
            assert await connection.scalar(select(organisations.c.name)) == "o"
            async with database.write_transaction() as other:
                await other.execute(organisations.update().values(name="p"))
            assert await connection.scalar(select(organisations.c.name)) == "o"
        async with database.read_connection() as connection:
            assert await connection.scalar(select(organisations.c.name)) == "p"

    run_scenario(tmp_path, scenario, connections=2)


def test_failed_write_is_rolled_back(tmp_path: Path):
    async def scenario(database: Database) -> None:
        async def write_and_fail() -> None:
            async with database.write_transaction() as connection:
                await connection.execute(organisations.update().values(name="p"))
                await connection.execute(text("SELECT no_such_function()"))

        with pytest.raises(UnavailableError):
            await write_and_fail()
        async with database.read_connection() as connection:
            assert await connection.scalar(select(organisations.c.name)) == "o"

    run_scenario(tmp_path, scenario)


def test_cancelled_write_is_rolled_back(tmp_path: Path):
    async def scenario(database: Database) -> None:
        async def write_and_wait() -> None:
            async with database.write_transaction() as connection:
                await connection.execute(organisations.update().values(name="p"))
                await asyncio.sleep(60)

        writing = asyncio.create_task(write_and_wait())
        await asyncio.sleep(0.05)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        async with database.read_connection() as connection:
            assert await connection.scalar(select(organisations.c.name)) == "o"

    run_scenario(tmp_path, scenario)
