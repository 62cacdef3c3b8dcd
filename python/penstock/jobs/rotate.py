"""Key rotation. Rotates keys that are due, deletes expired digests and sessions, and warns a day ahead."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, select, text

from penstock.access.audit import RequestInfo
from penstock.access.tenant_rules import MAX_SESSION_SECONDS
from penstock.authorization import Caller
from penstock.errors import PenstockError
from penstock.organisation.keys import rotate_on_schedule
from penstock.schemas import format_timestamp, now
from penstock.store.tables import (
    api_keys,
    change_counter,
    change_log,
    idempotent_responses,
    key_digests,
    sessions,
    sign_in_links,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Services, TenantSession

log = logging.getLogger("penstock")

CHECK_INTERVAL_SECONDS = 60.0
DAY_MS = 24 * 3600 * 1000
# Id of the database lock that a node holds while it rotates keys. A second node waits for the lock, and then finds
# nothing to do.
ADVISORY_LOCK_ID = 0x726F7461
# Maximum number of warnings that are remembered, so that each is logged only once.
MAX_REMEMBERED_WARNINGS = 10_000
# Maximum number of changes for which the store has the changed sections. A node that missed more changes loads the
# complete snapshot.
MAX_STORED_CHANGES = 1000


class KeyRotator:
    """Checks keys once a minute."""

    def __init__(self, services: Services) -> None:
        """Stores the services; no warning is logged yet."""
        self._services = services
        self._warned: dict[tuple[str, str], None] = {}

    async def run(self) -> None:
        """Checks keys until cancelled."""
        while True:
            try:
                await self.check_keys()
            except PenstockError as error:
                log.warning("keys are not rotated: %s", error)
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    async def check_keys(self) -> None:
        """Deletes expired rows, rotates keys that are due, and warns about upcoming rotations."""
        await self._services.prepare_data_key()
        await self._delete_expired()
        rows = await self._read_keys_with_policy()
        for row in rows:
            if _is_due(row):
                await self._rotate_key(row)
        await self._warn_ahead(rows)

    async def _delete_expired(self) -> None:
        async with self._services.database.write_transaction() as connection:
            await _acquire_lock(connection, self._services)
            # This deletion may come late: the snapshot omits expired digests, so the keys are already rejected.
            await connection.execute(delete(key_digests).where(key_digests.c.expires_at <= now()))
            await connection.execute(
                delete(sessions).where(sessions.c.created_at <= now() - MAX_SESSION_SECONDS * 1000)
            )
            await connection.execute(
                delete(idempotent_responses).where(idempotent_responses.c.created_at <= now() - DAY_MS)
            )
            await connection.execute(delete(sign_in_links).where(sign_in_links.c.expires_at <= now()))
            cutoff = select(change_counter.c.number - MAX_STORED_CHANGES).scalar_subquery()
            await connection.execute(delete(change_log).where(change_log.c.number < cutoff))
        self._services.clear_caller_cache()

    async def _read_keys_with_policy(self) -> list[Mapping[str, Any]]:
        names = ("id", "organisation_id", "status", "expires_at", "rotation_policy")
        query = select(*(api_keys.c[name] for name in names)).where(api_keys.c.rotation_policy.is_not(None))
        async with self._services.database.read_connection() as connection:
            return [dict(row) for row in (await connection.execute(query.order_by(api_keys.c.id))).mappings()]

    async def _rotate_key(self, api_key: Mapping[str, Any]) -> None:
        caller = Caller(id=api_key["id"], type="schedule", organisation_id=api_key["organisation_id"])
        request_info = RequestInfo("POST", f"/v1/api-keys/{api_key['id']}/rotate", "", "", "")
        async with self._services.write_session_as(caller, request_info) as session:
            await _acquire_lock(session.connection, self._services)
            row = await session.find(api_keys, api_key["id"])
            # Another node or a person may have rotated the key meanwhile.
            if row is None or not _is_due(row) or await _is_in_transition(session, row["id"]):
                return
            await rotate_on_schedule(session, row)
            log.info("rotated the key %s; hint: POST /v1/api-keys/%s/rotate gives its new text", row["id"], row["id"])

    async def _warn_ahead(self, rows: list[Mapping[str, Any]]) -> None:
        query = select(key_digests.c.api_key_id, key_digests.c.expires_at).where(
            key_digests.c.expires_at > now(), key_digests.c.expires_at <= now() + DAY_MS
        )
        async with self._services.database.read_connection() as connection:
            texts = (await connection.execute(query)).all()
        for expiring in texts:
            self._warn_once(
                "the old text of the key %s ends at %s",
                expiring.api_key_id,
                format_timestamp(expiring.expires_at) or "",
            )
        for row in rows:
            due = row["rotation_policy"]["next_rotation_at"]
            if due and now() < _parse_timestamp_ms(due) <= now() + DAY_MS:
                self._warn_once("the key %s is rotated at %s", row["id"], due)

    def _warn_once(self, message: str, key_id: str, when: str) -> None:
        if (key_id, when) in self._warned:
            return
        if len(self._warned) >= MAX_REMEMBERED_WARNINGS:
            self._warned.pop(next(iter(self._warned)))
        self._warned[key_id, when] = None
        log.warning(message, key_id, when)


async def _acquire_lock(connection: AsyncConnection, services: Services) -> None:
    if not services.database.embedded:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK_ID})


async def _is_in_transition(session: TenantSession, key_id: str) -> bool:
    return await session.count(key_digests, [key_digests.c.api_key_id == key_id, key_digests.c.expires_at > now()]) > 0


def _is_due(row: Mapping[str, Any]) -> bool:
    policy = row["rotation_policy"]
    due = policy and policy["next_rotation_at"]
    alive = row["status"] == "active" and (row["expires_at"] is None or row["expires_at"] > now())
    return bool(due) and alive and _parse_timestamp_ms(due) <= now()


def _parse_timestamp_ms(written: str) -> int:
    return int(datetime.fromisoformat(written).astimezone(UTC).timestamp() * 1000)
