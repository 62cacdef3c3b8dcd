"""Recognises callers of the management API by the digest of their key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from penstock.caller import Caller
from penstock.errors import UnauthorisedError
from penstock.kit.ids import digest
from penstock.kit.record import now
from penstock.store.tables import api_keys, key_digests, members, users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.database import Database

# How long a key that was revoked on another node may still be good here.
SECONDS = 1.0
MOST = 10_000

KEY = select(api_keys, key_digests.c.expires_at.label("digest_expires_at")).join(
    key_digests, key_digests.c.api_key_id == api_keys.c.id
)


class Identities:
    """Looks keys up, and remembers those it found for a moment."""

    def __init__(self, database: Database) -> None:
        """Know nobody yet."""
        self._database = database
        self._known: dict[str, tuple[float, Caller]] = {}

    async def of(self, key: str) -> Caller:
        """Say whose key this is."""
        wanted = digest(key)
        found = self._known.get(wanted)
        if found and found[0] > time.monotonic():
            return found[1]
        async with self._database.reading() as connection:
            caller = await _look_up(connection, wanted)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[wanted] = (time.monotonic() + SECONDS, caller)
        return caller

    def forget(self) -> None:
        """Look everyone up again: something was changed here."""
        self._known.clear()


async def _look_up(connection: AsyncConnection, wanted: str) -> Caller:
    row = (await connection.execute(KEY.where(key_digests.c.sha256 == wanted))).mappings().first()
    if row is None:
        message = "this gateway key is not known"
        raise UnauthorisedError(message)
    ends = [end for end in (row["expires_at"], row["digest_expires_at"]) if end is not None]
    if row["status"] == "expired" or any(end <= now() for end in ends):
        message = "this gateway key has expired"
        raise UnauthorisedError(message)
    person: Mapping[str, Any] = await _person(connection, row["user_id"]) if row["user_id"] else {}
    return Caller(
        id=row["id"],
        type=row["type"],
        organisation_id=row["organisation_id"],
        workspace_id=row["workspace_id"],
        user_id=row["user_id"],
        scopes=frozenset(row["scopes"]),
        **person,
    )


async def _person(connection: AsyncConnection, user_id: str) -> Mapping[str, Any]:
    role = await connection.scalar(select(users.c.role).where(users.c.id == user_id))
    found = await connection.execute(select(members.c.workspace_id, members.c.role).where(members.c.user_id == user_id))
    return {"org_role": role, "roles": dict(found.tuples().all())}
