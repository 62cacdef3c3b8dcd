"""Seals credentials: AES-256-GCM with data keys that are themselves sealed with the master key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import insert, select, update

from penstock.errors import SettingsError, UnavailableError
from penstock.kit.ids import new_id
from penstock.kit.record import now
from penstock.settings import MASTER_KEY_FILE
from penstock.store.tables import data_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings import Settings

LENGTH, NONCE = 32, 12
# A data key seals for this long; afterwards it only opens.
YOUNG_MS = 90 * 24 * 3600 * 1000


class Master:
    """The master keys: the first seals, all open."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Name each by its digest, so that what it sealed can say which one opens it."""
        self._keys = {hashlib.sha256(key).hexdigest()[:16]: AESGCM(key) for key in keys}
        self.first = next(iter(self._keys))

    def seal(self, content: bytes, purpose: str) -> bytes:
        """Seal for a purpose; it opens for no other."""
        nonce = os.urandom(NONCE)
        return self.first.encode() + nonce + self._keys[self.first].encrypt(nonce, content, purpose.encode())

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Open what one of the keys sealed."""
        name, nonce, content = sealed[:16].decode("ascii", "replace"), sealed[16 : 16 + NONCE], sealed[16 + NONCE :]
        if name not in self._keys:
            message = "it was sealed with another master key; hint: add that one to store.master_key, after the new one"
            raise SettingsError(message)
        try:
            return self._keys[name].decrypt(nonce, content, purpose.encode())
        except InvalidTag:
            message = "what was sealed has been changed since"
            raise SettingsError(message) from None


class Vault:
    """Seals and opens the credentials of rows."""

    def __init__(self, master: Master) -> None:
        """Know no data key yet."""
        self._master = master
        self._keys: dict[str, AESGCM] = {}
        self._young: str | None = None

    async def load(self, connection: AsyncConnection) -> None:
        """Read the data keys; seal them anew where another master key did."""
        rows = (await connection.execute(select(data_keys).order_by(data_keys.c.id))).mappings().all()
        for row in rows:
            key = self._master.open(base64.b64decode(row["sealed"]), row["id"])
            self._keys[row["id"]] = AESGCM(key)
            if row["master"] != self._master.first:
                change = {"master": self._master.first, "sealed": self._sealed(row["id"], key)}
                await connection.execute(update(data_keys).where(data_keys.c.id == row["id"]).values(change))
        last = rows[-1] if rows else None
        self._young = last["id"] if last and last["created_at"] > now() - YOUNG_MS else None

    async def renew(self, connection: AsyncConnection) -> None:
        """Make a data key: what is sealed from now on is sealed with it."""
        key_id, key = new_id(), os.urandom(LENGTH)
        row = {"id": key_id, "master": self._master.first, "sealed": self._sealed(key_id, key), "created_at": now()}
        await connection.execute(insert(data_keys).values(row))
        self._keys[key_id] = AESGCM(key)
        self._young = key_id

    async def seal(self, connection: AsyncConnection, text: str, owner: str) -> str:
        """Seal a credential of a row; in another row it does not open."""
        if self._young is None:
            await self.load(connection)
        if self._young is None:
            await self.renew(connection)
        key_id = self._young or ""
        nonce = os.urandom(NONCE)
        sealed = self._keys[key_id].encrypt(nonce, text.encode(), owner.encode())
        return f"{key_id}.{base64.b64encode(nonce + sealed).decode()}"

    async def open(self, connection: AsyncConnection, sealed: str, owner: str) -> str:
        """Open a credential of a row."""
        key_id, _, rest = sealed.partition(".")
        if key_id not in self._keys:
            await self.load(connection)
        content = base64.b64decode(rest)
        try:
            return self._keys[key_id].decrypt(content[:NONCE], content[NONCE:], owner.encode()).decode()
        except (KeyError, InvalidTag):
            message = "a stored credential cannot be opened"
            raise UnavailableError(message) from None

    def _sealed(self, key_id: str, key: bytes) -> str:
        return base64.b64encode(self._master.seal(key, key_id)).decode()


def master(settings: Settings, *, make: bool = False) -> Master:
    """Find the master key, or make one beside an embedded store."""
    if settings.store.master_key:
        return _read(settings.store.master_key.reveal(), "store.master_key")
    path = settings.store.master_key_file or settings.beside(MASTER_KEY_FILE)
    if make and not os.path.exists(path):  # noqa: PTH110
        _make(path)
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return _read(file.read(), path)
    except OSError as error:
        message = f"no master key: {path!r}: {error.strerror}; hint: penstock init, or PENSTOCK_STORE_MASTER_KEY"
        raise SettingsError(message) from None


def _make(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(base64.b64encode(os.urandom(LENGTH)) + b"\n")
        opened.flush()
        os.fsync(opened.fileno())


def _read(text: str, where: str) -> Master:
    try:
        keys = [base64.b64decode(part.strip(), validate=True) for part in text.split(",") if part.strip()]
    except (binascii.Error, ValueError):
        keys = []
    if not keys or any(len(key) != LENGTH for key in keys):
        message = f"{where} is not allowed: expected {LENGTH} bytes as base64; hint: openssl rand -base64 {LENGTH}"
        raise SettingsError(message)
    return Master(keys)
