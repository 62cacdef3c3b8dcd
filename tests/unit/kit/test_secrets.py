"""Credentials are sealed, open where they belong and nowhere else, and outlive a change of the master key."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from penstock.errors import SettingsError, UnavailableError
from penstock.kit import secrets
from penstock.kit.secrets import Master, Vault, master
from penstock.secret import Secret
from penstock.settings import Settings, Store
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import data_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

OLD, NEW = bytes(32), bytes([1] * 32)


def within(url: Secret, scene: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:  # noqa: ANN401
    async def run() -> Any:  # noqa: ANN401
        database = Database(Store(), url)
        try:
            await migrate(database)
            async with database.writing() as connection:
                return await scene(connection)
        finally:
            await database.close()

    return asyncio.run(run())


def test_what_is_sealed_opens_for_its_owner_alone_and_does_not_show(store_url: Secret):
    async def scene(connection: AsyncConnection) -> None:
        vault = Vault(Master([OLD]))
        first = await vault.seal(connection, "sk-canary", "row-1")
        second = await vault.seal(connection, "sk-canary", "row-1")
        assert first != second
        assert "canary" not in first
        assert await vault.open(connection, first, "row-1") == "sk-canary"
        with pytest.raises(UnavailableError):
            await vault.open(connection, first, "row-2")

    within(store_url, scene)


def test_another_master_key_seals_the_data_keys_anew_and_the_old_one_may_go(store_url: Secret):
    sealed = within(store_url, lambda connection: Vault(Master([OLD])).seal(connection, "sk-canary", "row"))

    async def opened(connection: AsyncConnection, *keys: bytes) -> str:
        return await Vault(Master(keys)).open(connection, sealed, "row")

    with pytest.raises(SettingsError, match="another master key"):
        within(store_url, lambda connection: opened(connection, NEW))
    assert within(store_url, lambda connection: opened(connection, NEW, OLD)) == "sk-canary"
    assert within(store_url, lambda connection: opened(connection, NEW)) == "sk-canary"


def test_a_data_key_that_is_no_longer_young_opens_but_does_not_seal(store_url: Secret, monkeypatch: pytest.MonkeyPatch):
    first = within(store_url, lambda connection: Vault(Master([OLD])).seal(connection, "a", "row"))
    monkeypatch.setattr(secrets, "YOUNG_MS", -1)

    async def scene(connection: AsyncConnection) -> None:
        vault = Vault(Master([OLD]))
        second = await vault.seal(connection, "b", "row")
        assert second.partition(".")[0] != first.partition(".")[0]
        assert await vault.open(connection, first, "row") == "a"
        assert len((await connection.execute(select(data_keys))).all()) == 2

    within(store_url, scene)


def test_what_was_changed_does_not_open():
    sealed = bytearray(Master([OLD]).seal(b"content", "snapshot"))
    assert Master([NEW, OLD]).open(bytes(sealed), "snapshot") == b"content"
    for purpose, place in (("other", 0), ("snapshot", len(sealed) - 1)):
        sealed[place] ^= place and 1
        with pytest.raises(SettingsError, match="changed"):
            Master([OLD]).open(bytes(sealed), purpose)


def test_the_master_key_is_made_once_for_its_owner_alone(tmp_path: Path):
    settings = Settings(file=str(tmp_path / "penstock.toml"))
    with pytest.raises(SettingsError, match="no master key"):
        master(settings)
    first = master(settings, make=True)
    assert master(settings, make=True).first == master(settings).first == first.first
    assert oct((tmp_path / "penstock.key").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "!" * 44])
def test_a_bad_master_key_is_refused_without_being_told(text: str):
    with pytest.raises(SettingsError, match=r"store\.master_key is not allowed") as raised:
        master(Settings(store=Store(master_key=Secret(text or ","))))
    assert not text or text not in str(raised.value)
