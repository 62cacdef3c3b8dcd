"""Conditional and idempotent requests. If-Match and If-None-Match detect changes by others; Idempotency-Key prevents
repeated execution.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.datastructures import UploadFile
from litestar.enums import RequestEncodingType
from sqlalchemy import insert, select, update

from penstock.errors import ConflictError, PenstockError, ReplayedResponse
from penstock.ids import new_id, sha256_hex
from penstock.kit.json_response import short_hash
from penstock.schemas import field_error, now
from penstock.store.tables import idempotent_responses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar import Request
    from litestar.types import Message, Scope
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Services, TenantSession

log = logging.getLogger("penstock")

MAX_KEY_CHARS = 255
# Maximum size of a response that is stored for replay. Larger responses are not stored; responses to creations are
# smaller.
MAX_STORED_RESPONSE_BYTES = 256 * 1024
WILDCARD_ETAG, QUOTE, WEAK_PREFIX = "*", '"', 'W/"'
READ_CHUNK_BYTES = 64 * 1024
# Lowest response status of a request that changed nothing.
MIN_FAILURE_STATUS = 300


class IdempotencyClaim:
    """Claim of an Idempotency-Key by the request that is executed. Repeated requests get its stored response."""

    def __init__(self, row_id: str, encrypted_for_id: str) -> None:
        """Stores the ids of the claim's row and of the row that its response is encrypted for."""
        self.row_id = row_id
        self.encrypted_for_id = encrypted_for_id
        self.status = 0


def row_etag(row: Mapping[str, Any]) -> str:
    """Returns the entity tag of a row's state. Responses to changes carry it, and If-Match compares it."""
    return f'"{short_hash(msgspec.json.encode(dict(row), order="deterministic"))}"'


def parse_if_match(header: str | None) -> frozenset[str] | None:
    """Parses If-Match into states of a row: tags separated by commas, or `*`. Returns `None` if the header is absent.
    Weak tags match no state.
    """
    if header is None:
        return None
    tags = frozenset(part.strip() for part in header.split(","))
    weak = frozenset(
        part for part in tags if part[:3] == WEAK_PREFIX and part[-1:] == QUOTE and len(part) > len(WEAK_PREFIX)
    )
    tags -= weak
    if not all(part == WILDCARD_ETAG or (len(part) > 1 and part[0] == part[-1] == '"') for part in tags):
        raise field_error("If-Match", f"{header!r} is not allowed: expected a value of the ETag header, or *")
    return frozenset(part if part == WILDCARD_ETAG else f'"{part.strip(QUOTE).partition(".")[0]}"' for part in tags)


async def claim_idempotency_key(session: TenantSession, request: Request[Any, Any, Any]) -> None:
    """Stores the Idempotency-Key in the transaction of the request. Replays the stored response if the request was
    executed before.
    """
    key = request.headers.get("idempotency-key")
    if key is None or request.method != "POST" or "claim" in request.scope["state"]:
        return
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise field_error("Idempotency-Key", f"is not allowed: expected 1 to {MAX_KEY_CHARS} printable characters")
    fingerprint = await _fingerprint_request(request)
    # Keys are scoped to a caller, so that no caller sees the responses of another.
    key_digest = sha256_hex(f"{session.organisation_id} {session.caller.id} {session.caller.user_id} {key}")
    await _replay_response(session, key_digest, fingerprint)
    row = {
        "id": new_id(),
        "organisation_id": session.organisation_id,
        "sha256": key_digest,
        "request_digest": fingerprint,
    }
    await session.connection.execute(insert(idempotent_responses).values({**row, "status": 0, "created_at": now()}))
    request.scope["state"]["claim"] = IdempotencyClaim(row["id"], row["id"])


async def _fingerprint_request(request: Request[Any, Any, Any]) -> str:
    """Returns a hash that identifies the request. Hashes the fields of a form rather than its body, because the
    boundary differs each time.
    """
    digest = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode())
    if request.content_type[0] != RequestEncodingType.MULTI_PART:
        digest.update(await request.body())
        return digest.hexdigest()
    for name, value in (await request.form()).multi_items():
        about = [name, value.filename] if isinstance(value, UploadFile) else [name, value]
        digest.update(msgspec.json.encode(about))
        if isinstance(value, UploadFile):
            await value.seek(0)
            while chunk := await value.read(READ_CHUNK_BYTES):
                digest.update(chunk)
            await value.seek(0)
    return digest.hexdigest()


async def _replay_response(session: TenantSession, key_digest: str, fingerprint: str) -> None:
    row = (
        (
            await session.connection.execute(
                select(idempotent_responses).where(idempotent_responses.c.sha256 == key_digest)
            )
        )
        .mappings()
        .first()
    )
    if row is None:
        return
    if row["request_digest"] != fingerprint:
        message = "this Idempotency-Key was used for another request"
        raise ConflictError(message)
    if row["sealed"] is None:
        message = (
            "this request was made before, and its response is not known yet; hint: check whether the resource exists"
        )
        raise ConflictError(message)
    raise ReplayedResponse((await session.open(row["sealed"], row["id"])).encode())


async def before_send(services: Services, message: Message, scope: Scope) -> None:
    """Adds the entity tag to responses of changes and stores responses of idempotent requests. Delays a response until
    the data plane has applied the change.
    """
    state = scope["state"]
    claimed: IdempotencyClaim | None = state.get("claim")
    if message["type"] == "http.response.start":
        # Adds the tag only to responses of changes: `kit.json_response` has already added it to responses of reads.
        if (etag := state.get("etag")) and message["status"] < MIN_FAILURE_STATUS:
            message["headers"] = [*message.get("headers", ()), (b"etag", etag.encode())]
        if claimed:
            claimed.status = message["status"]
    elif message["type"] == "http.response.body":
        if claimed and 0 < claimed.status < MIN_FAILURE_STATUS:
            del state["claim"]
            if len(message["body"]) <= MAX_STORED_RESPONSE_BYTES:
                await _try_store_response(services, claimed, message["body"])
        # The wait delays the whole response, because its head is sent together with the body. The response is already
        # stored, so a client that retries meanwhile gets it.
        if awaited := state.pop("awaited", None):
            await services.wait_until_applied(awaited)


async def _try_store_response(services: Services, claimed: IdempotencyClaim, body: bytes) -> None:
    try:
        async with services.database.write_transaction() as connection:
            await _store_response(services, connection, claimed, body)
    except PenstockError as error:
        # The change is committed, so the client still gets its response.
        log.warning("the response to an idempotent request is not stored: %s", error)


async def _store_response(
    services: Services, connection: AsyncConnection, claimed: IdempotencyClaim, body: bytes
) -> None:
    sealed = await services.vault.seal(connection, body.decode(), claimed.encrypted_for_id)
    values = {"status": claimed.status, "sealed": sealed}
    await connection.execute(
        update(idempotent_responses).where(idempotent_responses.c.id == claimed.row_id).values(values)
    )
