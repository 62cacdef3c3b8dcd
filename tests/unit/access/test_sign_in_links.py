"""Sign-in links: valid once and for an hour, and only the newest of each user."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.access import sign_in_links
from penstock.access.sign_in_links import LINK_TTL_MS, create_sign_in_link, find_user_of_link, use_link
from penstock.errors import SettingsError, UnauthorisedError
from penstock.schemas import now
from penstock.store.database import Database
from penstock.store.migrate import migrate
from tests.bootstrapped_store import PATIENT_STORE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.settings.secret import Secret


def run_with(url: Secret, check: Callable[[Database], Awaitable[None]]) -> None:
    async def run() -> None:
        database = Database(PATIENT_STORE, url)
        try:
            await check(database)
        finally:
            await database.close()

    asyncio.run(run())


async def is_valid(database: Database, token: str) -> bool:
    async with database.read_connection() as connection:
        try:
            return (await find_user_of_link(connection, token)).user_id is not None
        except UnauthorisedError:
            return False


def test_link_works_once_and_until_the_next_one(bootstrapped_url: Secret):
    async def check(database: Database) -> None:
        first = await create_sign_in_link(database)
        assert await is_valid(database, first)
        second = await create_sign_in_link(database, " OWNER@localhost ")
        assert [await is_valid(database, token) for token in (first, second)] == [False, True]
        async with database.write_transaction() as connection:
            await use_link(connection, second)
        async with database.write_transaction() as connection:
            with pytest.raises(UnauthorisedError, match="was used or has expired"):
                await use_link(connection, second)

    run_with(bootstrapped_url, check)


def test_link_expires_after_an_hour(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def check(database: Database) -> None:
        created_at = now()
        monkeypatch.setattr(sign_in_links, "now", lambda: created_at)
        token = await create_sign_in_link(database)
        monkeypatch.setattr(sign_in_links, "now", lambda: created_at + LINK_TTL_MS - 1)
        assert await is_valid(database, token)
        monkeypatch.setattr(sign_in_links, "now", lambda: created_at + LINK_TTL_MS)
        assert not await is_valid(database, token)

    run_with(bootstrapped_url, check)


def test_missing_user_and_empty_store_are_reported(store_url: Secret):
    async def check(database: Database) -> None:
        await migrate(database)
        with pytest.raises(SettingsError, match="hint: penstock init"):
            await create_sign_in_link(database)

    run_with(store_url, check)


def test_unknown_address_is_reported(bootstrapped_url: Secret):
    async def check(database: Database) -> None:
        with pytest.raises(SettingsError, match=r"'nobody@example\.com'"):
            await create_sign_in_link(database, "nobody@example.com")

    run_with(bootstrapped_url, check)
