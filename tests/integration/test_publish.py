"""After a change only the parts of it are gathered again, and what is published is what is in the store."""

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
from penstock.kit.bootstrap import bootstrap_organisation
from penstock.secrets.references import SecretCache
from penstock.secrets.vault import Vault, load_master_keys
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.build import EMPTY_STORE_DATA, Snapshot, SnapshotChannel, StoreData, build_valid_snapshot
from penstock.snapshot.publisher import SavedSnapshot, SnapshotPublisher
from penstock.snapshot.query import SnapshotReader
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import configs, integration_models, integrations
from tests.integration.managed import ADMIN_KEY
from tests.unit.asgi import Answer, ask, living

if TYPE_CHECKING:
    from pathlib import Path

    from litestar import Litestar

    from tests.postgres import Postgres

WRITES = 60


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/penstock.db"
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.database()
    key = base64.b64encode(bytes(32)).decode()
    return Settings(store=Store(url=Secret(url), master_key=Secret(key)))


class Plane:
    """A management plane without its server, and a publisher beside its own that is told when to look."""

    def __init__(self, app: Litestar, settings: Settings, before: StoreData = EMPTY_STORE_DATA) -> None:
        self._app = app
        self._database = Database(settings.store, settings.store.url or Secret(""))
        key = load_master_keys(settings)
        self._parts = Vault(key), SecretCache(settings)
        self.published = SnapshotChannel(Snapshot())
        self.published.stored = before
        # The application has a publisher too, and writes down what it publishes.
        aside = msgspec.structs.replace(settings, file=f"{tempfile.mkdtemp(dir='.')}/penstock.toml")
        self.kept = SavedSnapshot(aside, key)
        self._publisher = SnapshotPublisher(settings, self.published, self._database, *self._parts, self.kept, None)
        self.asked: list[str] = []
        event.listen(self._database._engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        self.asked.append(statement)

    async def call(self, method: str, path: str, body: object = None) -> Any:
        fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
        answer = await ask(self._app, method, path, json.dumps(body).encode() if body is not None else b"", fields)
        assert answer.status == 200, answer.body
        return answer.json()

    async def look(self) -> list[str]:
        """Publish, and say which large tables were asked for it."""
        self.asked.clear()
        await self._publisher.publish_changes()
        return [table for table in ("api_keys", "configs") if any(f"FROM {table}" in asked for asked in self.asked)]

    async def whole(self) -> StoreData:
        """Gather everything, as a node does that knows nothing."""
        async with self._database.read_connection() as connection:
            stored, _ = await SnapshotReader(*self._parts).read_snapshot(connection)
        return stored

    async def close(self) -> None:
        await self._database.close()


def rows(stored: StoreData) -> dict[str, list[Any]]:
    """Everything that is told, whatever part it is in."""
    tables = {
        name: json.loads(b"[%s]" % getattr(stored, name)) for name in ("providers", "models", "workspaces", "departed")
    }
    parts = [json.loads(piece.data) for piece in stored.pieces.values()]
    tables |= {name: [row for part in parts for row in part.get(name, [])] for name in ("keys", "configs")}
    return {name: sorted(listed, key=json.dumps) for name, listed in tables.items()}


def test_a_worker_that_ended_holds_one_answer_up_and_none_that_is_asked_for_again(settings: Settings):
    """Who asks again with the same Idempotency-Key while an answer is held is given it."""
    # Long enough for what is to be done meanwhile on a machine that does much else, and whose disk takes its time:
    # a publisher whose store does not answer holds nobody up.
    patient = msgspec.structs.replace(settings.store, publish_wait_ms=6000, acquire_ms=10_000, statement_ms=20_000)
    settings = msgspec.structs.replace(settings, store=patient)
    published = SnapshotChannel(Snapshot())
    fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}

    async def write(app: Litestar, name: str) -> tuple[Answer, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = json.dumps({"name": name, "config": {"provider": "openai"}, "workspace_id": place}).encode()
        answer = await ask(app, "POST", "/v1/configs", body, {**fields, "idempotency-key": name})
        return answer, loop.time() - began

    async def replayed(app: Litestar, name: str) -> Answer:
        """Ask until it is done."""
        async with asyncio.timeout(10):
            while "idempotency-replayed" not in (answer := (await write(app, name))[0]).headers:
                assert answer.status == 409
                await asyncio.sleep(0.02)
        return answer

    async def scene() -> None:
        nonlocal place
        app = await opened(settings, published)
        async with living(app):
            (first,) = (await ask(app, "GET", "/v1/workspaces", headers=fields)).json()["data"]
            place = first["id"]
            # Before it publishes, nobody is waited for.
            assert await published.wait_for_newer("", 10)
            published.record_worker_epoch(1, "of a worker that is no more")
            held = asyncio.create_task(write(app, "a"))
            async with asyncio.timeout(10):
                while not published.running.waits:
                    await ask(app, "GET", "/v1/workspaces", headers=fields)
            again = await replayed(app, "a")
            assert not held.done()
            answer, seconds = await held
            assert (answer.status, answer.body) == (again.status, again.body)
            assert seconds >= settings.store.publish_wait_ms / 1000
            answer, _ = await write(app, "b")
            assert answer.status == 200
            # However long it took: nobody was waited for in vain another time.
            assert published.running.given_up == 1

    place = ""
    asyncio.run(scene())


async def opened(settings: Settings, published: SnapshotChannel | None = None) -> Litestar:
    database = Database(settings.store, settings.store.url or Secret(""))
    await migrate(database)
    await bootstrap_organisation(database, Secret(ADMIN_KEY))
    await database.close()
    return create_app(settings, published or SnapshotChannel(Snapshot()))


class Writer:
    """Changes this and that."""

    def __init__(self, plane: Plane, chance: random.Random) -> None:
        self._plane, self._chance = plane, chance
        self._made: dict[str, list[str]] = {"configs": [], "virtual-keys": [], "api-keys": []}
        self._number = 0

    async def write(self) -> None:
        self._number += 1
        ways = (self._make_config, self._make_key, self._make_virtual_key, self._change, self._remove, self._workspace)
        await self._chance.choice(ways)()

    async def _make(self, kind: str, path: str, body: dict[str, Any]) -> None:
        (place, *_) = (await self._plane.call("GET", "/v1/workspaces"))["data"][-1:]
        made = await self._plane.call("POST", path, {**body, "name": f"n{self._number}", "workspace_id": place["id"]})
        self._made[kind].append(made["id"])

    async def _make_config(self) -> None:
        await self._make("configs", "/v1/configs", {"config": {"provider": "openai"}})

    async def _make_key(self) -> None:
        await self._make("api-keys", "/v1/api-keys/workspace/service", {"scopes": ["completions.write"]})

    async def _make_virtual_key(self) -> None:
        await self._make("virtual-keys", "/v1/virtual-keys", {"provider": "openai", "key": f"sk-{self._number:08}"})

    async def _change(self) -> None:
        kind = self._chance.choice(sorted(self._made))
        for one in self._made[kind][-1:]:
            if kind == "api-keys" and self._chance.random() < 0.5:
                await self._plane.call("POST", f"/v1/api-keys/{one}/rotate")
                # Another rotation would be refused while this one is not over.
                self._made[kind].remove(one)
                return
            await self._plane.call("PUT", f"/v1/{kind}/{one}", {"name": f"changed {self._number}"})

    async def _remove(self) -> None:
        kind = self._chance.choice(sorted(self._made))
        if self._made[kind]:
            await self._plane.call("DELETE", f"/v1/{kind}/{self._made[kind].pop(0)}")

    async def _workspace(self) -> None:
        made = await self._plane.call("POST", "/v1/workspaces", {"name": f"w{self._number}"})
        key = {"name": "k", "scopes": ["completions.write"], "workspace_id": made["id"]}
        await self._plane.call("POST", "/v1/api-keys/workspace/service", key)
        farewell = {"name": made["name"], "force_delete": True}
        await self._plane.call("DELETE", f"/v1/workspaces/{made['id']}", farewell)


def test_whatever_is_written_what_is_published_is_what_is_there(settings: Settings):
    async def scene() -> None:
        app = await opened(settings)
        plane = Plane(app, settings)
        async with living(app):
            writer = Writer(plane, random.Random(7))  # noqa: S311 - what is written is no secret
            await plane.look()
            for number in range(WRITES):
                await writer.write()
                # Now and then several changes are found at once.
                if number % 3:
                    await plane.look()
                    assert rows(plane.published.stored) == rows(await plane.whole())
            callers = [key for key in rows(await plane.whole())["keys"] if "lacks" not in key]
            assert plane.published.stored.key_count == len(callers)
        await plane.close()

    asyncio.run(scene())


def test_one_row_that_the_engine_does_not_take_is_left_out_and_named(
    settings: Settings, caplog: pytest.LogCaptureFixture
):
    """It is not written so any more, but may have been, and what others keep may be anything."""

    async def scene() -> None:
        app = await opened(settings)
        plane = Plane(app, settings)
        async with living(app):
            (workspace, *_) = (await plane.call("GET", "/v1/workspaces"))["data"]
            inside = {"workspace_id": workspace["id"], "provider": "openai", "key": "sk-01234567"}
            query, text = {"custom_host": "https://a.example/?query"}, {"deploymentConfig": "none"}
            for spoilt, place in ((query, "custom_host"), (text, "configurations")):
                bad = await plane.call("POST", "/v1/virtual-keys", {**inside, "name": "bad"})
                async with plane._database.write_transaction() as connection:
                    newest = select(integrations.c.id).order_by(integrations.c.id.desc()).limit(1).scalar_subquery()
                    change = update(integrations).where(integrations.c.id == newest)
                    await connection.execute(change.values(configurations=spoilt))
                caplog.clear()
                good = await plane.call("POST", "/v1/virtual-keys", {**inside, "name": "good"})
                await plane.look()
                told = [row["slug"] for row in rows(plane.published.stored)["providers"]]
                assert good["slug"] in told
                assert bad["slug"] not in told
                # The application's own publisher says so as well.
                (line,) = {line for line in caplog.messages if "is left out" in line}
                assert place in line
                await plane.call("DELETE", f"/v1/virtual-keys/{bad['slug']}")
            place = {"workspace_id": workspace["id"]}
            saved = [
                await plane.call("POST", "/v1/configs", {**place, "name": "n", "config": {"provider": "openai"}})
                for _ in range(2)
            ]
            scopes, deep = {"scopes": ["completions.write"]}, {"metadata": {"a": msgspec.Raw(b"[" * 300 + b"]" * 300)}}
            key = await plane.call("POST", "/v1/api-keys/workspace/service", {**place, **scopes, "name": "deep"})
            async with plane._database.write_transaction() as connection:
                wrong = update(configs).where(configs.c.slug == saved[0]["slug"])
                await connection.execute(wrong.values(config='{"provider":1}'))
                text = msgspec.json.encode(deep).decode()
                spoilt = sql("UPDATE api_keys SET defaults = :text WHERE id = :id")
                await connection.execute(spoilt, {"text": text, "id": key["id"]})
            caplog.clear()
            # As at a start.
            stored = await plane.whole()
            build_valid_snapshot(settings, stored)
            assert [row["slug"] for row in rows(stored)["configs"]] == [saved[1]["slug"]]
            (line,) = {line for line in caplog.messages if "is left out" in line}
            assert (saved[0]["slug"] in line, "provider" in line) == (True, True)
        await plane.close()

    asyncio.run(scene())


def test_a_credential_that_cannot_be_opened_leaves_out_what_needs_it_alone(
    settings: Settings, caplog: pytest.LogCaptureFixture
):
    async def scene() -> None:
        app = await opened(settings)
        plane = Plane(app, settings)
        async with living(app):
            (workspace, *_) = (await plane.call("GET", "/v1/workspaces"))["data"]
            inside = {"workspace_id": workspace["id"]}
            headers = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
            slugs: list[str] = []
            for name in ("good", "of its model", "of its own"):
                body = {**inside, "name": name, "ai_provider_id": "openai", "key": "sk-01234567"}
                made = await plane.call("POST", "/v1/integrations", body)
                model = {"slug": "m", "enabled": True, "is_custom": True, "configurations": headers}
                await plane.call("PUT", f"/v1/integrations/{made['id']}/models", {"models": [model]})
                slugs.append(made["slug"])
            bodies = [{"provider": "openai"}, {"provider": "openai", "api_key": "sk-a-canary-of-a-config"}]
            saved = [
                await plane.call("POST", "/v1/configs", {**inside, "name": "n", "config": body}) for body in bodies
            ]
            async with plane._database.write_transaction() as connection:
                spoilt = {"sealed_key": "00000000-0000-7000-8000-000000000000.AAAA"}
                await connection.execute(update(integrations).where(integrations.c.slug == slugs[2]).values(spoilt))
                owner = select(integrations.c.id).where(integrations.c.slug == slugs[1]).scalar_subquery()
                change = update(integration_models).where(integration_models.c.integration_id == owner)
                await connection.execute(change.values(sealed_configurations="not.base64!"))
                await connection.execute(
                    update(configs).where(configs.c.sealed.is_not(None)).values(sealed=spoilt["sealed_key"])
                )
            caplog.clear()
            told = rows(await plane.whole())
            assert [row["slug"] for row in told["providers"]] == slugs[:1]
            assert [row["slug"] for row in told["configs"]] == [saved[0]["slug"]]
            left_out = [line for line in caplog.messages if "is left out" in line]
            assert all(any(slug in line for line in left_out) for slug in [*slugs[1:], saved[1]["slug"]])
        await plane.close()

    asyncio.run(scene())


def test_a_start_seals_the_data_keys_with_the_new_master_key(settings: Settings):
    """With one that is embedded as with PostgreSQL: the old one is needed no more."""
    old, new = (base64.b64encode(bytes([byte] * 32)).decode() for byte in (0, 1))

    def having(keys: str) -> Settings:
        return msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, master_key=Secret(keys)))

    async def scene() -> None:
        app = await opened(having(old))
        fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
        async with living(app):
            body = {"name": "i", "ai_provider_id": "openai", "key": "sk-01234567"}
            assert (await ask(app, "POST", "/v1/integrations", json.dumps(body).encode(), fields)).status == 200
        database = Database(settings.store, settings.store.url or Secret(""))
        if database.embedded:
            await _prepare_for_start(having(f"{new},{old}"))
        else:
            office = create_app(having(f"{new},{old}"), SnapshotChannel(Snapshot())).state["office"]
            await KeyRotator(office).check_keys()
            await office.database.close()
        async with database.read_connection() as connection:
            (sealed, owner), *_ = (await connection.execute(select(integrations.c.sealed_key, integrations.c.id))).all()
            vault = Vault(load_master_keys(having(new)))
            assert await vault.open(connection, sealed, owner) == "sk-01234567"
        await database.close()

    asyncio.run(scene())


def test_of_a_large_table_only_the_part_that_changed_is_asked_for(settings: Settings):
    async def scene() -> None:
        app = await opened(settings)
        plane = Plane(app, settings)
        async with living(app):
            (place, *_) = (await plane.call("GET", "/v1/workspaces"))["data"]
            inside = {"name": "n", "workspace_id": place["id"]}
            assert await plane.look() == ["api_keys", "configs"]
            made = await plane.call("POST", "/v1/configs", {**inside, "config": {"provider": "openai"}})
            assert await plane.look() == ["configs"]
            # Those that hold credentials are read beside the others.
            asked = [asked.partition("WHERE")[2] for asked in plane.asked if "FROM configs" in asked]
            assert len(asked) == 2
            assert all("substr" in conditions for conditions in asked)
            key = {**inside, "scopes": ["completions.write"], "defaults": {"config_id": made["id"]}}
            await plane.call("POST", "/v1/api-keys/workspace/service", key)
            assert await plane.look() == ["api_keys"]
            await plane.call("POST", "/v1/virtual-keys", {**inside, "provider": "openai", "key": "sk-01234567"})
            assert await plane.look() == []
            assert b"sk-01234567" in plane.published.stored.providers
            await plane.call("PUT", f"/v1/workspaces/{place['id']}", {"defaults": {"metadata": {"a": "b"}}})
            assert await plane.look() == ["api_keys", "configs"]
            assert await plane.look() == []
        await plane.close()

    asyncio.run(scene())


def test_who_goes_on_from_what_was_kept_reads_what_changed_since_and_everything_once_later(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    async def scene() -> None:
        app = await opened(settings)
        first = Plane(app, settings)
        async with living(app):
            (place, *_) = (await first.call("GET", "/v1/workspaces"))["data"]
            key = {"name": "k", "workspace_id": place["id"], "scopes": ["completions.write"]}
            # Later than all that is looked at before, on a busy machine too.
            ends = datetime.now(UTC) + timedelta(seconds=5)
            soon = {"expires_at": ends.isoformat()}
            for more in ({}, soon):
                await first.call("POST", "/v1/api-keys/workspace/service", {**key, **more})
            config = {"name": "n", "workspace_id": place["id"], "config": {"provider": "openai"}}
            gone = await first.call("POST", "/v1/configs", config)
            await first.look()
            kept = first.kept.load()
            assert kept is not None
            # Meanwhile nobody looks.
            await first.call("DELETE", f"/v1/configs/{gone['slug']}")
            made = await first.call("POST", "/v1/configs", config)
            # However long what follows takes, it is not yet the time to read everything.
            monkeypatch.setattr("penstock.snapshot.publisher.WHOLE_SECONDS", 3600)
            second = Plane(app, settings, kept)
            assert await second.look() == ["configs"]
            assert all("substr" in asked for asked in second.asked if "FROM configs" in asked)
            told = rows(second.published.stored)
            assert [row["slug"] for row in told["configs"]] == [made["slug"]]
            assert told == rows(await second.whole())
            # It was published, and a key that ended since is not in it any more.
            assert second.published.number == 1
            await asyncio.sleep((ends - datetime.now(UTC)).total_seconds() + 0.1)
            assert await second.look() == ["api_keys"]
            assert rows(second.published.stored) == rows(await second.whole())
            assert second.published.stored.key_count == kept.key_count - 1
            # What no change tells of is found all the same.
            async with second._database.write_transaction() as connection:
                await connection.execute(update(configs).values(name="other", config='{"provider":"groq"}'))
            assert await second.look() == []
            monkeypatch.setattr("penstock.snapshot.publisher.WHOLE_SECONDS", 0)
            third = Plane(app, settings, second.published.stored)
            assert await third.look() == ["api_keys", "configs"]
            assert rows(third.published.stored)["configs"][0]["config"] == {"provider": "groq"}
            assert await third.look() == []
            for plane in (first, second, third):
                await plane.close()

    asyncio.run(scene())


def test_what_is_published_was_written_down_before(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        app = await opened(settings)
        plane = Plane(app, settings)
        publish, found = plane.published.publish, list[bool]()

        def checked(snapshot: Snapshot) -> None:
            kept = plane.kept.load()
            found.append(kept is not None and kept.pieces == plane.published.stored.pieces)
            publish(snapshot)

        monkeypatch.setattr(plane.published, "publish", checked)
        async with living(app):
            (place, *_) = (await plane.call("GET", "/v1/workspaces"))["data"]
            for number in range(3):
                body = {"name": f"n{number}", "workspace_id": place["id"], "config": {"provider": "openai"}}
                await plane.call("POST", "/v1/configs", body)
                await plane.look()
        await plane.close()
        assert found == [True] * 3

    asyncio.run(scene())
