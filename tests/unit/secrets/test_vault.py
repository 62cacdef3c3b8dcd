"""Credentials are sealed, open where they belong and nowhere else, and outlive a change of the master key."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from penstock.errors import ConflictError, SettingsError, UnavailableError
from penstock.secrets import vault as vault_module
from penstock.secrets.vault import MasterKeys, Vault, load_master_keys
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import data_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

OLD, NEW = bytes(32), bytes([1] * 32)


def within(url: Secret, scene: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        database = Database(Store(), url)
        try:
            await migrate(database)
            async with database.write_transaction() as connection:
                return await scene(connection)
        finally:
            await database.close()

    return asyncio.run(run())


def test_what_is_sealed_opens_for_its_owner_alone_and_does_not_show(store_url: Secret):
    async def scene(connection: AsyncConnection) -> None:
        vault = Vault(MasterKeys([OLD]))
        await vault.renew_data_keys_in(connection)
        first = await vault.seal(connection, "sk-canary", "row-1")
        second = await vault.seal(connection, "sk-canary", "row-1")
        assert first != second
        assert "canary" not in first
        assert await vault.open(connection, first, "row-1") == "sk-canary"
        with pytest.raises(UnavailableError):
            await vault.open(connection, first, "row-2")

    within(store_url, scene)


async def settled(connection: AsyncConnection, *keys: bytes) -> Vault:
    vault = Vault(MasterKeys(keys))
    await vault.renew_data_keys_in(connection)
    return vault


def test_another_master_key_seals_the_data_keys_anew_and_the_old_one_may_go(store_url: Secret):
    async def begin(connection: AsyncConnection) -> str:
        return await (await settled(connection, OLD)).seal(connection, "sk-canary", "row")

    sealed = within(store_url, begin)

    async def opened(connection: AsyncConnection, *keys: bytes) -> str:
        return await Vault(MasterKeys(keys)).open(connection, sealed, "row")

    with pytest.raises(SettingsError, match="another master key"):
        within(store_url, lambda connection: opened(connection, NEW))
    within(store_url, lambda connection: settled(connection, NEW, OLD))
    assert within(store_url, lambda connection: opened(connection, NEW)) == "sk-canary"


def test_a_data_key_that_is_no_longer_young_opens_but_does_not_seal(store_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        vault, moment = Vault(MasterKeys([OLD])), vault_module.now()
        monkeypatch.setattr(vault_module, "now", lambda: moment)

        async def sealed() -> str:
            await vault.renew_data_keys(database)
            async with database.read_connection() as connection:
                return await vault.seal(connection, "a", "row")

        first = await sealed()
        moment += vault_module.DATA_KEY_ROTATION_MS - 1
        assert (await sealed()).partition(".")[0] == first.partition(".")[0]
        # In a process that goes on as in one that begins.
        moment += 1
        assert (await sealed()).partition(".")[0] != first.partition(".")[0]
        async with database.read_connection() as connection:
            assert await vault.open(connection, first, "row") == "a"
            assert len((await connection.execute(select(data_keys))).all()) == 2
        await database.close()

    asyncio.run(scene())


def test_what_is_sealed_after_a_change_that_was_taken_back_opens_after_a_restart(store_url: Secret):
    async def take_back(database: Database, vault: Vault) -> None:
        async with database.write_transaction() as connection:
            await vault.seal(connection, "a", "row")
            message = "taken back"
            raise ConflictError(message)

    async def scene() -> None:
        database, key = Database(Store(), store_url), MasterKeys([OLD])
        await migrate(database)
        vault = Vault(key)
        with pytest.raises((ConflictError, UnavailableError)):
            await take_back(database, vault)
        await vault.renew_data_keys(database)
        async with database.read_connection() as connection:
            sealed = await vault.seal(connection, "a", "row")
            assert await Vault(key).open(connection, sealed, "row") == "a"
        await database.close()

    asyncio.run(scene())


def test_what_was_changed_does_not_open():
    sealed = bytearray(MasterKeys([OLD]).seal(b"content", "snapshot"))
    assert MasterKeys([NEW, OLD]).open(bytes(sealed), "snapshot") == b"content"
    for purpose, place in (("other", 0), ("snapshot", len(sealed) - 1)):
        sealed[place] ^= place and 1
        with pytest.raises(SettingsError, match="changed"):
            MasterKeys([OLD]).open(bytes(sealed), purpose)


def test_the_master_key_is_made_once_for_its_owner_alone(tmp_path: Path):
    settings = Settings(file=str(tmp_path / "penstock.toml"))
    with pytest.raises(SettingsError, match="no master key"):
        load_master_keys(settings)
    first = load_master_keys(settings, make=True)
    assert load_master_keys(settings, make=True).first == load_master_keys(settings).first == first.first
    assert oct((tmp_path / "penstock.key").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "!" * 44])
def test_a_bad_master_key_is_refused_without_being_told(text: str):
    with pytest.raises(SettingsError, match=r"store\.master_key is not allowed") as raised:
        load_master_keys(Settings(store=Store(master_key=Secret(text or ","))))
    assert not text or text not in str(raised.value)
