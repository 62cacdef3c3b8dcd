"""Incremental snapshot publishing. After a change only the affected parts are queried again, and the published snapshot
equals the database.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import event, select, update
from sqlalchemy import text as sql

from penstock.app import create_app
from penstock.jobs.prepare import _prepare_for_start
from penstock.jobs.rotate import KeyRotator
from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.secrets.references import SecretCache
from penstock.secrets.vault import Vault, load_master_keys
from penstock.settings import Settings
from penstock.settings.secret import Secret
from penstock.snapshot.build import EMPTY_STORE_DATA, Snapshot, SnapshotChannel, StoreData, build_valid_snapshot
from penstock.snapshot.publisher import FULL_READ_BATCHES, SavedSnapshot, SnapshotPublisher
from penstock.snapshot.query import SnapshotReader
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import configs, integration_models, integrations
from tests.bootstrapped_store import PATIENT_STORE
from tests.integration.management_client import ADMIN_KEY
from tests.unit.asgi import Response, run_lifespan, send_request

if TYPE_CHECKING:
    from pathlib import Path

    from litestar import Litestar

    from tests.postgres import Postgres

WRITE_COUNT = 30


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/penstock.db"
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create_database()
    key = base64.b64encode(bytes(32)).decode()
    # Long timeouts, because the machine may be busy.
    store = msgspec.structs.replace(PATIENT_STORE, url=Secret(url), master_key=Secret(key))
    return Settings(store=store)


# Large tables, and how the queries of their rows begin. The limits in them are queried separately.
LARGE_TABLES = {"api_keys": "api_keys JOIN key_digests", "configs": "configs"}


class ManagementPlane:
    """A management plane without its server, plus a second publisher that runs only when the test calls it."""

    def __init__(self, app: Litestar, settings: Settings, before: StoreData = EMPTY_STORE_DATA) -> None:
        self._app = app
        self._database = Database(settings.store, settings.store.url or Secret(""))
        key = load_master_keys(settings)
        self._parts = Vault(key), SecretCache(settings)
        self.published = SnapshotChannel(Snapshot())
        self.published.stored = before
        # The application has a publisher too, which saves its snapshots; this publisher saves to another folder.
        separate_settings = msgspec.structs.replace(settings, file=f"{tempfile.mkdtemp(dir='.')}/penstock.toml")
        self.kept = SavedSnapshot(separate_settings, key)
        self._publisher = SnapshotPublisher(settings, self.published, self._database, *self._parts, self.kept, None)
        self.executed_statements: list[str] = []
        event.listen(self._database._engine.sync_engine, "before_cursor_execute", self._record_statement)

    def _record_statement(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        self.executed_statements.append(statement)

    async def send_request(self, method: str, path: str, body: object = None) -> Any:
        fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
        response = await send_request(
            self._app, method, path, json.dumps(body).encode() if body is not None else b"", fields
        )
        assert response.status == 200, response.body
        return response.json()

    async def publish(self) -> list[str]:
        """Publishes, and returns the names of the large tables that were queried for it."""
        self.executed_statements.clear()
        await self._publisher.publish_changes()
        return [
            table
            for table, source in LARGE_TABLES.items()
            if any(f"FROM {source}" in request for request in self.executed_statements)
        ]

    async def gather_all(self) -> StoreData:
        """Queries everything, as a node without a snapshot does."""
        async with self._database.read_connection() as connection:
            stored, _ = await SnapshotReader(*self._parts).read_snapshot(connection)
        return stored

    async def close(self) -> None:
        await self._database.close()


def snapshot_rows(stored: StoreData) -> dict[str, list[Any]]:
    """Returns all rows of a snapshot by table, whichever chunk they are in."""
    tables = {
        name: json.loads(b"[%s]" % getattr(stored, name)) for name in ("providers", "models", "workspaces", "departed")
    }
    parts = [json.loads(chunk.data) for chunk in stored.chunks.values()]
    tables |= {name: [row for part in parts for row in part.get(name, [])] for name in ("keys", "configs")}
    return {name: sorted(listed, key=json.dumps) for name, listed in tables.items()}


def test_dead_worker_delays_one_response_but_not_its_retry(settings: Settings):
    """A retry with the same Idempotency-Key gets the response while the first request is still held back."""
    # Long enough for the other steps on a busy machine with a slow disk. A publisher whose database does not respond
    # delays no request.
    with_long_timeouts = msgspec.structs.replace(
        settings.store, publish_wait_ms=6000, acquire_ms=10_000, statement_ms=20_000
    )
    settings = msgspec.structs.replace(settings, store=with_long_timeouts)
    published = SnapshotChannel(Snapshot())
    fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}

    async def create_config(app: Litestar, name: str) -> tuple[Response, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = json.dumps({"name": name, "config": {"provider": "openai"}, "workspace_id": location}).encode()
        response = await send_request(app, "POST", "/v1/configs", body, {**fields, "idempotency-key": name})
        return response, loop.time() - began

    async def wait_for_replay(app: Litestar, name: str) -> Response:
        """Repeats the request until its response is a replay."""
        async with asyncio.timeout(10):
            while "idempotency-replayed" not in (response := (await create_config(app, name))[0]).headers:
                assert response.status == 409
                await asyncio.sleep(0.02)
        return response

    async def run_scenario() -> None:
        nonlocal location
        app = await create_migrated_app(settings, published)
        async with run_lifespan(app):
            (first,) = (await send_request(app, "GET", "/v1/workspaces", headers=fields)).json()["data"]
            location = first["id"]
            # Nothing has been published yet, so no worker is waited for.
            assert await published.wait_for_newer("", 10)
            published.record_worker_epoch(1, "of a worker that is no more")
            buffered = asyncio.create_task(create_config(app, "a"))
            async with asyncio.timeout(10):
                while not published.running.waits:
                    await send_request(app, "GET", "/v1/workspaces", headers=fields)
            again = await wait_for_replay(app, "a")
            assert not buffered.done()
            response, seconds = await buffered
            assert (response.status, response.body) == (again.status, again.body)
            assert seconds >= settings.store.publish_wait_ms / 1000
            response, _ = await create_config(app, "b")
            assert response.status == 200
            # However long it took, the gateway gave up waiting only once.
            assert published.running.given_up == 1

    location = ""
    asyncio.run(run_scenario())


async def create_migrated_app(settings: Settings, published: SnapshotChannel | None = None) -> Litestar:
    database = Database(settings.store, settings.store.url or Secret(""))
    await migrate(database)
    await bootstrap_organisation(database, Secret(ADMIN_KEY))
    await database.close()
    return create_app(settings, published or SnapshotChannel(Snapshot()))


class RandomWriter:
    """Applies random changes: creates, updates and deletes resources."""

    def __init__(self, plane: ManagementPlane, chance: random.Random) -> None:
        self._plane, self._chance = plane, chance
        self._made: dict[str, list[str]] = {"configs": [], "virtual-keys": [], "api-keys": []}
        self._number = 0

    async def apply_random_change(self) -> None:
        self._number += 1
        ways = (
            self._create_config,
            self._create_key,
            self._create_virtual_key,
            self._update_random,
            self._delete_random,
            self._create_and_delete_workspace,
        )
        await self._chance.choice(ways)()

    async def _create(self, kind: str, path: str, body: dict[str, Any]) -> None:
        (workspace, *_) = (await self._plane.send_request("GET", "/v1/workspaces"))["data"][-1:]
        created = await self._plane.send_request(
            "POST", path, {**body, "name": f"n{self._number}", "workspace_id": workspace["id"]}
        )
        self._made[kind].append(created["id"])

    async def _create_config(self) -> None:
        await self._create("configs", "/v1/configs", {"config": {"provider": "openai"}})

    async def _create_key(self) -> None:
        await self._create("api-keys", "/v1/api-keys/workspace/service", {"scopes": ["completions.write"]})

    async def _create_virtual_key(self) -> None:
        await self._create("virtual-keys", "/v1/virtual-keys", {"provider": "openai", "key": f"sk-{self._number:08}"})

    async def _update_random(self) -> None:
        kind = self._chance.choice(sorted(self._made))
        for item in self._made[kind][-1:]:
            if kind == "api-keys" and self._chance.random() < 0.5:
                await self._plane.send_request("POST", f"/v1/api-keys/{item}/rotate")
                # A second rotation would be rejected while this one is in progress.
                self._made[kind].remove(item)
                return
            await self._plane.send_request("PUT", f"/v1/{kind}/{item}", {"name": f"changed {self._number}"})

    async def _delete_random(self) -> None:
        kind = self._chance.choice(sorted(self._made))
        if self._made[kind]:
            await self._plane.send_request("DELETE", f"/v1/{kind}/{self._made[kind].pop(0)}")

    async def _create_and_delete_workspace(self) -> None:
        workspace = await self._plane.send_request("POST", "/v1/workspaces", {"name": f"w{self._number}"})
        key = {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
        await self._plane.send_request("POST", "/v1/api-keys/workspace/service", key)
        archive_request = {"name": workspace["name"], "force_delete": True}
        await self._plane.send_request("DELETE", f"/v1/workspaces/{workspace['id']}", archive_request)


def test_published_snapshot_equals_the_database_after_any_write(settings: Settings):
    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        plane = ManagementPlane(app, settings)
        async with run_lifespan(app):
            writer = RandomWriter(plane, random.Random(7))  # noqa: S311 - what is written is no secret
            await plane.publish()
            for number in range(WRITE_COUNT):
                await writer.apply_random_change()
                # Sometimes several changes are published together.
                if number % 3:
                    await plane.publish()
                    assert snapshot_rows(plane.published.stored) == snapshot_rows(await plane.gather_all())
            callers = [key for key in snapshot_rows(await plane.gather_all())["keys"] if "lacks" not in key]
            assert plane.published.stored.key_count == len(callers)
        await plane.close()

    asyncio.run(run_scenario())


def test_invalid_row_is_left_out_and_logged(settings: Settings, caplog: pytest.LogCaptureFixture):
    """The API no longer writes such a row, but an older release may have done so, and external secrets may hold any
    value.
    """

    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        plane = ManagementPlane(app, settings)
        async with run_lifespan(app):
            (workspace, *_) = (await plane.send_request("GET", "/v1/workspaces"))["data"]
            inside = {"workspace_id": workspace["id"], "provider": "openai", "key": "sk-01234567"}
            query, text = {"custom_host": "https://a.example/?query"}, {"deploymentConfig": "none"}
            for broken, target_workspace in ((query, "custom_host"), (text, "configurations")):
                bad = await plane.send_request("POST", "/v1/virtual-keys", {**inside, "name": "bad"})
                async with plane._database.write_transaction() as connection:
                    newest = select(integrations.c.id).order_by(integrations.c.id.desc()).limit(1).scalar_subquery()
                    change = update(integrations).where(integrations.c.id == newest)
                    await connection.execute(change.values(configurations=broken))
                caplog.clear()
                good = await plane.send_request("POST", "/v1/virtual-keys", {**inside, "name": "good"})
                await plane.publish()
                reported = [row["slug"] for row in snapshot_rows(plane.published.stored)["providers"]]
                assert good["slug"] in reported
                assert bad["slug"] not in reported
                # The application's own publisher logs it as well.
                (line,) = {line for line in caplog.messages if "is left out" in line}
                assert target_workspace in line
                await plane.send_request("DELETE", f"/v1/virtual-keys/{bad['slug']}")
            target_workspace = {"workspace_id": workspace["id"]}
            saved = [
                await plane.send_request(
                    "POST", "/v1/configs", {**target_workspace, "name": "n", "config": {"provider": "openai"}}
                )
                for _ in range(2)
            ]
            scopes, deep = {"scopes": ["completions.write"]}, {"metadata": {"a": msgspec.Raw(b"[" * 300 + b"]" * 300)}}
            key = await plane.send_request(
                "POST", "/v1/api-keys/workspace/service", {**target_workspace, **scopes, "name": "deep"}
            )
            async with plane._database.write_transaction() as connection:
                wrong = update(configs).where(configs.c.slug == saved[0]["slug"])
                await connection.execute(wrong.values(config='{"provider":1}'))
                text = msgspec.json.encode(deep).decode()
                broken = sql("UPDATE api_keys SET defaults = :text WHERE id = :id")
                await connection.execute(broken, {"text": text, "id": key["id"]})
            caplog.clear()
            # Queries everything, as at startup.
            stored = await plane.gather_all()
            build_valid_snapshot(settings, stored)
            assert [row["slug"] for row in snapshot_rows(stored)["configs"]] == [saved[1]["slug"]]
            (line,) = {line for line in caplog.messages if "is left out" in line}
            assert (saved[0]["slug"] in line, "provider" in line) == (True, True)
        await plane.close()

    asyncio.run(run_scenario())


def test_undecryptable_credential_leaves_out_only_its_dependents(settings: Settings, caplog: pytest.LogCaptureFixture):
    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        plane = ManagementPlane(app, settings)
        async with run_lifespan(app):
            (workspace, *_) = (await plane.send_request("GET", "/v1/workspaces"))["data"]
            inside = {"workspace_id": workspace["id"]}
            headers = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
            slugs: list[str] = []
            for name in ("good", "of its model", "of its own"):
                body = {**inside, "name": name, "ai_provider_id": "openai", "key": "sk-01234567"}
                integration = await plane.send_request("POST", "/v1/integrations", body)
                model = {"slug": "m", "enabled": True, "is_custom": True, "configurations": headers}
                await plane.send_request("PUT", f"/v1/integrations/{integration['id']}/models", {"models": [model]})
                slugs.append(integration["slug"])
            bodies = [{"provider": "openai"}, {"provider": "openai", "api_key": "sk-a-canary-of-a-config"}]
            saved = [
                await plane.send_request("POST", "/v1/configs", {**inside, "name": "n", "config": body})
                for body in bodies
            ]
            async with plane._database.write_transaction() as connection:
                broken = {"sealed_key": "00000000-0000-7000-8000-000000000000.AAAA"}
                await connection.execute(update(integrations).where(integrations.c.slug == slugs[2]).values(broken))
                owner = select(integrations.c.id).where(integrations.c.slug == slugs[1]).scalar_subquery()
                change = update(integration_models).where(integration_models.c.integration_id == owner)
                await connection.execute(change.values(sealed_configurations="not.base64!"))
                await connection.execute(
                    update(configs).where(configs.c.sealed.is_not(None)).values(sealed=broken["sealed_key"])
                )
            caplog.clear()
            reported = snapshot_rows(await plane.gather_all())
            assert [row["slug"] for row in reported["providers"]] == slugs[:1]
            assert [row["slug"] for row in reported["configs"]] == [saved[0]["slug"]]
            left_out = [line for line in caplog.messages if "is left out" in line]
            assert all(any(slug in line for line in left_out) for slug in [*slugs[1:], saved[1]["slug"]])
        await plane.close()

    asyncio.run(run_scenario())


def test_start_encrypts_data_keys_with_the_new_master_key(settings: Settings):
    """Covers the embedded database and PostgreSQL; afterwards the old master key is no longer needed."""
    old, new = (base64.b64encode(bytes([byte] * 32)).decode() for byte in (0, 1))

    def settings_with_keys(keys: str) -> Settings:
        return msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, master_key=Secret(keys)))

    async def run_scenario() -> None:
        app = await create_migrated_app(settings_with_keys(old))
        fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
        async with run_lifespan(app):
            body = {"name": "i", "ai_provider_id": "openai", "key": "sk-01234567"}
            assert (
                await send_request(app, "POST", "/v1/integrations", json.dumps(body).encode(), fields)
            ).status == 200
        database = Database(settings.store, settings.store.url or Secret(""))
        if database.embedded:
            await _prepare_for_start(settings_with_keys(f"{new},{old}"))
        else:
            services = create_app(settings_with_keys(f"{new},{old}"), SnapshotChannel(Snapshot())).state["services"]
            await KeyRotator(services).check_keys()
            await services.database.close()
        async with database.read_connection() as connection:
            (sealed, owner), *_ = (await connection.execute(select(integrations.c.sealed_key, integrations.c.id))).all()
            vault = Vault(load_master_keys(settings_with_keys(new)))
            assert await vault.open(connection, sealed, owner) == "sk-01234567"
        await database.close()

    asyncio.run(run_scenario())


def test_only_the_changed_part_of_a_large_table_is_queried(settings: Settings):
    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        plane = ManagementPlane(app, settings)
        async with run_lifespan(app):
            (workspace, *_) = (await plane.send_request("GET", "/v1/workspaces"))["data"]
            inside = {"name": "n", "workspace_id": workspace["id"]}
            assert await plane.publish() == ["api_keys", "configs"]
            config = await plane.send_request("POST", "/v1/configs", {**inside, "config": {"provider": "openai"}})
            assert await plane.publish() == ["configs"]
            # Configs with credentials are queried separately from the others.
            request_count = [
                request_count.partition("WHERE")[2]
                for request_count in plane.executed_statements
                if "FROM configs" in request_count
            ]
            assert len(request_count) == 2
            assert all("substr" in conditions for conditions in request_count)
            key = {**inside, "scopes": ["completions.write"], "defaults": {"config_id": config["id"]}}
            await plane.send_request("POST", "/v1/api-keys/workspace/service", key)
            assert await plane.publish() == ["api_keys"]
            await plane.send_request("POST", "/v1/virtual-keys", {**inside, "provider": "openai", "key": "sk-01234567"})
            assert await plane.publish() == []
            assert b"sk-01234567" in plane.published.stored.providers
            await plane.send_request("PUT", f"/v1/workspaces/{workspace['id']}", {"defaults": {"metadata": {"a": "b"}}})
            assert await plane.publish() == ["api_keys", "configs"]
            assert await plane.publish() == []
        await plane.close()

    asyncio.run(run_scenario())


def test_restart_from_saved_snapshot_reads_changes_then_all_rows(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        first = ManagementPlane(app, settings)
        async with run_lifespan(app):
            (workspace, *_) = (await first.send_request("GET", "/v1/workspaces"))["data"]
            key = {"name": "k", "workspace_id": workspace["id"], "scopes": ["completions.write"]}
            # The key expires only after the checks that need it, even on a busy machine.
            ends = datetime.now(UTC) + timedelta(seconds=5)
            soon = {"expires_at": ends.isoformat()}
            for more in ({}, soon):
                await first.send_request("POST", "/v1/api-keys/workspace/service", {**key, **more})
            config = {"name": "n", "workspace_id": workspace["id"], "config": {"provider": "openai"}}
            gone = await first.send_request("POST", "/v1/configs", config)
            await first.publish()
            remaining = first.kept.load()
            assert remaining is not None
            # No publisher runs in the meantime.
            await first.send_request("DELETE", f"/v1/configs/{gone['slug']}")
            created = await first.send_request("POST", "/v1/configs", config)
            # Prevents a full refresh during the next steps, however long they take.
            monkeypatch.setattr("penstock.snapshot.publisher.FULL_READ_DELAY_SECONDS", 3600)
            second = ManagementPlane(app, settings, remaining)
            assert await second.publish() == ["configs"]
            assert all("substr" in requested for requested in second.executed_statements if "FROM configs" in requested)
            reported = snapshot_rows(second.published.stored)
            assert [row["slug"] for row in reported["configs"]] == [created["slug"]]
            assert reported == snapshot_rows(await second.gather_all())
            # The snapshot was published, and a key that has expired since is no longer in it.
            assert second.published.number == 1
            await asyncio.sleep((ends - datetime.now(UTC)).total_seconds() + 0.1)
            assert await second.publish() == ["api_keys"]
            assert snapshot_rows(second.published.stored) == snapshot_rows(await second.gather_all())
            assert second.published.stored.key_count == remaining.key_count - 1
            # A change without an entry in the change log is found by the full refresh.
            async with second._database.write_transaction() as connection:
                await connection.execute(update(configs).values(name="other", config='{"provider":"groq"}'))
            assert await second.publish() == []
            monkeypatch.setattr("penstock.snapshot.publisher.FULL_READ_DELAY_SECONDS", 0)
            third = ManagementPlane(app, settings, second.published.stored)
            # It is read in batches, between which other changes are published.
            queried = [await third.publish() for _ in range(FULL_READ_BATCHES + 1)]
            assert {table for tables in queried for table in tables} == {"api_keys", "configs"}
            assert snapshot_rows(third.published.stored)["configs"][0]["config"] == {"provider": "groq"}
            assert await third.publish() == []
            for plane in (first, second, third):
                await plane.close()

    asyncio.run(run_scenario())


def test_snapshot_is_saved_before_it_is_published(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    async def run_scenario() -> None:
        app = await create_migrated_app(settings)
        plane = ManagementPlane(app, settings)
        publish, actual = plane.published.publish, list[bool]()

        def check_and_publish(snapshot: Snapshot) -> None:
            remaining = plane.kept.load()
            actual.append(remaining is not None and remaining.chunks == plane.published.stored.chunks)
            publish(snapshot)

        monkeypatch.setattr(plane.published, "publish", check_and_publish)
        async with run_lifespan(app):
            (workspace, *_) = (await plane.send_request("GET", "/v1/workspaces"))["data"]
            for number in range(3):
                body = {"name": f"n{number}", "workspace_id": workspace["id"], "config": {"provider": "openai"}}
                await plane.send_request("POST", "/v1/configs", body)
                await plane.publish()
        await plane.close()
        assert actual == [True] * 3

    asyncio.run(run_scenario())
