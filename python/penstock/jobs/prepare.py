"""Store preparation before the gateway starts. Migrates the tables if configured and reads the first snapshot."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from penstock.access.sign_in_links import create_sign_in_link
from penstock.errors import SettingsError, StartupError, UnavailableError
from penstock.organisation.bootstrap import (
    DEFAULT_OWNER_EMAIL,
    bootstrap_organisation,
    describe_admin_key_problem,
    normalise_email,
    replace_admin_key,
)
from penstock.organisation.demo import issue_demo_key
from penstock.secrets import config_credentials
from penstock.secrets.references import SecretCache, load_secret_lookups, resolve_master_key
from penstock.secrets.vault import MissingMasterKeyError, Vault, has_data_keys, load_master_keys
from penstock.settings import STORE_FILE
from penstock.settings.secret import Secret
from penstock.snapshot.build import EMPTY_STORE_DATA, PreparedStore, StoreData
from penstock.snapshot.publisher import SECRETS_TIMEOUT_SECONDS, SNAPSHOT_NOT_SAVED, SavedSnapshot
from penstock.snapshot.query import SnapshotReader
from penstock.store.database import Database
from penstock.store.tables import change_counter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.access.token_verification import TokenVerifier
    from penstock.secrets.vault import MasterKeys
    from penstock.settings import Settings

log = logging.getLogger("penstock")

ADMIN_KEY_CHECK_SECONDS = 3.0
# Pause between two attempts to connect to a database that does not respond.
CONNECT_RETRY_SECONDS = 1.0


def prepare_for_start(settings: Settings, *, with_demo: bool = False) -> bytes:
    """Prepares the store in a short-lived process. Returns a `PreparedStore` encoded as MessagePack.

    With `with_demo`, also issues a key for the example commands, if `penstock serve` creates the store itself.
    """
    return msgspec.msgpack.encode(asyncio.run(_prepare_for_start(settings, with_demo=with_demo)))


async def _prepare_for_start(settings: Settings, *, with_demo: bool = False) -> PreparedStore:
    resolved = await resolve_master_key(settings)
    prepared = await _prepare_store(resolved, with_demo=with_demo)
    if resolved is settings or resolved.store.master_key is None:
        return prepared
    return msgspec.structs.replace(prepared, master_key=resolved.store.master_key.reveal())


async def _prepare_store(settings: Settings, *, with_demo: bool) -> PreparedStore:
    create_data_dir(settings)
    database = open_database(settings)
    key = await _load_master_keys(settings, database, create=database.embedded)
    saved_snapshot = SavedSnapshot(settings, key)
    try:
        await _warn_about_admin_key(settings, database)
        if database.embedded:
            return await _prepare_embedded(settings, database, key, saved_snapshot, with_demo=with_demo)
        admin_key = None
        if settings.store.migrate:
            await _migrate(database, sealing=MigrationSealer.from_key(key))
            admin_key = await bootstrap_organisation(
                database, settings.store.admin_key, prefix=settings.store.key_prefix
            )
        # If there is a saved snapshot, a node of a cluster starts with it and reads the database afterwards.
        stored = saved_snapshot.load()
        if stored is None:
            stored = await _read_snapshot(settings, database, key, saved_snapshot)
        return PreparedStore(stored, admin_key)
    except UnavailableError as error:
        last = saved_snapshot.load()
        log.warning("%s; starting with %s", error.message, "the saved snapshot" if last else "the settings file only")
        return PreparedStore(last or EMPTY_STORE_DATA)
    finally:
        await database.close()


async def _load_master_keys(settings: Settings, database: Database, *, create: bool) -> MasterKeys:
    """Loads the master keys. With `create`, creates the file if it is missing, unless the store already has credentials
    of another master key.
    """
    try:
        return load_master_keys(settings)
    except MissingMasterKeyError as error:
        if not create:
            raise
        if await has_data_keys(database):
            message = f"{error.message}; no new key is created, because the store has credentials of another one"
            raise MissingMasterKeyError(message) from None
    return load_master_keys(settings, make=True)


async def _warn_about_admin_key(settings: Settings, database: Database) -> None:
    """Warns if the configured admin key does not work, because the store was created with another one."""
    if settings.store.admin_key is None or not database.exists:
        return
    with suppress(UnavailableError, TimeoutError):
        # The check has a time limit, because a node also starts while its database does not respond.
        async with asyncio.timeout(ADMIN_KEY_CHECK_SECONDS):
            if problem := await describe_admin_key_problem(database, settings.store.admin_key):
                log.warning(problem)


async def _prepare_embedded(
    settings: Settings, database: Database, key: MasterKeys, saved_snapshot: SavedSnapshot, *, with_demo: bool
) -> PreparedStore:
    await _migrate(database, sealing=MigrationSealer.from_key(key))
    prefix = settings.store.key_prefix
    admin_key = await bootstrap_organisation(database, settings.store.admin_key, prefix=prefix)
    await Vault(key).renew_data_keys(database)
    sign_in_token = await create_sign_in_link(database) if admin_key else None
    demo_key = await issue_demo_key(database, prefix) if with_demo and settings.creates_store else None
    stored = await _read_snapshot(settings, database, key, saved_snapshot)
    return PreparedStore(stored, admin_key, sign_in_token, demo_key)


async def _read_snapshot(
    settings: Settings, database: Database, key: MasterKeys, saved_snapshot: SavedSnapshot
) -> StoreData:
    vault, secrets, last = Vault(key), SecretCache(settings), saved_snapshot.load() or EMPTY_STORE_DATA
    secrets.restore_values(last.secrets)
    async with database.read_connection() as connection:
        lookups = await load_secret_lookups(connection, vault)
    if lookups:
        # If a secret manager is slow, the control process fetches the values later. Values from the last snapshot stay
        # valid until then.
        await secrets.refresh(lookups, SECRETS_TIMEOUT_SECONDS)
        await secrets.stop()
    async with database.read_connection() as connection:
        number = await connection.scalar(select(change_counter.c.number)) or 0
        stored, _ = await SnapshotReader(vault, secrets).read_snapshot(connection)
        stored = msgspec.structs.replace(stored, number=number)
    if tokens := load_token_verifier(settings, saved_snapshot):
        stored = msgspec.structs.replace(stored, jwt=tokens.export_keys())
    try:
        # The control process starts with this saved snapshot, before it has read the store itself.
        saved_snapshot.save(stored)
    except OSError as error:
        log.warning(SNAPSHOT_NOT_SAVED, error)
    return stored


class MigrationSealer:
    """Encrypts credentials that older releases stored in clear text. Loads the master key only if there is such a
    credential.
    """

    def __init__(self, find: Callable[[], Awaitable[MasterKeys]]) -> None:
        """Stores the function that loads the master keys."""
        self._find = find
        self._vault: Vault | None = None

    @classmethod
    def from_key(cls, key: MasterKeys) -> MigrationSealer:
        """Returns a sealer with a master key that is already known."""

        async def find_key() -> MasterKeys:
            return key

        return cls(find_key)

    async def seal(self, connection: AsyncConnection, config: str, owner: str) -> tuple[str, str | None]:
        """Returns a config with its credentials masked, and the encrypted credentials, or `None` if it has none. These
        can be decrypted only for the row with the id `owner`.
        """
        divided = config_credentials.split_credentials(msgspec.json.decode(config))
        if not divided.secrets:
            return config, None
        hidden = config_credentials.encode_secrets(divided.secrets)
        public_part = msgspec.json.encode(divided.masked).decode()
        vault = await self._load_vault()
        # The vault is discarded after the migration, even if the transaction is rolled back.
        await vault.renew_data_keys_in(connection)
        return public_part, await vault.seal(connection, hidden, owner)

    async def open(self, connection: AsyncConnection, config: str, sealed: str, owner: str) -> str:
        """Returns the original config with its credentials."""
        hidden = config_credentials.decode_secrets(await (await self._load_vault()).open(connection, sealed, owner))
        document = config_credentials.join_credentials(
            config_credentials.SplitDocument(msgspec.json.decode(config), hidden)
        )
        return msgspec.json.encode(document).decode()

    async def _load_vault(self) -> Vault:
        if self._vault is None:
            self._vault = Vault(await self._find())
        return self._vault


def load_token_verifier(settings: Settings, saved_snapshot: SavedSnapshot) -> TokenVerifier | None:
    """Returns the token verifier with the keys from the settings and from the last run, or `None` if JWTs are
    disabled.
    """
    if not settings.jwt.enabled:
        return None
    # Imported only here: the JWT code is a tenth of all imports of the control process, and most gateways accept no
    # tokens.
    from penstock.access.token_verification import TokenVerifier  # noqa: PLC0415 - see the comment above

    tokens = TokenVerifier(settings)
    if last := saved_snapshot.load():
        tokens.restore_keys(last.jwt)
    return tokens


def migrate_store(settings: Settings, *, wait_seconds: float = 0.0) -> tuple[str | None, str | None]:
    """Migrates the store. Waits up to `wait_seconds` for a database that does not respond yet. Returns the revision
    before and the one after.
    """

    async def find_key() -> MasterKeys:
        return load_master_keys(await resolve_master_key(settings))

    async def run_migration() -> tuple[str | None, str | None]:
        database = open_database(settings)
        try:
            _require_store(database)
            await _wait_for_database(database, wait_seconds)
            return await _migrate(database, sealing=MigrationSealer(find_key))
        finally:
            await database.close()

    return asyncio.run(run_migration())


async def _wait_for_database(database: Database, seconds: float) -> None:
    """Tries to connect until it succeeds, for at most `seconds`. Raises StartupError with the reason of the last
    failure.
    """
    deadline, logged = time.monotonic() + seconds, ""
    while seconds:
        try:
            async with database.read_connection():
                return
        except UnavailableError as error:
            reason = describe_cause(error)
            if time.monotonic() + CONNECT_RETRY_SECONDS > deadline:
                message = f"the database did not answer within {seconds:g} seconds: {reason}"
                raise StartupError(message) from None
            if reason != logged:
                log.warning("waiting for the database: %s", reason)
            logged = reason
        await asyncio.sleep(CONNECT_RETRY_SECONDS)


def describe_cause(error: UnavailableError) -> str:
    """Returns the reason why the database cannot be used. Only the first line of the cause is used, because the others
    may contain data.
    """
    cause = error.__cause__
    if cause is None:
        return error.message
    return str(getattr(cause, "orig", cause)).partition("\n")[0] or f"{error.message} ({type(cause).__name__})"


def initialise_store(settings: Settings, email: str | None) -> str | None:
    """Creates the tables, the master key and the first organisation. Returns the admin key if this call created it."""
    # The address is validated before anything is created.
    owner = normalise_email(email) if email else DEFAULT_OWNER_EMAIL

    async def run_setup() -> str | None:
        create_data_dir(settings)
        database = open_database(settings)
        try:
            key = await _load_master_keys(await resolve_master_key(settings), database, create=True)
            await _warn_about_admin_key(settings, database)
            await _migrate(database, sealing=MigrationSealer.from_key(key))
            prefix = settings.store.key_prefix
            created = await bootstrap_organisation(database, settings.store.admin_key, email=owner, prefix=prefix)
            # Stores a data key. From now on, a node with another master key is rejected, and a node without one does
            # not create its own.
            await Vault(key).renew_data_keys(database)
            return created
        finally:
            await database.close()

    return asyncio.run(run_setup())


def reset_admin_key(settings: Settings) -> str | None:
    """Replaces the admin key of the organisation. Returns the new key, or `None` if the settings contain it."""

    async def run_reset() -> str | None:
        database = open_database(settings)
        try:
            _require_store(database)
            return await replace_admin_key(database, settings.store.admin_key, prefix=settings.store.key_prefix)
        finally:
            await database.close()

    return asyncio.run(run_reset())


def issue_sign_in_link(settings: Settings, email: str | None) -> str:
    """Creates a sign-in link for a user, by default the owner. Returns its secret."""

    async def run_issue() -> str:
        database = open_database(settings)
        try:
            _require_store(database)
            return await create_sign_in_link(database, email)
        finally:
            await database.close()

    return asyncio.run(run_issue())


def check_store(settings: Settings) -> None:
    """Raises SettingsError if the gateway would not start with this store. Creates nothing, and contacts no server."""

    async def run_check() -> None:
        database = open_database(settings)
        try:
            if database.embedded and not await has_data_keys(database):
                return
            key = load_master_keys(settings)
            if database.embedded:
                async with database.read_connection() as connection:
                    await Vault(key).load(connection)
        finally:
            await database.close()

    # A master key in a secret manager is fetched only when the gateway starts. Without the key, the store cannot be
    # checked here.
    if settings.store_url and not settings.store.master_key_reference:
        asyncio.run(run_check())


def _require_store(database: Database) -> None:
    if not database.exists:
        message = f"there is no store at {database.file!r}; hint: penstock init creates one"
        raise SettingsError(message)


def open_database(settings: Settings) -> Database:
    if not settings.store.enabled:
        message = "there is no store, because store.enabled is false"
        raise SettingsError(message)
    url = settings.store_url or Secret(f"sqlite:///{settings.sibling_path(STORE_FILE)}")
    return Database(settings.store, url)


def create_data_dir(settings: Settings) -> None:
    """Creates the folder for everything that the gateway stores, with a mode that lets only its own user read it."""
    if not settings.creates_store:
        return
    path = settings.store.data_dir
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        message = (
            f"cannot create the folder {path!r}: {error.strerror}; hint: set store.data_dir to another folder, or start "
            "with --no-store"
        )
        raise SettingsError(message) from None


async def _migrate(database: Database, sealing: MigrationSealer) -> tuple[str | None, str | None]:
    # Imported only here: the control process also imports this module, and does not need the 13 MB of Alembic and its
    # dependencies.
    from penstock.store.migrate import migrate  # noqa: PLC0415 - see the comment above

    return await migrate(database, sealing=sealing)
