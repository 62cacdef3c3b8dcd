"""Vault of sealed credentials. They open only for their owner, and survive a change of the master key."""

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


def run_in_transaction(url: Secret, work: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        database = Database(Store(), url)
        try:
            await migrate(database)
            async with database.write_transaction() as connection:
                return await work(connection)
        finally:
            await database.close()

    return asyncio.run(run())


def test_sealed_value_opens_for_its_owner_only(store_url: Secret):
    async def scenario(connection: AsyncConnection) -> None:
        vault = Vault(MasterKeys([OLD]))
        await vault.renew_data_keys_in(connection)
        first = await vault.seal(connection, "sk-canary", "row-1")
        second = await vault.seal(connection, "sk-canary", "row-1")
        assert first != second
        assert "canary" not in first
        assert await vault.open(connection, first, "row-1") == "sk-canary"
        with pytest.raises(UnavailableError):
            await vault.open(connection, first, "row-2")

    run_in_transaction(store_url, scenario)


async def make_vault(connection: AsyncConnection, *keys: bytes) -> Vault:
    vault = Vault(MasterKeys(keys))
    await vault.renew_data_keys_in(connection)
    return vault


def test_new_master_key_reseals_data_keys_and_old_one_may_go(store_url: Secret):
    async def seal_value(connection: AsyncConnection) -> str:
        return await (await make_vault(connection, OLD)).seal(connection, "sk-canary", "row")

    sealed = run_in_transaction(store_url, seal_value)

    async def open_value(connection: AsyncConnection, *keys: bytes) -> str:
        return await Vault(MasterKeys(keys)).open(connection, sealed, "row")

    with pytest.raises(SettingsError, match="another master key"):
        run_in_transaction(store_url, lambda connection: open_value(connection, NEW))
    run_in_transaction(store_url, lambda connection: make_vault(connection, NEW, OLD))
    assert run_in_transaction(store_url, lambda connection: open_value(connection, NEW)) == "sk-canary"


def test_old_data_key_opens_but_does_not_seal(store_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        database = Database(Store(), store_url)
        await migrate(database)
        vault, moment = Vault(MasterKeys([OLD])), vault_module.now()
        monkeypatch.setattr(vault_module, "now", lambda: moment)

        async def seal_value() -> str:
            await vault.renew_data_keys(database)
            async with database.read_connection() as connection:
                return await vault.seal(connection, "a", "row")

        first = await seal_value()
        moment += vault_module.DATA_KEY_ROTATION_MS - 1
        assert (await seal_value()).partition(".")[0] == first.partition(".")[0]
        # In a running process as well as in a new one.
        moment += 1
        assert (await seal_value()).partition(".")[0] != first.partition(".")[0]
        async with database.read_connection() as connection:
            assert await vault.open(connection, first, "row") == "a"
            assert len((await connection.execute(select(data_keys))).all()) == 2
        await database.close()

    asyncio.run(scenario())


def test_values_sealed_after_a_rollback_open_after_restart(store_url: Secret):
    async def seal_and_roll_back(database: Database, vault: Vault) -> None:
        async with database.write_transaction() as connection:
            await vault.seal(connection, "a", "row")
            message = "taken back"
            raise ConflictError(message)

    async def scenario() -> None:
        database, key = Database(Store(), store_url), MasterKeys([OLD])
        await migrate(database)
        vault = Vault(key)
        with pytest.raises((ConflictError, UnavailableError)):
            await seal_and_roll_back(database, vault)
        await vault.renew_data_keys(database)
        async with database.read_connection() as connection:
            sealed = await vault.seal(connection, "a", "row")
            assert await Vault(key).open(connection, sealed, "row") == "a"
        await database.close()

    asyncio.run(scenario())


def test_tampered_value_does_not_open():
    sealed = bytearray(MasterKeys([OLD]).seal(b"content", "snapshot"))
    assert MasterKeys([NEW, OLD]).open(bytes(sealed), "snapshot") == b"content"
    for purpose, location in (("other", 0), ("snapshot", len(sealed) - 1)):
        sealed[location] ^= location and 1
        with pytest.raises(SettingsError, match="changed"):
            MasterKeys([OLD]).open(bytes(sealed), purpose)


def test_master_key_is_created_once_and_private(tmp_path: Path):
    settings = Settings(file=str(tmp_path / "penstock.toml"))
    with pytest.raises(SettingsError, match="no master key"):
        load_master_keys(settings)
    first = load_master_keys(settings, make=True)
    assert load_master_keys(settings, make=True).first == load_master_keys(settings).first == first.first
    assert oct((tmp_path / "penstock.key").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "!" * 44])
def test_rejects_a_bad_master_key_without_printing_it(text: str):
    with pytest.raises(SettingsError, match=r"store\.master_key is not allowed") as raised:
        load_master_keys(Settings(store=Store(master_key=Secret(text or ","))))
    assert not text or text not in str(raised.value)
