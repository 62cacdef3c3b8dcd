"""What may be wrong with a database, and what the caller is told of it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import delete, exc, insert, select, text

from penstock.errors import ConflictError, InvalidError, SettingsError, UnavailableError
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database, parse_url
from penstock.store.migrate import migrate
from penstock.store.tables import change_counter, organisations
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import QueuePool

    from tests.postgres import Postgres

ROW: dict[str, Any] = {"id": "1", "slug": "o", "name": "o", "settings": {}, "created_at": 1, "last_updated_at": 1}


async def write(database: Database, *rows: dict[str, object]) -> None:
    async with database.write_transaction() as connection:
        for row in rows:
            await connection.execute(insert(organisations).values(row))


async def find(database: Database, **values: object) -> None:
    async with database.read_connection() as connection:
        named = [organisations.c[name] == value for name, value in values.items()]
        await connection.execute(select(organisations).where(*named))


@pytest.mark.parametrize(
    ("url", "driver"),
    [("postgresql://a:b@h/d", "asyncpg"), ("postgres://a@h/d", "asyncpg"), ("sqlite:///x.db", "aiosqlite")],
)
def test_the_driver_is_one_that_does_not_block(url: str, driver: str):
    assert parse_url(Secret(url)).get_driver_name() == driver


@pytest.mark.parametrize("url", ["mysql://a:canary@h/d", "canary", "postgresql//canary"])
def test_another_address_is_refused_without_being_told(url: str):
    with pytest.raises(SettingsError, match=r"store\.url is not allowed") as raised:
        parse_url(Secret(url))
    assert "canary" not in str(raised.value)


def test_a_store_without_tables_says_what_to_do(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        with pytest.raises(UnavailableError, match="penstock migrate"):
            async with database.read_connection() as connection:
                await connection.execute(select(change_counter))
        await database.close()

    asyncio.run(scene())


def test_who_sent_a_value_that_does_not_fit_is_told_which(store_url: Secret):
    async def scene() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        for values, words in (
            ({"created_at": 2**63}, f"created_at must be between {-(2**63)} and {2**63 - 1}"),
            ({"name": "half \ud800"}, "name must be Unicode text"),
        ):
            with pytest.raises(InvalidError, match=re.escape(words)):
                await write(database, {**ROW, **values})
            with pytest.raises(InvalidError, match=re.escape(words)):
                await find(database, **values)
        # The connection goes on.
        await write(database, ROW)
        await database.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("values", "words"),
    [({"name": "x" * 256}, "name must be at most 255 characters long, not 256"), ({"slug": "a\0b"}, "slug must be")],
)
def test_postgresql_takes_no_text_that_is_too_long_or_holds_a_nul(
    postgres: Postgres, values: dict[str, object], words: str
):
    async def scene() -> None:
        database = Database(Store(), Secret(postgres.database()))
        await migrate(database)
        with pytest.raises(InvalidError, match=words):
            await write(database, {**ROW, **values})
        await database.close()

    asyncio.run(scene())


def test_a_mistake_of_ours_is_not_taken_for_a_store_that_is_away(store_url: Secret):
    async def wrong(database: Database, mistake: int) -> None:
        async with database.read_connection() as connection:
            found = await connection.execute(select(organisations))
            match mistake:
                case 0:
                    found.one()
                case 1:
                    _ = (await connection.execute(text("SELECT 1 AS one"))).mappings().one()["two"]
                case 2:
                    await connection.execute(select(organisations).where(organisations.c.settings == {"a": object()}))
                case 3:
                    await connection.execute(cast("Any", 3))
                case _:
                    await connection.close()
                    await connection.execute(select(organisations))

    async def scene() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        for mistake, kind in enumerate(
            (exc.NoResultFound, exc.NoSuchColumnError, exc.StatementError, exc.ArgumentError, exc.ResourceClosedError)
        ):
            with pytest.raises(kind):
                await wrong(database, mistake)
        # A statement that waits for a connection that broke is the store's matter.
        with pytest.raises(UnavailableError):
            async with database.read_connection():
                raise exc.PendingRollbackError("it broke")
        await database.close()

    asyncio.run(scene())


def test_a_change_is_kept_whole_or_not_at_all(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(acquire_ms=200), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        with pytest.raises(ConflictError, match="taken"):
            await write(database, ROW, ROW)
        async with database.read_connection() as connection:
            assert (await connection.execute(select(organisations))).all() == []
        async with database.write_transaction() as connection:
            await connection.execute(insert(organisations).values(ROW))
            # Who writes meanwhile is told in time, and who reads sees what was there before.
            async with database.read_connection() as other:
                assert (await other.execute(select(organisations))).all() == []
            with pytest.raises(UnavailableError):
                await write(database, {**ROW, "id": "2", "slug": "p"})
        await database.close()

    asyncio.run(scene())


def test_a_pool_that_is_used_up_is_told_in_time(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(connections=1, acquire_ms=100), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        async with database.read_connection():
            started = asyncio.get_running_loop().time()
            with pytest.raises(UnavailableError):
                async with database.read_connection():
                    pass
            assert asyncio.get_running_loop().time() - started < 1
        async with database.read_connection() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await database.close()

    asyncio.run(scene())


def test_who_is_in_the_way_of_others_is_told_so_and_not_that_the_store_is_away(postgres: Postgres):
    """Two that wait for each other, and one that waits too long for its turn."""
    url = Secret(postgres.database())
    query = "SELECT pg_advisory_xact_lock(:number)"

    async def scene() -> None:
        database = Database(Store(statement_ms=2500), url)
        holds = [asyncio.Event(), asyncio.Event()]

        async def lock(first: int, second: int) -> None:
            async with database.write_transaction() as connection:
                await connection.execute(text(query), {"number": first})
                holds[first].set()
                await holds[second].wait()
                await connection.execute(text(query), {"number": second})

        ends = await asyncio.gather(lock(0, 1), lock(1, 0), return_exceptions=True)
        (lost,) = [end for end in ends if end is not None]
        assert isinstance(lost, UnavailableError)
        assert "at this moment" in str(lost)
        await migrate(database)
        await write(database, ROW)
        async with database.write_transaction() as connection:
            await TenantStore(connection, ROW["id"], None).lock_organisation(database.turn_ms)
            with pytest.raises(UnavailableError, match="at this moment"):
                async with database.write_transaction() as other:
                    await TenantStore(other, ROW["id"], None).lock_organisation(database.turn_ms)
        await database.close()

    asyncio.run(scene())


async def _misread(database: Database) -> object:
    async with database.read_connection() as connection:
        row = (await connection.execute(text("select 1 as one"))).mappings().one()
        return row["two"]


def test_a_mistake_of_ours_is_not_laid_on_the_store(tmp_path: Path):
    async def scene() -> None:
        database = Database(Store(), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        with pytest.raises(KeyError):
            await _misread(database)
        await database.close()

    asyncio.run(scene())


async def backends(url: Secret) -> list[int]:
    """Which processes of the server serve this database, but for who asks."""
    other = Database(Store(), url)
    async with other.read_connection() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        found = [*(await connection.scalars(text(query)))]
    await other.close()
    return found


def test_who_reads_after_a_rest_is_given_a_connection_that_is_still_there(postgres: Postgres):
    url = Secret(postgres.database())

    async def scene() -> None:
        database, other = Database(Store(), url), Database(Store(), url)
        for rested in (0.0, 0.4):
            async with database.read_connection() as connection:
                pid = await connection.scalar(text("SELECT pg_backend_pid()"))
            await asyncio.sleep(rested)
            if rested:
                async with other.read_connection() as connection:
                    assert await connection.scalar(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
                await asyncio.sleep(0.1)
            async with database.read_connection() as connection:
                found = await connection.scalar(text("SELECT pg_backend_pid()"))
            # The first time it is the one that rested.
            assert (found == pid) == (not rested)
        await database.close()
        await other.close()

    asyncio.run(scene())


def test_who_writes_takes_the_connection_that_rests(store_url: Secret):
    async def scene() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        async with database.read_connection() as connection:
            await connection.execute(select(change_counter))
        await write(database, ROW)
        pool = cast("QueuePool", database._engine.pool)
        assert (pool.checkedin(), pool.checkedout()) == (1, 0)
        await database.close()

    asyncio.run(scene())


def test_no_connection_rests_while_somebody_waits_for_one(store_url: Secret):
    async def scene() -> None:
        database = Database(Store(connections=2, acquire_ms=10_000), store_url)
        await migrate(database)

        async def read(number: int) -> None:
            async with database.read_connection() as connection:
                await connection.execute(select(change_counter))
                await asyncio.sleep(0.01 * (number % 3))

        began = asyncio.get_running_loop().time()
        for _ in range(5):
            await asyncio.gather(*map(read, range(12)), _write_twice(database))
        assert asyncio.get_running_loop().time() - began < 8
        await database.close()

    asyncio.run(scene())


async def _write_twice(database: Database) -> None:
    await write(database, ROW)
    async with database.write_transaction() as connection:
        await connection.execute(delete(organisations))


def test_no_connection_is_left_behind(postgres: Postgres):
    url = Secret(postgres.database())

    async def scene() -> None:
        database = Database(Store(), url)

        async def read() -> None:
            async with database.read_connection() as connection:
                await connection.execute(text("SELECT pg_sleep(0.1)"))

        await asyncio.gather(*(read() for _ in range(4)))
        assert len(await backends(url)) == 4
        await database.close()
        for _ in range(400):
            if not await backends(url):
                break
            await asyncio.sleep(0.05)
        assert not await backends(url)

    asyncio.run(scene())
