"""What may be wrong with a database, and what the caller is told of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert, select, text

from penstock.errors import ConflictError, SettingsError, UnavailableError
from penstock.secret import Secret
from penstock.settings import Store
from penstock.store.database import Database, parse
from penstock.store.migrate import migrate
from penstock.store.tables import changes, organisations

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"id": "1", "slug": "o", "name": "o", "settings": {}, "created_at": 1, "last_updated_at": 1}


async def write(database: Database, *rows: dict[str, object]) -> None:
    async with database.writing() as connection:
        for row in rows:
            await connection.execute(insert(organisations).values(row))


@pytest.mark.parametrize(
    ("url", "driver"),
    [("postgresql://a:b@h/d", "asyncpg"), ("postgres://a@h/d", "asyncpg"), ("sqlite:///x.db", "aiosqlite")],
)
def test_the_driver_is_one_that_does_not_block(url: str, driver: str):
    assert parse(Secret(url)).get_driver_name() == driver


@pytest.mark.parametrize("url", ["mysql://a:canary@h/d", "canary", "postgresql//canary"])
def test_another_address_is_refused_without_being_told(url: str):
    with pytest.raises(SettingsError, match=r"store\.url is not allowed") as raised:
        parse(Secret(url))
    assert "canary" not in str(raised.value)


def test_a_store_without_tables_says_what_to_do(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        with pytest.raises(UnavailableError, match="penstock migrate"):
            async with database.reading() as connection:
                await connection.execute(select(changes))
        await database.close()

    asyncio.run(scene())


def test_a_change_is_kept_whole_or_not_at_all(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(acquire_ms=200), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        with pytest.raises(ConflictError, match="taken"):
            await write(database, ROW, ROW)
        async with database.reading() as connection:
            assert (await connection.execute(select(organisations))).all() == []
        async with database.writing() as connection:
            await connection.execute(insert(organisations).values(ROW))
            # Who writes meanwhile is told in time, and who reads sees what was there before.
            async with database.reading() as other:
                assert (await other.execute(select(organisations))).all() == []
            with pytest.raises(UnavailableError):
                await write(database, {**ROW, "id": "2", "slug": "p"})
        await database.close()

    asyncio.run(scene())


def test_a_pool_that_is_used_up_is_told_in_time(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(connections=1, acquire_ms=100), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        async with database.reading():
            started = asyncio.get_running_loop().time()
            with pytest.raises(UnavailableError):
                async with database.reading():
                    pass
            assert asyncio.get_running_loop().time() - started < 1
        async with database.reading() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await database.close()

    asyncio.run(scene())
