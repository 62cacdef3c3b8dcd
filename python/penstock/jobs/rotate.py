"""Gives keys that are due a new text, forgets texts and sessions that are over, and warns a day ahead."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, select, text

from penstock.authorization import Caller
from penstock.errors import PenstockError
from penstock.kit.audit import Asked
from penstock.kit.keys import rotate_unseen
from penstock.kit.rules import LONGEST_SESSION
from penstock.schemas import moment, now
from penstock.store.tables import answers, api_keys, changed, changes, key_digests, sessions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Desk, Office

log = logging.getLogger("penstock")

INTERVAL = 60.0
DAY = 24 * 3600 * 1000
# Two nodes that look at once: the second waits, and finds nothing to do.
LOCK = 0x726F7461
# What was warned of is remembered, so that it is said once.
MOST_WARNED = 10_000
# Of so many changes it is known where they were; who missed more gathers everything.
MOST_CHANGES = 1000


class Rotator:
    """Looks once a minute."""

    def __init__(self, office: Office) -> None:
        """Have warned of nothing yet."""
        self._office = office
        self._warned: dict[tuple[str, str], None] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except PenstockError as error:
                log.warning("keys are not rotated: %s", error)
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Forget what is over, rotate what is due, warn of what will be."""
        await self._office.ready()
        await self._forget()
        rows = await self._with_policy()
        for row in rows:
            if _is_due(row):
                await self._rotate(row)
        await self._warn(rows)

    async def _forget(self) -> None:
        async with self._office.database.writing() as connection:
            await _only_one(connection, self._office)
            # Nobody is let in with them any more: whoever gathers leaves them out from their end on.
            await connection.execute(delete(key_digests).where(key_digests.c.expires_at <= now()))
            await connection.execute(delete(sessions).where(sessions.c.created_at <= now() - LONGEST_SESSION * 1000))
            await connection.execute(delete(answers).where(answers.c.created_at <= now() - DAY))
            known = select(changes.c.number - MOST_CHANGES).scalar_subquery()
            await connection.execute(delete(changed).where(changed.c.number < known))
        self._office.forget()

    async def _with_policy(self) -> list[Mapping[str, Any]]:
        names = ("id", "organisation_id", "status", "expires_at", "rotation_policy")
        query = select(*(api_keys.c[name] for name in names)).where(api_keys.c.rotation_policy.is_not(None))
        async with self._office.database.reading() as connection:
            return [dict(row) for row in (await connection.execute(query.order_by(api_keys.c.id))).mappings()]

    async def _rotate(self, seen: Mapping[str, Any]) -> None:
        caller = Caller(id=seen["id"], type="schedule", organisation_id=seen["organisation_id"])
        asked = Asked("POST", f"/v1/api-keys/{seen['id']}/rotate", "", "", "")
        async with self._office.writing_as(caller, asked) as desk:
            await _only_one(desk.connection, self._office)
            row = await desk.find(api_keys, seen["id"])
            # Another node, or a person, may have been here meanwhile.
            if row is None or not _is_due(row) or await _in_transition(desk, row["id"]):
                return
            await rotate_unseen(desk, row)
            log.info("rotated the key %s; hint: POST /v1/api-keys/%s/rotate gives its new text", row["id"], row["id"])

    async def _warn(self, rows: list[Mapping[str, Any]]) -> None:
        soon = select(key_digests.c.api_key_id, key_digests.c.expires_at).where(
            key_digests.c.expires_at > now(), key_digests.c.expires_at <= now() + DAY
        )
        async with self._office.database.reading() as connection:
            texts = (await connection.execute(soon)).all()
        for ending in texts:
            self._say("the old text of the key %s ends at %s", ending.api_key_id, moment(ending.expires_at) or "")
        for row in rows:
            due = row["rotation_policy"]["next_rotation_at"]
            if due and now() < _at(due) <= now() + DAY:
                self._say("the key %s is rotated at %s", row["id"], due)

    def _say(self, message: str, key_id: str, when: str) -> None:
        if (key_id, when) in self._warned:
            return
        if len(self._warned) >= MOST_WARNED:
            self._warned.pop(next(iter(self._warned)))
        self._warned[key_id, when] = None
        log.warning(message, key_id, when)


async def _only_one(connection: AsyncConnection, office: Office) -> None:
    if not office.database.embedded:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


async def _in_transition(desk: Desk, key_id: str) -> bool:
    return await desk.count(key_digests, [key_digests.c.api_key_id == key_id, key_digests.c.expires_at > now()]) > 0


def _is_due(row: Mapping[str, Any]) -> bool:
    policy = row["rotation_policy"]
    due = policy and policy["next_rotation_at"]
    alive = row["status"] == "active" and (row["expires_at"] is None or row["expires_at"] > now())
    return bool(due) and alive and _at(due) <= now()


def _at(written: str) -> int:
    return int(datetime.fromisoformat(written).astimezone(UTC).timestamp() * 1000)
