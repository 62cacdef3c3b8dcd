"""Scheduled key rotation, on an embedded store and with a clock that the test sets."""

from __future__ import annotations

import asyncio
import base64
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from penstock import schemas
from penstock.access.audit import RequestInfo
from penstock.access.authentication import CallerAuthenticator
from penstock.authorization import Caller, PresentedCredential
from penstock.errors import ConflictError, UnauthorisedError
from penstock.ids import generate_key, new_id, sha256_hex
from penstock.jobs.rotate import KeyRotator
from penstock.kit.tenant_session import Services
from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.organisation.keys import KEY_RESOURCES, rotate_key, store_digest
from penstock.organisation.rotation import RotationPolicy, build_policy
from penstock.secrets.vault import Vault, load_master_keys
from penstock.settings import Secret, Settings, Store
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import api_keys, audit_log, key_digests, organisations, sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOUR_SECONDS = 3600
REQUEST_INFO = RequestInfo("POST", "/", "", "", "")


class FakeChangeNotifier:
    """Counts notifications; there are no workers to wait for."""

    def __init__(self) -> None:
        self.rings = 0

    def notify(self) -> None:
        self.rings += 1

    async def wait_until_applied(self, number: int) -> None:
        pass


class FakeClock:
    """Returns the time that the test has set."""

    def __init__(self, start: str) -> None:
        self.set_time(start)

    def set_time(self, moment: str) -> None:
        self.seconds = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()

    def time_ns(self) -> int:
        return int(self.seconds * 1_000_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock("2026-11-18T10:00:00")
    monkeypatch.setattr(schemas.time, "time_ns", clock.time_ns)
    return clock


class RotationHarness:
    """A store with one organisation, and a key rotator that the test calls by hand."""

    def __init__(self, url: Secret) -> None:
        store = Store(master_key=Secret(base64.b64encode(bytes(32)).decode()))
        settings = Settings(store=store)
        self.database = Database(store, url)
        self.vault = Vault(load_master_keys(settings))
        self.identities = CallerAuthenticator(self.database, None)
        self.news = FakeChangeNotifier()
        self.services = Services(settings, self.database, self.vault, self.identities, self.news)
        self.rotator = KeyRotator(self.services)

    async def set_up(self) -> None:
        await migrate(self.database)
        await bootstrap_organisation(self.database, None)
        self.organisation: str = (await self.fetch_rows(select(organisations)))[0]["id"]
        self.caller = Caller(id=new_id(), type="organisation-service", organisation_id=self.organisation)

    async def fetch_rows(self, query: Any) -> list[dict[str, Any]]:
        async with self.database.read_connection() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def create_key(self, **requested: Any) -> tuple[str, str]:
        """Creates a key with a rotation policy; returns its ID and text."""
        text = generate_key()
        values = {
            "name": "n",
            "type": "organisation-service",
            "status": "active",
            "creation_mode": "api",
            "masked": "m",
            "scopes": [],
            "defaults": {},
            "expires_at": requested.pop("expires_at", None),
            "last_rotated_at": None,
            "rotation_policy": build_policy(RotationPolicy(**requested), None),
        }
        async with self.services.write_session_as(self.caller, REQUEST_INFO) as session:
            row = await KEY_RESOURCES["organisation-service"].create(session, values)
            await store_digest(session, row["id"], text)
        return row["id"], text

    async def rotation_policy(self, key_id: str) -> dict[str, Any]:
        return (await self.fetch_rows(select(api_keys).where(api_keys.c.id == key_id)))[0]["rotation_policy"]

    async def request_rotation(self, key_id: str) -> str:
        """Returns the new key text, as `POST …/rotate` does."""
        async with self.services.write_session_as(self.caller, REQUEST_INFO) as session:
            row = await KEY_RESOURCES["organisation-service"].get(session, key_id)
            return (await rotate_key(session, row, None))[0]

    async def is_accepted(self, text: str) -> bool:
        self.identities.clear_cache()
        try:
            await self.identities.authenticate(PresentedCredential("key", text))
        except UnauthorisedError:
            return False
        return True


def run_scenario(url: Secret, play: Callable[[RotationHarness], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = RotationHarness(url)
        await harness.set_up()
        await play(harness)
        await harness.database.close()

    asyncio.run(run())


def test_due_key_gets_a_pending_text_and_the_old_one_stays_valid(store_url: Secret, clock: FakeClock):
    async def scenario(harness: RotationHarness) -> None:
        key_id, old = await harness.create_key(
            rotation_period="weekly", key_transition_period_ms=2 * HOUR_SECONDS * 1000
        )
        assert (await harness.rotation_policy(key_id))["next_rotation_at"] == "2026-11-23T00:00:00.000Z"
        clock.set_time("2026-11-22T23:59:59")
        await harness.rotator.check_keys()
        assert len(await harness.fetch_rows(select(key_digests).where(key_digests.c.api_key_id == key_id))) == 1
        clock.set_time("2026-11-23T00:00:00")
        await harness.rotator.check_keys()
        assert (await harness.rotation_policy(key_id))["next_rotation_at"] == "2026-11-30T00:00:00.000Z"
        assert await harness.is_accepted(old)
        new = await harness.request_rotation(key_id)
        assert await harness.is_accepted(new)
        # The sealed copy of the new secret is deleted after its delivery. A key never has three secrets.
        assert not [row for row in await harness.fetch_rows(select(key_digests)) if row["sealed"]]
        with pytest.raises(ConflictError):
            await harness.request_rotation(key_id)
        clock.set_time("2026-11-23T01:59:59")
        assert await harness.is_accepted(old)
        clock.set_time("2026-11-23T02:00:00")
        assert not await harness.is_accepted(old)
        rings = harness.news.rings
        await harness.rotator.check_keys()
        # No notification is needed: the snapshot publisher itself tracks when a secret expires.
        assert harness.news.rings == rings
        assert len(await harness.fetch_rows(select(key_digests).where(key_digests.c.api_key_id == key_id))) == 1
        assert await harness.is_accepted(new)
        content = [
            row["action"]
            for row in await harness.fetch_rows(select(audit_log).where(audit_log.c.resource_id == key_id))
        ]
        assert content == ["create", "rotate", "rotate"]

    run_scenario(store_url, scenario)


def test_pending_text_can_be_fetched_after_the_transition(store_url: Secret, clock: FakeClock):
    async def scenario(harness: RotationHarness) -> None:
        key_id, old = await harness.create_key(rotation_period_days=1)
        clock.set_time("2026-11-19T00:00:00")
        await harness.rotator.check_keys()
        clock.set_time("2026-11-19T12:00:00")
        await harness.rotator.check_keys()
        assert not await harness.is_accepted(old)
        assert await harness.is_accepted(await harness.request_rotation(key_id))

    run_scenario(store_url, scenario)


@pytest.mark.parametrize(
    ("requested", "due"),
    [
        ({"rotation_period": "monthly"}, "2026-12-01"),
        ({"rotation_period": "weekly"}, "2026-11-23"),
        ({"rotation_period_days": 365}, "2027-11-18"),
        ({"rotation_period_days": 3, "next_rotation_at": datetime(2026, 11, 20, 17, tzinfo=UTC)}, "2026-11-20"),
    ],
)
def test_next_rotation_is_at_midnight_and_explicit_date_wins(
    store_url: Secret, clock: FakeClock, requested: dict[str, Any], due: str
):
    async def scenario(harness: RotationHarness) -> None:
        key_id, _ = await harness.create_key(**requested)
        assert (await harness.rotation_policy(key_id))["next_rotation_at"] == f"{due}T00:00:00.000Z"
        clock.set_time(f"{due}T00:00:30")
        await harness.rotator.check_keys()
        following = (await harness.rotation_policy(key_id))["next_rotation_at"]
        days = (datetime.fromisoformat(following) - datetime.fromisoformat(f"{due}T00:00:00Z")).days
        assert days == {"monthly": 31, "weekly": 7}.get(
            requested.get("rotation_period", ""), requested.get("rotation_period_days")
        )

    run_scenario(store_url, scenario)


def test_skips_expired_keys_and_keys_in_transition(store_url: Secret, clock: FakeClock):
    async def scenario(harness: RotationHarness) -> None:
        end = int(datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp() * 1000)
        over, _ = await harness.create_key(rotation_period_days=1, expires_at=end)
        turning, old = await harness.create_key(
            rotation_period_days=1, key_transition_period_ms=20 * HOUR_SECONDS * 1000
        )
        await harness.request_rotation(turning)
        clock.set_time("2026-11-19T00:00:00")
        await harness.rotator.check_keys()
        texts = await harness.fetch_rows(select(key_digests))
        assert [sum(row["api_key_id"] == key_id for row in texts) for key_id in (over, turning)] == [1, 2]
        assert await harness.is_accepted(old)
        # The key is rotated as soon as its transition has ended.
        clock.set_time("2026-11-19T06:00:01")
        await harness.rotator.check_keys()
        assert not await harness.is_accepted(old)
        assert len(await harness.fetch_rows(select(key_digests).where(key_digests.c.api_key_id == turning))) == 2

    run_scenario(store_url, scenario)


def test_warns_once_a_day_ahead(store_url: Secret, clock: FakeClock, caplog: pytest.LogCaptureFixture):
    async def scenario(harness: RotationHarness) -> None:
        key_id, _ = await harness.create_key(rotation_period="weekly")
        for moment, content in (("2026-11-21T23:00:00", 0), ("2026-11-22T00:00:01", 1), ("2026-11-22T10:00:00", 1)):
            clock.set_time(moment)
            await harness.rotator.check_keys()
            assert [key_id in line.getMessage() for line in caplog.records].count(True) == content
        clock.set_time("2026-11-23T00:00:00")
        await harness.rotator.check_keys()
        assert "the old text of the key" in caplog.text

    with caplog.at_level(logging.WARNING, "penstock"):
        run_scenario(store_url, scenario)


def test_deletes_expired_sessions(store_url: Secret, clock: FakeClock):
    async def scenario(harness: RotationHarness) -> None:
        row = {"id": new_id(), "organisation_id": harness.organisation, "sha256": "0" * 64, "created_at": schemas.now()}
        async with harness.database.write_transaction() as connection:
            await connection.execute(insert(sessions).values(row))
        await harness.rotator.check_keys()
        assert len(await harness.fetch_rows(select(sessions))) == 1
        clock.set_time("2027-11-20T10:00:00")
        await harness.rotator.check_keys()
        assert not await harness.fetch_rows(select(sessions))

    run_scenario(store_url, scenario)


def test_session_expires_after_the_configured_lifetime(store_url: Secret, clock: FakeClock):
    async def scenario(harness: RotationHarness) -> None:
        (owner,) = await harness.fetch_rows(select(api_keys))
        (text,) = await harness.fetch_rows(select(key_digests))
        begun = {"id": new_id(), "organisation_id": harness.organisation, "api_key_id": owner["id"]}
        row = {**begun, "key_sha256": text["sha256"], "sha256": sha256_hex("cookie"), "created_at": schemas.now()}
        async with harness.database.write_transaction() as connection:
            await connection.execute(insert(sessions).values(row))
            await connection.execute(
                organisations.update().values(settings={"session_settings": {"max_session_ttl": 900}})
            )
        for moment, good in (("2026-11-18T10:14:59", True), ("2026-11-18T10:15:00", False)):
            clock.set_time(moment)
            harness.identities.clear_cache()
            try:
                caller = await harness.identities.authenticate(PresentedCredential("session", "cookie"))
            except UnauthorisedError:
                assert not good
            else:
                assert good
                assert (caller.by, caller.session_id) == ("session", begun["id"])

    run_scenario(store_url, scenario)
