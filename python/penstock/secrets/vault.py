"""Encryption of stored credentials. AES-256-GCM with data keys, which are themselves encrypted with the master key."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import insert, inspect, select, update

from penstock.errors import DecryptionError, SettingsError, UnavailableError
from penstock.ids import new_id
from penstock.schemas import now
from penstock.settings import MASTER_KEY_FILE
from penstock.store.tables import data_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings import Settings
    from penstock.store.database import Database

LENGTH, NONCE = 32, 12
# Age at which a data key stops encrypting. It can still decrypt afterwards.
DATA_KEY_ROTATION_MS = 90 * 24 * 3600 * 1000


class MissingMasterKeyError(SettingsError):
    """No master key is configured, and no file contains one."""


class MasterKeys:
    """Master keys. The first one encrypts; all of them decrypt."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Names each key by its digest, which is stored with the ciphertext to select the key for decryption."""
        self._keys = {hashlib.sha256(key).hexdigest()[:16]: AESGCM(key) for key in keys}
        self.first = next(iter(self._keys))
        # Derived from the master keys, so that no key is used for both signatures and encryption.
        self._signing_keys = [hmac.digest(key, b"penstock signatures", "sha256") for key in keys]

    def seal(self, content: bytes, purpose: str) -> bytes:
        """Encrypts content, bound to a purpose. Decryption with another purpose fails."""
        nonce = os.urandom(NONCE)
        return self.first.encode() + nonce + self._keys[self.first].encrypt(nonce, content, purpose.encode())

    def sign(self, text: str, purpose: str) -> str:
        """Returns the signature of a text for a purpose: HMAC-SHA256 in hexadecimal."""
        return _sign(self._signing_keys[0], text, purpose)

    def has_signed(self, signature: str, text: str, purpose: str) -> bool:
        """Returns true if one of the keys made this signature."""
        signature_bytes = signature.encode()
        return any(
            hmac.compare_digest(_sign(key, text, purpose).encode(), signature_bytes) for key in self._signing_keys
        )

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Decrypts content that one of the keys encrypted. Raises SettingsError if the key is missing or the content
        was changed.
        """
        name, nonce, content = sealed[:16].decode("ascii", "replace"), sealed[16 : 16 + NONCE], sealed[16 + NONCE :]
        if name not in self._keys:
            message = (
                "it was encrypted with another master key; hint: copy penstock.key from the first node, or from the "
                "backup of the store; if the master key was replaced, add that key to store.master_key, after the new one"
            )
            raise SettingsError(message)
        try:
            return self._keys[name].decrypt(nonce, content, purpose.encode())
        except InvalidTag:
            message = "the encrypted content was changed"
            raise SettingsError(message) from None


def _sign(key: bytes, text: str, purpose: str) -> str:
    return hmac.digest(key, f"{purpose}\0{text}".encode(), "sha256").hex()


class Vault:
    """Encrypts and decrypts the credentials of database rows."""

    def __init__(self, master: MasterKeys) -> None:
        """Starts without data keys; they are loaded on first use."""
        self._master = master
        self._keys: dict[str, AESGCM] = {}
        # Id and creation time of the newest data key, which encrypts new credentials.
        self._newest: tuple[str, int] | None = None
        # True if all data keys are encrypted with the first master key.
        self._is_current = False
        self._turn = asyncio.Lock()

    def sign(self, text: str, purpose: str) -> str:
        """Returns the signature of a text, such as the link to the file of a log export."""
        return self._master.sign(text, purpose)

    def has_signed(self, signature: str, text: str, purpose: str) -> bool:
        """Returns true if the gateway made this signature."""
        return self._master.has_signed(signature, text, purpose)

    async def load(self, connection: AsyncConnection) -> None:
        """Loads the data keys from the database."""
        for row in await _fetch_data_keys(connection):
            self._add_data_key(row, self._open_data_key(row))

    async def renew_data_keys(self, database: Database) -> None:
        """Creates a new data key if the newest is too old, and re-encrypts all data keys with the first master key.

        Uses its own transaction: after a rollback, this vault must not have a data key that is not in the database.
        """
        if self._is_up_to_date():
            return
        async with self._turn:
            if self._is_up_to_date():
                return
            new_vault = Vault(self._master)
            async with database.write_transaction() as connection:
                await new_vault.renew_data_keys_in(connection)
            # The transaction is committed, so the keys may be used.
            self._keys |= new_vault._keys
            self._newest, self._is_current = new_vault._newest, new_vault._is_current

    async def renew_data_keys_in(self, connection: AsyncConnection) -> None:
        """Renews the data keys in the caller's transaction. The vault must not be used after that transaction is rolled
        back.
        """
        if self._is_up_to_date():
            return
        for row in await _fetch_data_keys(connection):
            key = self._open_data_key(row)
            self._add_data_key(row, key)
            if row["master"] != self._master.first:
                change = {"master": self._master.first, "sealed": self._seal_data_key(row["id"], key)}
                await connection.execute(update(data_keys).where(data_keys.c.id == row["id"]).values(change))
        self._is_current = True
        if self._is_up_to_date():
            return
        key_id, key = new_id(), os.urandom(LENGTH)
        new_row: dict[str, Any] = {"id": key_id, "master": self._master.first, "created_at": now()}
        new_row["sealed"] = self._seal_data_key(key_id, key)
        await connection.execute(insert(data_keys).values(new_row))
        self._add_data_key(new_row, key)

    async def seal(self, connection: AsyncConnection, text: str, owner: str) -> str:
        """Encrypts a credential with the newest data key, bound to the row `owner`. Decryption for another row fails."""
        if self._newest is None:
            await self.load(connection)
        if self._newest is None:
            message = "there is no data key to encrypt with yet"
            raise UnavailableError(message)
        key_id, _ = self._newest
        nonce = os.urandom(NONCE)
        sealed = self._keys[key_id].encrypt(nonce, text.encode(), owner.encode())
        return f"{key_id}.{base64.b64encode(nonce + sealed).decode()}"

    async def open(self, connection: AsyncConnection, sealed: str, owner: str) -> str:
        """Decrypts a credential of the row `owner`. Raises DecryptionError if that fails."""
        key_id, _, rest = sealed.partition(".")
        if key_id not in self._keys:
            await self.load(connection)
        try:
            content = base64.b64decode(rest)
            return self._keys[key_id].decrypt(content[:NONCE], content[NONCE:], owner.encode()).decode()
        except (KeyError, ValueError, InvalidTag):
            message = "a stored credential cannot be decrypted"
            raise DecryptionError(message) from None

    def _is_up_to_date(self) -> bool:
        return self._is_current and self._newest is not None and self._newest[1] > now() - DATA_KEY_ROTATION_MS

    def _open_data_key(self, row: RowMapping | dict[str, Any]) -> bytes:
        return self._master.open(base64.b64decode(row["sealed"]), row["id"])

    def _add_data_key(self, row: RowMapping | dict[str, Any], key: bytes) -> None:
        self._keys[row["id"]] = AESGCM(key)
        self._newest = max(self._newest or ("", 0), (row["id"], row["created_at"]))

    def _seal_data_key(self, key_id: str, key: bytes) -> str:
        return base64.b64encode(self._master.seal(key, key_id)).decode()


async def _fetch_data_keys(connection: AsyncConnection) -> Sequence[RowMapping]:
    return (await connection.execute(select(data_keys).order_by(data_keys.c.id))).mappings().all()


async def has_data_keys(database: Database) -> bool:
    """Returns true if the store has data keys, which only the master key that encrypted them can decrypt."""
    if not database.exists:
        return False
    async with database.read_connection() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(data_keys.name)):
            return False
        return await connection.scalar(select(data_keys.c.id).limit(1)) is not None


def load_master_keys(settings: Settings, *, make: bool = False) -> MasterKeys:
    """Loads the master keys from the settings or the key file. With `make`, creates the file if it does not exist."""
    if settings.store.master_key:
        return _parse_master_keys(settings.store.master_key.reveal(), "store.master_key")
    path = settings.store.master_key_file or settings.sibling_path(MASTER_KEY_FILE)
    if make and not os.path.exists(path):  # noqa: PTH110 - pathlib would slow down each start
        _create_key_file(path)
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
            return _parse_master_keys(file.read(), path)
    except OSError as error:
        message = (
            f"no master key: {path!r}: {error.strerror}; hint: penstock init creates it on the first node; on other nodes, "
            "and after a restore, copy the file from there, or set PENSTOCK_STORE_MASTER_KEY"
        )
        raise MissingMasterKeyError(message) from None


def _create_key_file(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(base64.b64encode(os.urandom(LENGTH)) + b"\n")
        opened.flush()
        os.fsync(opened.fileno())


def _parse_master_keys(text: str, setting_name: str) -> MasterKeys:
    try:
        keys = [base64.b64decode(part.strip(), validate=True) for part in text.split(",") if part.strip()]
    except (binascii.Error, ValueError):
        keys = []
    if not keys or any(len(key) != LENGTH for key in keys):
        message = (
            f"{setting_name} is not allowed: expected {LENGTH} bytes as base64; hint: openssl rand -base64 {LENGTH}"
        )
        raise SettingsError(message)
    return MasterKeys(keys)
