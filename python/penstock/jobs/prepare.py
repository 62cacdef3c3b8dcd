"""What is done about the store before the gateway starts: its tables where it is embedded, and the rows to start with."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from penstock.errors import UnavailableError
from penstock.kit.bootstrap import OWNER, address, found
from penstock.secrets import config_credentials
from penstock.secrets.references import Secrets, questions, with_master_key
from penstock.secrets.vault import Vault, master
from penstock.settings import STORE_FILE
from penstock.settings.secret import Secret
from penstock.snapshot.build import NOTHING, Prepared, Stored
from penstock.snapshot.publisher import PATIENCE, UNKEPT, KeptRows
from penstock.snapshot.query import Gatherer
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import changes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tokens import Tokens
    from penstock.secrets.vault import Master
    from penstock.settings import Settings

log = logging.getLogger("penstock")


def for_start(settings: Settings) -> bytes:
    """Prepare, in a process that ends with it."""
    return msgspec.msgpack.encode(asyncio.run(_for_start(settings)))


async def _for_start(settings: Settings) -> Prepared:
    known = await with_master_key(settings)
    found = await _prepared(known)
    if known is settings or known.store.master_key is None:
        return found
    return msgspec.structs.replace(found, master_key=known.store.master_key.reveal())


async def _prepared(settings: Settings) -> Prepared:
    database = _open(settings)
    key = master(settings, make=database.embedded)
    kept = KeptRows(settings, key)
    try:
        if database.embedded:
            return await _embedded(settings, database, key, kept)
        admin_key = None
        if settings.store.migrate:
            await migrate(database, sealing=Sealer.of(key))
            admin_key = await found(database, settings.store.admin_key, prefix=settings.store.key_prefix)
        # A node of a cluster starts with what it knew, and asks the database afterwards.
        stored = kept.last()
        if stored is None:
            stored = await _read(settings, database, key, kept)
        return Prepared(stored, admin_key)
    except UnavailableError as error:
        last = kept.last()
        log.warning("%s; starting with %s", error.message, "the kept snapshot" if last else "what the file says")
        return Prepared(last or NOTHING)
    finally:
        await database.close()


async def _embedded(settings: Settings, database: Database, key: Master, kept: KeptRows) -> Prepared:
    await migrate(database, sealing=Sealer.of(key))
    admin_key = await found(database, settings.store.admin_key, prefix=settings.store.key_prefix)
    await Vault(key).renew(database)
    return Prepared(await _read(settings, database, key, kept), admin_key)


async def _read(settings: Settings, database: Database, key: Master, kept: KeptRows) -> Stored:
    vault, secrets, last = Vault(key), Secrets(settings), kept.last() or NOTHING
    secrets.seed(last.secrets)
    async with database.reading() as connection:
        asked = await questions(connection, vault)
    if asked:
        # Who is slow is asked again later; what was known before is good until then.
        with suppress(TimeoutError):
            await asyncio.wait_for(secrets.refresh(asked), PATIENCE)
    async with database.reading() as connection:
        number = await connection.scalar(select(changes.c.number)) or 0
        stored, _ = await Gatherer(vault, secrets).gather(connection)
        stored = msgspec.structs.replace(stored, number=number)
    if tokens := known_tokens(settings, kept):
        stored = msgspec.structs.replace(stored, jwt=tokens.published())
    try:
        # The control process begins with these, before it has looked itself.
        kept.keep(stored)
    except OSError as error:
        log.warning(UNKEPT, error)
    return stored


class Sealer:
    """Seals what older releases kept in clear; the master key is looked for where there is something to seal."""

    def __init__(self, find: Callable[[], Awaitable[Master]]) -> None:
        """Seal nothing yet."""
        self._find = find
        self._vault: Vault | None = None

    @classmethod
    def of(cls, key: Master) -> Sealer:
        """Seal with a master key that is known already."""

        async def known() -> Master:
            return key

        return cls(known)

    async def seal(self, connection: AsyncConnection, config: str, owner: str) -> tuple[str, str | None]:
        """Give a config with its credentials masked, and those sealed for the row that has it."""
        divided = config_credentials.divide(msgspec.json.decode(config))
        if not divided.hidden:
            return config, None
        hidden = config_credentials.write(divided.hidden)
        shown = msgspec.json.encode(divided.shown).decode()
        vault = await self._opened()
        # It ends with the migration, whether that is kept or not.
        await vault.settle(connection)
        return shown, await vault.seal(connection, hidden, owner)

    async def open(self, connection: AsyncConnection, config: str, sealed: str, owner: str) -> str:
        """Give it as it was."""
        hidden = config_credentials.read(await (await self._opened()).open(connection, sealed, owner))
        whole = config_credentials.joined(config_credentials.Divided(msgspec.json.decode(config), hidden))
        return msgspec.json.encode(whole).decode()

    async def _opened(self) -> Vault:
        if self._vault is None:
            self._vault = Vault(await self._find())
        return self._vault


def known_tokens(settings: Settings, kept: KeptRows) -> Tokens | None:
    """Begin with the keys for tokens that are in the settings, or that were known at the last run."""
    if not settings.jwt.enabled:
        return None
    # What reads tokens is a tenth of what the control process imports, and most take none.
    from penstock.kit.tokens import Tokens  # noqa: PLC0415 - as said above

    tokens = Tokens(settings)
    if last := kept.last():
        tokens.recall(last.jwt)
    return tokens


def migrated(settings: Settings) -> tuple[str | None, str | None]:
    """Migrate when asked to, and give the revision before and after."""

    async def key() -> Master:
        return master(await with_master_key(settings))

    async def run() -> tuple[str | None, str | None]:
        database = _open(settings)
        try:
            return await migrate(database, sealing=Sealer(key))
        finally:
            await database.close()

    return asyncio.run(run())


def initialised(settings: Settings, email: str | None) -> str | None:
    """Make the tables, the master key and the first organisation; give the admin key's text if it was made here."""
    # Before anything is made.
    owner = address(email) if email else OWNER

    async def run() -> str | None:
        database = _open(settings)
        try:
            key = master(await with_master_key(settings), make=True)
            await migrate(database, sealing=Sealer.of(key))
            prefix = settings.store.key_prefix
            return await found(database, settings.store.admin_key, email=owner, prefix=prefix)
        finally:
            await database.close()

    return asyncio.run(run())


def _open(settings: Settings) -> Database:
    url = settings.store_url or Secret(f"sqlite:///{settings.beside(STORE_FILE)}")
    return Database(settings.store, url)
