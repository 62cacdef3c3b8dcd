"""Operation of the database: creation, migration, outage, freeze and recovery, and which requests still work meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert, select, text

from penstock.errors import StartupError, UnavailableError
from penstock.ids import new_id
from penstock.jobs.prepare import MigrationSealer
from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.secrets.references import SecretCache
from penstock.secrets.vault import MasterKeys, Vault
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.query import SnapshotReader
from penstock.store.database import Database
from penstock.store.migrate import MIGRATION_LOCK_ID, migrate, newest_revision
from penstock.store.revision import current_revision
from penstock.store.tables import audit_log, configs, versions, workspaces
from tests.fork_server import run_penstock
from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client, expect_error
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

    from tests.gateway import Gateway, Mock, SettingsTables
    from tests.postgres import Postgres


@pytest.fixture
def tables(provider: Mock) -> SettingsTables:
    return {"mock": {"host": provider.url}}


def create_app_key(admin: Client) -> str:
    (workspace,) = admin.read("/v1/workspaces")["data"]
    body = {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
    key = admin.create("/v1/api-keys/workspace/service", body)["key"]
    wait_for("the key", lambda: chat_status(admin.gateway, key) == 200 or None, 3)
    return key


def chat_status(gateway: Gateway, key: str) -> int:
    return send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": key}).status


def test_cancelled_wait_for_a_connection_leaks_none(postgres: Postgres):
    settings = Store(connections=2)

    async def run_query(database: Database) -> None:
        async with database.read_connection() as connection:
            await connection.execute(text("select 1"))

    async def run_scenario() -> None:
        database = Database(settings, Secret(postgres.create_database()))
        for turns in range(60):
            # An existing connection is handed out within a few iterations of the event loop.
            await asyncio.gather(*(run_query(database) for _ in range(settings.connections)))
            leaving = [asyncio.create_task(run_query(database)) for _ in range(settings.connections)]
            # Cancels at a different point each time; one iteration of the event loop is the smallest step.
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
        await database.close()

    asyncio.run(run_scenario())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migration_encrypts_plaintext_of_older_releases_reversibly(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
):
    url = f"sqlite:///{tmp_path}/old.db" if kind == "sqlite" else request.getfixturevalue("postgres").create_database()
    secret = "sk-canary-of-an-older-release"
    targets = [{"provider": "mock", "api_key": secret}, {"provider": "mock"}]
    config: dict[str, object] = {"strategy": {"mode": "fallback"}, "targets": targets}
    key = MasterKeys([bytes(32)])

    async def dump_rows(database: Database) -> str:
        async with database.read_connection() as connection:
            rows = [
                (await connection.execute(select(table))).mappings().all() for table in (configs, versions, audit_log)
            ]
        return repr([dict(row) for result in rows for row in result])

    async def run_scenario() -> None:
        database = Database(Store(), Secret(url))
        sealing = MigrationSealer.from_key(key)
        await migrate(database, sealing=sealing)
        await bootstrap_organisation(database, Secret(ADMIN_KEY))
        await migrate(database, "0005_change_log", sealing)
        async with database.write_transaction() as connection:
            await insert_plaintext_config(connection, config)
        await migrate(database, sealing=sealing)
        assert secret not in await dump_rows(database)
        if kind == "sqlite":
            assert secret.encode() not in (tmp_path / "old.db").read_bytes()
        async with database.read_connection() as connection:
            stored, _ = await SnapshotReader(Vault(key), SecretCache(Settings())).read_snapshot(connection)
        response = [row for chunk in stored.chunks.values() for row in json.loads(chunk.data).get("configs", ())]
        assert [row["config"] for row in response] == [config]
        await migrate(database, "0005_change_log", sealing)
        async with database.read_connection() as connection:
            (text_of_config,) = (await connection.scalars(text("select config from configs"))).all()
            (content,) = (await connection.scalars(text("select content from versions"))).all()
        assert json.loads(text_of_config) == config
        assert json.loads((json.loads(content) if isinstance(content, str) else content)["config"]) == config
        await database.close()

    asyncio.run(run_scenario())


async def insert_plaintext_config(connection: AsyncConnection, config: dict[str, object]) -> None:
    """Saves a config unencrypted, as the previous release did."""
    (workspace,) = (await connection.execute(select(workspaces.c.id, workspaces.c.organisation_id))).mappings()
    written = json.dumps(config)
    own = {"organisation_id": workspace["organisation_id"], "workspace_id": workspace["id"], "created_at": 1}
    names = {"slug": "pc", "name": "pc", "status": "active", "is_default": False}
    row = {**own, **names, "id": new_id(), "config": written, "version_id": new_id(), "last_updated_at": 1}
    await connection.execute(insert(configs).values(row))
    version = {"resource": "configs", "resource_id": row["id"], "number": 1, "content": {"config": written}}
    await connection.execute(insert(versions).values({"id": row["version_id"], **own, **version}))
    empty = dict.fromkeys(("user_type", "method", "uri", "query_params", "request_id", "client_ip"), "")
    noted = {"resource_type": "configs", "action": "create", "response_status_code": 200, "before": None, "after": row}
    await connection.execute(insert(audit_log).values({"id": new_id(), **own, **empty, **noted}))


def test_management_without_a_database_returns_404_with_a_hint(tmp_path: Path, tables: SettingsTables, provider: Mock):
    with run_gateway(tmp_path, tables) as gateway:
        for path in ("/v1/configs", "/v1/api-keys/x", "/v2/workspaces", "/v1/virtual-keys"):
            for method in ("GET", "POST", "PUT", "DELETE"):
                response = send_raw_request(gateway.base_url, path, b"{}", MOCK_HEADERS, method=method)
                expect_error(response, 404, "AB08", "penstock init")
    assert not provider.ledger()


def test_migration_ignores_statement_timeout_and_waits_for_the_lock(postgres: Postgres):
    url, key = Secret(postgres.create_database()), MasterKeys([bytes(32)])

    class SlowSealer(MigrationSealer):
        async def seal(self, connection: AsyncConnection, config: str, owner: str) -> tuple[str, str | None]:
            await connection.execute(text("select pg_sleep(0.4)"))
            return await super().seal(connection, config, owner)

    async def hold_migration_lock(database: Database, buffered: asyncio.Event) -> None:
        async with database.write_transaction() as connection:
            await connection.execute(text(f"select pg_advisory_xact_lock({MIGRATION_LOCK_ID})"))
            buffered.set()
            await asyncio.sleep(0.5)

    async def run_scenario() -> None:
        slow_database, fast_database = Database(Store(), url), Database(Store(statement_ms=100), url)
        await migrate(slow_database)
        await bootstrap_organisation(slow_database, Secret(ADMIN_KEY))
        await migrate(slow_database, "0005_change_log", MigrationSealer.from_key(key))
        async with slow_database.write_transaction() as connection:
            await insert_plaintext_config(connection, {"provider": "mock"})
        buffered = asyncio.Event()
        other = asyncio.create_task(hold_migration_lock(slow_database, buffered))
        await buffered.wait()
        assert await migrate(fast_database, sealing=SlowSealer.from_key(key)) == ("0005_change_log", newest_revision())
        assert other.done()
        await other
        # The statement timeout still applies to everything else.
        with pytest.raises(UnavailableError):
            async with fast_database.read_connection() as connection:
                await connection.execute(text("select pg_sleep(0.4)"))
        await slow_database.close()
        await fast_database.close()

    asyncio.run(run_scenario())


def test_failed_migration_reports_the_error_and_changes_nothing(postgres: Postgres):
    url = Secret(postgres.create_database())

    async def run_scenario() -> None:
        database = Database(Store(), url)
        await migrate(database)
        await migrate(database, "0004_files_and_batches")
        async with database.write_transaction() as connection:
            await connection.execute(text("create table changed (x int)"))
        with pytest.raises(StartupError, match=r"cannot be migrated, and is as it was: .*changed"):
            await migrate(database)
        assert await current_revision(database) == "0004_files_and_batches"
        async with database.write_transaction() as connection:
            await connection.execute(text("update alembic_version set version_num = '9999_later'"))
        with pytest.raises(StartupError, match="newer release"):
            await migrate(database)
        await database.close()

    asyncio.run(run_scenario())


def test_init_creates_a_database_and_prints_the_admin_key_once(tmp_path: Path, tables: SettingsTables):
    (tmp_path / "penstock.toml").touch()
    content = run_init(tmp_path, {})
    key = content.strip().rpartition(" ")[2]
    assert "admin key" in content
    assert {path.name for path in tmp_path.iterdir()} >= {"penstock.db", "penstock.key"}
    again = run_init(tmp_path, {})
    assert key not in again
    with run_gateway(tmp_path, tables) as gateway:
        admin = Client(gateway, key)
        assert chat_status(gateway, create_app_key(admin)) == 200
        assert "admin key" not in gateway.program.read_output()
    # Acknowledged changes survive a restart, and so does the data that the data plane needs.
    with run_gateway(tmp_path, tables) as gateway:
        assert Client(gateway, key).read("/v1/api-keys")["total"] == 2


def test_first_start_with_an_embedded_database_prints_the_admin_key(tmp_path: Path, tables: SettingsTables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/own.db"}
    with run_gateway(tmp_path, tables, env=env) as gateway:
        (line,) = [line for line in gateway.program.read_output().splitlines() if "admin key" in line]
        assert Client(gateway, line.rpartition(" ")[2]).read("/v1/workspaces")["total"] == 1


def test_missing_database_is_named_as_the_problem(tmp_path: Path, postgres: Postgres):
    url = re.sub(r"/penstock\d+\b", "/nowhere", postgres.create_database())
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "="}
    failed = run_penstock("migrate", env=env, cwd=tmp_path)
    assert failed.returncode == 1
    assert "the database of store.url does not exist; hint: create it with createdb" in failed.stdout + failed.stderr


def test_cluster_node_does_not_migrate_at_startup(tmp_path: Path, tables: SettingsTables, postgres: Postgres):
    env = {"PENSTOCK_STORE_URL": postgres.create_database(), "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "="}
    with run_gateway(tmp_path, tables, env=env) as gateway:
        expect_error(Client(gateway).get("/v1/configs"), 503, "AB04", "penstock migrate")
        migrated = run_penstock("migrate", env=env, cwd=tmp_path)
        assert (migrated.returncode, "revision" in migrated.stdout) == (0, True), migrated
        run_init(tmp_path, {**env, "PENSTOCK_ADMIN_KEY": ADMIN_KEY})
        assert Client(gateway).read("/v1/configs")["total"] == 0


def test_rejects_a_guessable_admin_key(tmp_path: Path):
    done = run_penstock("init", env={"PENSTOCK_ADMIN_KEY": "canary"}, cwd=tmp_path)
    assert done.returncode == 1
    assert "store.admin_key" in done.stderr
    assert "canary" not in done.stderr


def test_serves_requests_and_returns_503_for_writes_without_database(
    tmp_path: Path, tables: SettingsTables, own_postgres: Postgres
):
    env = {"PENSTOCK_STORE_URL": own_postgres.create_database(), "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    run_init(tmp_path, env)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        admin = Client(gateway)
        key = create_app_key(admin)
        own_postgres.suspend()
        time.sleep(1.1)
        for _ in range(3):
            response = admin.post("/v1/workspaces", {"name": "x"})
            expect_error(response, 503, "AB04")
            assert response.get_header("retry-after") == "1"
            assert chat_status(gateway, key) == 200
        own_postgres.resume()
        wait_for("the database", lambda: admin.get("/v1/workspaces").status == 200 or None, 10)
        own_postgres.program.kill()
        with ThreadPoolExecutor(20) as many:
            responses = list(many.map(lambda _: admin.get("/v1/workspaces").status, range(40)))
        # The key may stay cached for a moment, but the requested rows are not.
        assert set(responses) == {503}
        assert chat_status(gateway, key) == 200
    with run_gateway(tmp_path, tables, env=env) as gateway:
        assert chat_status(gateway, key) == 200
        assert chat_status(gateway, "nobody") == 401
        expect_error(Client(gateway).get("/v1/workspaces"), 503, "AB04")


def test_read_only_database_gives_503_for_writes_only(tmp_path: Path, tables: SettingsTables, own_postgres: Postgres):
    env = {"PENSTOCK_STORE_URL": own_postgres.create_database(), "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    run_init(tmp_path, env)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        admin = Client(gateway)
        key = create_app_key(admin)
        own_postgres.set_option("default_transaction_read_only", "on")
        wait_for("the database to refuse", lambda: admin.post("/v1/workspaces", {"name": "x"}).status == 503 or None, 5)
        for method, path, body in (
            ("POST", "/v1/workspaces", {"name": "x"}),
            ("PUT", "/v1/admin/organisation/settings", {"block_inline_config": True}),
            ("POST", "/v1/auth/sessions", {"api_key": ADMIN_KEY}),
        ):
            response = admin.send(method, path, body)
            expect_error(response, 503, "AB04")
            assert response.get_header("retry-after") == "1"
        assert admin.get("/v1/workspaces").status == 200
        assert chat_status(gateway, key) == 200
        own_postgres.set_option("default_transaction_read_only", "off")
        wait_for("the database", lambda: admin.post("/v1/workspaces", {"name": "x"}).status == 200 or None, 5)


def test_serves_from_the_stored_snapshot_if_the_database_is_broken(tmp_path: Path, tables: SettingsTables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with run_gateway(tmp_path, tables, env=env) as gateway:
        key = create_app_key(Client(gateway))
    for remaining in tmp_path.glob("penstock.db*"):
        remaining.unlink()
    (tmp_path / "penstock.db").mkdir()
    with run_gateway(tmp_path, tables, env=env) as gateway:
        assert chat_status(gateway, key) == 200
        expect_error(Client(gateway).get("/v1/workspaces"), 503, "AB04")
    shutil.rmtree(tmp_path / "penstock.db")


def test_keys_of_the_settings_file_work_alongside_the_database(tmp_path: Path, tables: SettingsTables):
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with run_gateway(tmp_path, {**tables, "keys": [{"name": "file", "key": "pk-of-file"}]}, env=env) as gateway:
        key = create_app_key(Client(gateway))
        assert (chat_status(gateway, "pk-of-file"), chat_status(gateway, key)) == (200, 200)
        expect_error(Client(gateway, "pk-of-file").get("/v1/configs"), 401, "AB05")
        gateway.configure({**tables, "keys": [{"name": "file", "key": "pk-of-new"}]})
        wait_for("the new key", lambda: chat_status(gateway, "pk-of-new") == 200 or None, 3)
        assert (chat_status(gateway, "pk-of-file"), chat_status(gateway, key)) == (401, 200)


def test_applies_a_change_made_on_another_node(tmp_path: Path, tables: SettingsTables, postgres: Postgres):
    env = {
        "PENSTOCK_STORE_URL": postgres.create_database(),
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "=",
    }
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    run_init(folders[0], env)
    with run_gateway(folders[0], tables, env=env) as first, run_gateway(folders[1], tables, env=env) as second:
        key = create_app_key(Client(first))
        wait_for("the key at the other node", lambda: chat_status(second, key) == 200 or None, 5)
        created = Client(second).read("/v1/api-keys")["data"][0]
        assert Client(first).delete(f"/v1/api-keys/{created['id']}").status == 200
        wait_for("its end at the other node", lambda: chat_status(second, key) == 401 or None, 5)


def test_slow_statement_fails_at_its_timeout(postgres: Postgres):
    async def run_scenario() -> None:
        database = Database(Store(statement_ms=200), Secret(postgres.create_database()))
        # Without the timeout, the statement would succeed.
        with pytest.raises(UnavailableError):
            async with database.read_connection() as connection:
                await connection.execute(text("SELECT pg_sleep(20)"))
        async with database.read_connection() as connection:
            assert (await connection.execute(text("SELECT 1"))).scalar() == 1
        await database.close()

    asyncio.run(run_scenario())
