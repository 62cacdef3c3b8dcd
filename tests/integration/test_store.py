"""The store as an operator meets it: made, migrated, away, frozen, back; and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from penstock.errors import UnavailableError
from penstock.secret import Secret
from penstock.settings import Store
from penstock.store.database import Database
from tests.integration.conftest import initialise
from tests.integration.managed import ADMIN_KEY, Client, refused
from tests.integration.serving import running
from tests.integration.wire import CHAT, MOCK, ask, asked
from tests.postgres import Postgres
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock, Tables


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may hurt."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def tables(provider: Mock) -> Tables:
    return {"mock": {"host": provider.url}}


def key_of_an_app(admin: Client) -> str:
    (workspace,) = admin.shown("/v1/workspaces")["data"]
    body = {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
    key = admin.made("/v1/api-keys/workspace/service", body)["key"]
    wait("the key", lambda: chat(admin.gateway, key) == 200 or None, 3)
    return key


def chat(gateway: Gateway, key: str) -> int:
    return ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": key}).status


def test_who_leaves_while_waiting_for_a_connection_keeps_none(postgres: Postgres):
    settings = Store(connections=2)

    async def read(database: Database) -> None:
        async with database.reading() as connection:
            await connection.execute(text("select 1"))

    async def scene() -> None:
        database = Database(settings, Secret(postgres.database()))
        for turns in range(60):
            # Connections that are there already are given within few turns.
            await asyncio.gather(*(read(database) for _ in range(settings.connections)))
            leaving = [asyncio.create_task(read(database)) for _ in range(settings.connections)]
            # Each time somewhere else on the way: a turn of the loop is the smallest step there is.
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
        await database.close()

    asyncio.run(scene())


def test_without_a_store_management_says_so_and_nothing_reaches_a_provider(
    tmp_path: Path, tables: Tables, provider: Mock
):
    with running(tmp_path, tables) as gateway:
        for path in ("/v1/configs", "/v1/api-keys/x", "/v2/workspaces", "/v1/virtual-keys"):
            for method in ("GET", "POST", "PUT", "DELETE"):
                answer = ask(gateway.base_url, path, b"{}", MOCK, method=method)
                refused(answer, 404, "AB08", "penstock init")
    assert not provider.ledger()


def test_init_makes_a_store_beside_the_settings_and_prints_the_admin_key_once(tmp_path: Path, tables: Tables):
    (tmp_path / "penstock.toml").touch()
    said = initialise(tmp_path, {})
    key = said.strip().rpartition(" ")[2]
    assert "admin key" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"penstock.db", "penstock.key"}
    again = initialise(tmp_path, {})
    assert key not in again
    with running(tmp_path, tables) as gateway:
        admin = Client(gateway, key)
        assert chat(gateway, key_of_an_app(admin)) == 200
        assert "admin key" not in gateway.program.output()
    # What was acknowledged is there after a restart, and so is what the data plane needs.
    with running(tmp_path, tables) as gateway:
        assert Client(gateway, key).shown("/v1/api-keys")["total"] == 2


def test_a_first_start_with_an_embedded_store_prints_the_admin_key(tmp_path: Path, tables: Tables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/own.db"}
    with running(tmp_path, tables, env=env) as gateway:
        (line,) = [line for line in gateway.program.output().splitlines() if "admin key" in line]
        assert Client(gateway, line.rpartition(" ")[2]).shown("/v1/workspaces")["total"] == 1


def test_a_cluster_node_migrates_nothing_at_its_start(tmp_path: Path, tables: Tables, postgres: Postgres):
    env = {"PENSTOCK_STORE_URL": postgres.database(), "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "="}
    with running(tmp_path, tables, env=env) as gateway:
        refused(Client(gateway).get("/v1/configs"), 503, "AB04", "penstock migrate")
        command = [sys.executable, "-m", "penstock", "migrate"]
        migrated = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=tmp_path)
        assert "revision" in migrated.stdout
        initialise(tmp_path, {**env, "PENSTOCK_ADMIN_KEY": ADMIN_KEY})
        assert Client(gateway).shown("/v1/configs")["total"] == 0


def test_an_admin_key_that_could_be_guessed_is_refused(tmp_path: Path):
    command = [sys.executable, "-m", "penstock", "init"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={"PENSTOCK_ADMIN_KEY": "canary"}, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "store.admin_key" in done.stderr
    assert "canary" not in done.stderr


def test_with_the_database_frozen_or_gone_requests_go_on_and_writes_say_503(
    tmp_path: Path, tables: Tables, own_postgres: Postgres
):
    env = {"PENSTOCK_STORE_URL": own_postgres.database(), "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    initialise(tmp_path, env)
    with running(tmp_path, tables, env=env) as gateway:
        admin = Client(gateway)
        key = key_of_an_app(admin)
        own_postgres.freeze()
        time.sleep(1.1)
        for _ in range(3):
            started = time.monotonic()
            answer = admin.post("/v1/workspaces", {"name": "x"})
            assert time.monotonic() - started < 3
            refused(answer, 503, "AB04")
            assert answer.get("retry-after") == "1"
            assert chat(gateway, key) == 200
        own_postgres.thaw()
        wait("the database", lambda: admin.get("/v1/workspaces").status == 200 or None, 10)
        own_postgres.program.kill()
        with ThreadPoolExecutor(20) as many:
            answers = list(many.map(lambda _: admin.get("/v1/workspaces").status, range(40)))
        # The key may still be known for a moment; what it asks for is not.
        assert set(answers) == {503}
        assert chat(gateway, key) == 200
    started = time.monotonic()
    with running(tmp_path, tables, env=env) as gateway:
        assert time.monotonic() - started < 2
        assert chat(gateway, key) == 200
        assert chat(gateway, "nobody") == 401
        refused(Client(gateway).get("/v1/workspaces"), 503, "AB04")


def test_a_database_that_takes_no_writes_is_a_503_for_writes_alone(
    tmp_path: Path, tables: Tables, own_postgres: Postgres
):
    env = {"PENSTOCK_STORE_URL": own_postgres.database(), "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    initialise(tmp_path, env)
    with running(tmp_path, tables, env=env) as gateway:
        admin = Client(gateway)
        key = key_of_an_app(admin)
        own_postgres.set("default_transaction_read_only", "on")
        wait("the database to refuse", lambda: admin.post("/v1/workspaces", {"name": "x"}).status == 503 or None, 5)
        for method, path, body in (
            ("POST", "/v1/workspaces", {"name": "x"}),
            ("PUT", "/v1/admin/organisation/settings", {"block_inline_config": True}),
            ("POST", "/v1/auth/sessions", {"api_key": ADMIN_KEY}),
        ):
            answer = admin.ask(method, path, body)
            refused(answer, 503, "AB04")
            assert answer.get("retry-after") == "1"
        assert admin.get("/v1/workspaces").status == 200
        assert chat(gateway, key) == 200
        own_postgres.set("default_transaction_read_only", "off")
        wait("the database", lambda: admin.post("/v1/workspaces", {"name": "x"}).status == 200 or None, 5)


def test_with_the_embedded_database_spoilt_the_kept_snapshot_serves(tmp_path: Path, tables: Tables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with running(tmp_path, tables, env=env) as gateway:
        key = key_of_an_app(Client(gateway))
    for left in tmp_path.glob("penstock.db*"):
        left.unlink()
    (tmp_path / "penstock.db").mkdir()
    with running(tmp_path, tables, env=env) as gateway:
        assert chat(gateway, key) == 200
        refused(Client(gateway).get("/v1/workspaces"), 503, "AB04")
    shutil.rmtree(tmp_path / "penstock.db")


def test_keys_of_the_settings_file_go_on_beside_the_store(tmp_path: Path, tables: Tables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with running(tmp_path, {**tables, "keys": [{"name": "file", "key": "pk-file"}]}, env=env) as gateway:
        key = key_of_an_app(Client(gateway))
        assert (chat(gateway, "pk-file"), chat(gateway, key)) == (200, 200)
        refused(Client(gateway, "pk-file").get("/v1/configs"), 401, "AB05")
        gateway.configure({**tables, "keys": [{"name": "file", "key": "pk-new"}]})
        wait("the new key", lambda: chat(gateway, "pk-new") == 200 or None, 3)
        assert (chat(gateway, "pk-file"), chat(gateway, key)) == (401, 200)


def test_a_change_that_another_node_made_is_noticed(tmp_path: Path, tables: Tables, postgres: Postgres):
    env = {
        "PENSTOCK_STORE_URL": postgres.database(),
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "=",
    }
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    initialise(folders[0], env)
    with running(folders[0], tables, env=env) as one, running(folders[1], tables, env=env) as two:
        key = key_of_an_app(Client(one))
        wait("the key at the other node", lambda: chat(two, key) == 200 or None, 5)
        made = Client(two).shown("/v1/api-keys")["data"][0]
        assert Client(one).delete(f"/v1/api-keys/{made['id']}").status == 200
        wait("its end at the other node", lambda: chat(two, key) == 401 or None, 5)


def test_a_statement_that_takes_too_long_is_told_in_time(postgres: Postgres):
    async def scene() -> None:
        database = Database(Store(statement_ms=200), Secret(postgres.database()))
        started = time.monotonic()
        with pytest.raises(UnavailableError):
            async with database.reading() as connection:
                await connection.execute(text("SELECT pg_sleep(20)"))
        assert time.monotonic() - started < 5
        async with database.reading() as connection:
            assert (await connection.execute(text("SELECT 1"))).scalar() == 1
        await database.close()

    asyncio.run(scene())
