"""Audit entries of refused management requests: 401, 403, and throttled sign-ins. They are bounded in number and stored
separately, so that a flood of them neither fills the store nor hides changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import delete, insert, select

from penstock.errors import PenstockError
from penstock.ids import new_id
from penstock.kit.client_ip import client_address, original_request
from penstock.kit.request_id import request_id
from penstock.schemas import now
from penstock.store.tables import audit_log, organisations

if TYPE_CHECKING:
    from litestar import Request
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.authorization import Caller
    from penstock.metrics import RefusalCounter
    from penstock.store.database import Database

log = logging.getLogger("penstock")

FLUSH_INTERVAL_SECONDS = 1.0
# Maximum number of entries per origin that wait for a flush. Further entries are dropped and counted.
MAX_PENDING = 100
# Maximum number of waiting entries per caller, and per address of unauthenticated clients. So one client cannot
# displace the entries of others.
MAX_PENDING_PER_CLIENT = 20
# Maximum number of stored entries per organisation and origin, and per caller. The oldest entries are deleted.
MAX_STORED, MAX_STORED_PER_CALLER = 1000, 200
# Origin of a refusal: a client without a valid credential, or an authenticated caller.
ANONYMOUS, CALLER = "anonymous", "caller"
# Maximum length of a field of an entry, because a client may send any path.
MAX_FIELD_CHARACTERS = 512


class RefusalLog:
    """Collects refused requests, and writes them to the audit log in the background."""

    def __init__(self, database: Database, counter: RefusalCounter) -> None:
        """Starts without refused requests."""
        self._database = database
        self._counter = counter
        self._pending: dict[str, deque[dict[str, Any]]] = {ANONYMOUS: deque(), CALLER: deque()}
        self._pending_by_client: Counter[tuple[str, str]] = Counter()

    def add(self, request: Request[Any, Any, Any], status: int) -> None:
        """Adds the refusal of a request. Never waits and never fails."""
        caller: Caller | None = cast("dict[str, Any]", request.scope).get("auth")
        origin = CALLER if caller else ANONYMOUS
        pending = self._pending[origin]
        row = _refusal_row(request, status, caller, origin)
        client = (origin, row["user_id"] or row["client_ip"])
        if len(pending) >= MAX_PENDING or self._pending_by_client[client] >= MAX_PENDING_PER_CLIENT:
            self._counter.dropped += 1
            return
        self._pending_by_client[client] += 1
        pending.append(row)

    async def run(self) -> None:
        """Writes refusals until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Writes the collected refusals, and deletes the oldest stored ones beyond `MAX_STORED`."""
        rows = [row for pending in self._pending.values() for row in pending]
        for pending in self._pending.values():
            pending.clear()
        self._pending_by_client.clear()
        if not rows:
            return
        try:
            async with self._database.write_transaction() as connection:
                await self._write(connection, rows)
        except PenstockError as error:
            self._counter.dropped += len(rows)
            log.warning("refused requests are not recorded in the audit log: %s", error)

    async def _write(self, connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
        results = (await connection.execute(select(organisations.c.id).limit(2))).scalars().all()
        # A request without a valid credential names no organisation. It is logged for the only organisation, if there
        # is just one.
        only = results[0] if len(results) == 1 else None
        all_rows: list[dict[str, Any]] = [{**row, "organisation_id": row["organisation_id"] or only} for row in rows]
        known = [row for row in all_rows if row["organisation_id"]]
        self._counter.dropped += len(rows) - len(known)
        if not known:
            return
        await connection.execute(insert(audit_log), known)
        for organisation_id, origin in sorted({(row["organisation_id"], row["refused_from"]) for row in known}):
            await _delete_oldest(connection, organisation_id, origin, MAX_STORED)
        for organisation_id, user_id in sorted(
            {(row["organisation_id"], row["user_id"]) for row in known if row["user_id"]}
        ):
            await _delete_oldest(
                connection, organisation_id, CALLER, MAX_STORED_PER_CALLER, audit_log.c.user_id == user_id
            )


async def _delete_oldest(
    connection: AsyncConnection, organisation_id: str, origin: str, maximum: int, *conditions: ColumnElement[bool]
) -> None:
    is_same = [*conditions, audit_log.c.refused_from == origin, audit_log.c.organisation_id == organisation_id]
    newest_first = select(audit_log.c.id).where(*is_same).order_by(audit_log.c.id.desc())
    last_beyond = await connection.scalar(newest_first.offset(maximum).limit(1))
    if last_beyond is not None:
        await connection.execute(delete(audit_log).where(*is_same, audit_log.c.id <= last_beyond))


def _refusal_row(request: Request[Any, Any, Any], status: int, caller: Caller | None, origin: str) -> dict[str, Any]:
    method, path = original_request(request)
    path = path[:MAX_FIELD_CHARACTERS]
    return {
        "id": new_id(),
        "organisation_id": caller.organisation_id if caller else None,
        "workspace_id": caller.workspace_id if caller else None,
        "user_id": caller.actor_id if caller else None,
        "user_type": ("user" if caller.user_id else "api_key") if caller else ANONYMOUS,
        "key_id": caller.key_id if caller else None,
        "key_name": caller.key_name if caller else None,
        "key_made_by": caller.key_made_by if caller else None,
        "method": method[:32],
        "uri": _printable(path),
        # The query of an unauthenticated client may contain a credential.
        "query_params": "",
        "request_id": request_id(request.scope),
        "client_ip": client_address(request),
        "resource_type": _printable(path.removeprefix("/v1/").removeprefix("admin/").partition("/")[0])[:32],
        "resource_id": None,
        "action": "refuse",
        "response_status_code": status,
        "audited_request_id": None,
        "before": None,
        "after": None,
        "refused_from": origin,
        "created_at": now(),
    }


def _printable(text: str) -> str:
    """Returns the text without characters that the database does not accept."""
    return "".join(character if character.isprintable() else "?" for character in text)
