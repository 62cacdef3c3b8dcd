"""Database errors and connection pooling, and what each error tells the caller."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
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
from tests.bootstrapped_store import PATIENT_STORE

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import QueuePool

    from tests.postgres import Postgres

ORGANISATION_ROW: dict[str, Any] = {
    "id": "1",
    "slug": "o",
    "name": "o",
    "settings": {},
    "created_at": 1,
    "last_updated_at": 1,
}


async def insert_organisations(database: Database, *rows: dict[str, object]) -> None:
    async with database.write_transaction() as connection:
        for row in rows:
            await connection.execute(insert(organisations).values(row))


def open_impatient(tmp_path: Path) -> Database:
    """Returns an embedded database that waits for a lock for 20 ms only."""
    url = Secret(f"sqlite:///{tmp_path}/s.db")
    return Database(Store(url=url, acquire_ms=20), url)


def test_a_burst_of_changes_is_saved_one_after_the_other(tmp_path: Path):
    async def scenario() -> None:
        database = open_impatient(tmp_path)
        await migrate(database)

        async def change(number: int) -> None:
            row = {**ORGANISATION_ROW, "id": str(number), "slug": f"o{number}"}
            async with database.write_transaction() as connection:
                await connection.execute(insert(organisations).values(row))
                await asyncio.sleep(0.001)
            await select_organisations(database, id=str(number))

        await asyncio.gather(*(change(number) for number in range(205)))
        async with database.read_connection() as connection:
            assert len((await connection.execute(select(organisations.c.id))).all()) == 205
        await database.close()

    asyncio.run(scenario())


def test_waiting_changes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.store.database.MAX_WAITING_WRITERS", 2)
    monkeypatch.setattr("penstock.store.database.MAX_WRITE_WAIT_SECONDS", 0.05)

    async def scenario() -> None:
        database = open_impatient(tmp_path)
        await migrate(database)
        end = asyncio.Event()

        async def change() -> None:
            async with database.write_transaction():
                await end.wait()

        running = [asyncio.create_task(change()) for _ in range(4)]
        _, *waiting, refused = running
        with pytest.raises(UnavailableError, match="2 other changes are waiting to be saved; nothing was changed"):
            await refused
        for task in waiting:
            with pytest.raises(UnavailableError, match=r"other changes needed more than 0\.05 s to be saved"):
                await task
        end.set()
        await running[0]
        # A change that fails or is cancelled gives up its turn.
        cancelled = asyncio.create_task(change())
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await change()
        await database.close()

    asyncio.run(scenario())


async def select_organisations(database: Database, **values: object) -> None:
    async with database.read_connection() as connection:
        names = [organisations.c[name] == value for name, value in values.items()]
        await connection.execute(select(organisations).where(*names))


@pytest.mark.parametrize(
    ("url", "driver"),
    [("postgresql://a:b@h/d", "asyncpg"), ("postgres://a@h/d", "asyncpg"), ("sqlite:///x.db", "aiosqlite")],
)
def test_uses_an_async_driver(url: str, driver: str):
    assert parse_url(Secret(url)).get_driver_name() == driver


@pytest.mark.parametrize("url", ["mysql://a:canary@h/d", "canary", "postgresql//canary"])
def test_rejects_other_urls_without_printing_them(url: str):
    with pytest.raises(SettingsError, match=r"store\.url is not allowed") as raised:
        parse_url(Secret(url))
    assert "canary" not in str(raised.value)


def test_store_without_tables_suggests_penstock_migrate(tmp_path: Path):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, Secret(f"sqlite:///{tmp_path}/penstock.db"))
        with pytest.raises(UnavailableError, match="penstock migrate"):
            async with database.read_connection() as connection:
                await connection.execute(select(change_counter))
        await database.close()

    asyncio.run(scenario())


def test_invalid_value_is_reported_with_its_column(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        for values, words in (
            ({"created_at": 2**63}, f"created_at must be between {-(2**63)} and {2**63 - 1}"),
            ({"name": "half \ud800"}, "name must be Unicode text"),
        ):
            with pytest.raises(InvalidError, match=re.escape(words)):
                await insert_organisations(database, {**ORGANISATION_ROW, **values})
            with pytest.raises(InvalidError, match=re.escape(words)):
                await select_organisations(database, **values)
        # The connection stays usable.
        await insert_organisations(database, ORGANISATION_ROW)
        await database.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("values", "words"),
    [({"name": "x" * 256}, "name must be at most 255 characters long, not 256"), ({"slug": "a\0b"}, "slug must be")],
)
def test_postgresql_rejects_long_text_and_nul(postgres: Postgres, values: dict[str, object], words: str):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, Secret(postgres.create_database()))
        await migrate(database)
        with pytest.raises(InvalidError, match=words):
            await insert_organisations(database, {**ORGANISATION_ROW, **values})
        await database.close()

    asyncio.run(scenario())


def test_programming_errors_are_not_reported_as_an_outage(store_url: Secret):
    async def run_faulty_query(database: Database, mistake: int) -> None:
        async with database.read_connection() as connection:
            rows = await connection.execute(select(organisations))
            match mistake:
                case 0:
                    rows.one()
                case 1:
                    _ = (await connection.execute(text("SELECT 1 AS one"))).mappings().one()["two"]
                case 2:
                    await connection.execute(select(organisations).where(organisations.c.settings == {"a": object()}))
                case 3:
                    await connection.execute(cast("Any", 3))
                case _:
                    await connection.close()
                    await connection.execute(select(organisations))

    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        for mistake, kind in enumerate(
            (exc.NoResultFound, exc.NoSuchColumnError, exc.StatementError, exc.ArgumentError, exc.ResourceClosedError)
        ):
            with pytest.raises(kind):
                await run_faulty_query(database, mistake)
        # A pending rollback after a broken connection is an outage of the store.
        with pytest.raises(UnavailableError):
            async with database.read_connection():
                raise exc.PendingRollbackError("it broke")
        await database.close()

    asyncio.run(scenario())


def test_transaction_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.store.database.MAX_WRITE_WAIT_SECONDS", 0.2)

    async def scenario() -> None:
        database = Database(Store(acquire_ms=200), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        await migrate(database)
        with pytest.raises(ConflictError, match="taken"):
            await insert_organisations(database, ORGANISATION_ROW, ORGANISATION_ROW)
        async with database.read_connection() as connection:
            assert (await connection.execute(select(organisations))).all() == []
        async with database.write_transaction() as connection:
            await connection.execute(insert(organisations).values(ORGANISATION_ROW))
            # A concurrent write fails in time, and a concurrent read sees the previous state.
            async with database.read_connection() as other:
                assert (await other.execute(select(organisations))).all() == []
            with pytest.raises(UnavailableError):
                await insert_organisations(database, {**ORGANISATION_ROW, "id": "2", "slug": "p"})
        await database.close()

    asyncio.run(scenario())


def test_exhausted_pool_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.store.database.MAX_WRITE_WAIT_SECONDS", 0.2)

    async def scenario() -> None:
        database = Database(Store(connections=1, acquire_ms=100), Secret(f"sqlite:///{tmp_path}/penstock.db"))
        async with database.read_connection():
            with pytest.raises(UnavailableError):
                async with database.read_connection():
                    pass
        async with database.read_connection() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await database.close()

    asyncio.run(scenario())


def test_lock_conflicts_are_not_reported_as_an_outage(postgres: Postgres):
    """Covers a deadlock of two transactions, and one transaction that waits too long for a lock."""
    url = Secret(postgres.create_database())
    query = "SELECT pg_advisory_xact_lock(:number)"

    async def scenario() -> None:
        database = Database(Store(statement_ms=2500), url)
        holds = [asyncio.Event(), asyncio.Event()]

        async def lock_both(first: int, second: int) -> None:
            async with database.write_transaction() as connection:
                await connection.execute(text(query), {"number": first})
                holds[first].set()
                await holds[second].wait()
                await connection.execute(text(query), {"number": second})

        ends = await asyncio.gather(lock_both(0, 1), lock_both(1, 0), return_exceptions=True)
        (lost,) = [end for end in ends if end is not None]
        assert isinstance(lost, UnavailableError)
        assert "another request is changing the same data" in str(lost)
        await migrate(database)
        await insert_organisations(database, ORGANISATION_ROW)
        async with database.write_transaction() as connection:
            await TenantStore(connection, ORGANISATION_ROW["id"], None).lock_organisation(database.turn_ms)
            with pytest.raises(UnavailableError, match="another request is changing the same data"):
                async with database.write_transaction() as other:
                    await TenantStore(other, ORGANISATION_ROW["id"], None).lock_organisation(database.turn_ms)
        await database.close()

    asyncio.run(scenario())


async def _read_unknown_column(database: Database) -> object:
    async with database.read_connection() as connection:
        row = (await connection.execute(text("select 1 as one"))).mappings().one()
        return row["two"]


def test_unknown_column_is_not_reported_as_an_outage(tmp_path: Path):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, Secret(f"sqlite:///{tmp_path}/penstock.db"))
        with pytest.raises(KeyError):
            await _read_unknown_column(database)
        await database.close()

    asyncio.run(scenario())


async def backend_pids(url: Secret) -> list[int]:
    """Returns the PIDs of the server processes that serve this database, without the one of this query."""
    other = Database(PATIENT_STORE, url)
    async with other.read_connection() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        rows = [*(await connection.scalars(text(query)))]
    await other.close()
    return rows


def test_terminated_idle_connection_is_replaced_on_read(postgres: Postgres):
    url = Secret(postgres.create_database())

    async def scenario() -> None:
        database, other = Database(PATIENT_STORE, url), Database(PATIENT_STORE, url)
        for rested in (0.0, 0.4):
            async with database.read_connection() as connection:
                pid = await connection.scalar(text("SELECT pg_backend_pid()"))
            await asyncio.sleep(rested)
            if rested:
                async with other.read_connection() as connection:
                    assert await connection.scalar(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
                await asyncio.sleep(0.1)
            async with database.read_connection() as connection:
                row = await connection.scalar(text("SELECT pg_backend_pid()"))
            # The first round reuses the idle connection; in the second round the server has terminated it.
            assert (row == pid) == (not rested)
        await database.close()
        await other.close()

    asyncio.run(scenario())


def test_write_reuses_the_idle_connection(store_url: Secret):
    async def scenario() -> None:
        database = Database(PATIENT_STORE, store_url)
        await migrate(database)
        async with database.read_connection() as connection:
            await connection.execute(select(change_counter))
        await insert_organisations(database, ORGANISATION_ROW)
        pool = cast("QueuePool", database._engine.pool)
        assert (pool.checkedin(), pool.checkedout()) == (1, 0)
        await database.close()

    asyncio.run(scenario())


def test_waiting_task_gets_the_next_free_connection(store_url: Secret):
    async def scenario() -> None:
        database = Database(Store(connections=2, acquire_ms=10_000), store_url)
        await migrate(database)

        async def run_read(number: int) -> None:
            async with database.read_connection() as connection:
                await connection.execute(select(change_counter))
                await asyncio.sleep(0.01 * (number % 3))

        # A task that missed the free connection would fail with `UnavailableError`.
        for _ in range(5):
            await asyncio.gather(*map(run_read, range(12)), _insert_and_delete(database))
        await database.close()

    asyncio.run(scenario())


async def _insert_and_delete(database: Database) -> None:
    await insert_organisations(database, ORGANISATION_ROW)
    async with database.write_transaction() as connection:
        await connection.execute(delete(organisations))


def test_close_leaves_no_connection_open(postgres: Postgres):
    url = Secret(postgres.create_database())

    async def scenario() -> None:
        database = Database(PATIENT_STORE, url)

        async def run_slow_read() -> None:
            async with database.read_connection() as connection:
                await connection.execute(text("SELECT pg_sleep(0.1)"))

        await asyncio.gather(*(run_slow_read() for _ in range(4)))
        assert len(await backend_pids(url)) == 4
        await database.close()
        for _ in range(400):
            if not await backend_pids(url):
                break
            await asyncio.sleep(0.05)
        assert not await backend_pids(url)

    asyncio.run(scenario())


def test_engine_is_opened_without_the_orm():
    code = (
        "import sys, penstock.store.database, penstock.store.migrate; "
        "assert 'sqlalchemy.orm' not in sys.modules and 'alembic' not in sys.modules; "
        "from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine; "
        "from penstock.store import async_engine; "
        "assert AsyncSession and create_async_engine is async_engine.create_async_engine"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
