"""Under which conditions a request is done: while nobody else changed it (If-Match, If-None-Match), and once (Idempotency-Key)."""

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
# Larger answers to creates do not exist; should one come, it is not kept.
MAX_STORED_RESPONSE_BYTES = 256 * 1024
ANY, QUOTE, WEAK = "*", '"', 'W/"'
READ_CHUNK_BYTES = 64 * 1024
# From this status on nothing was done.
MIN_FAILURE_STATUS = 300


class IdempotencyClaim:
    """The one time that a request with an Idempotency-Key is done."""

    def __init__(self, row_id: str, owner: str) -> None:
        """Know the row."""
        self.row_id = row_id
        self.owner = owner
        self.status = 0


def row_etag(row: Mapping[str, Any]) -> str:
    """Say which state of a row this is, as an entity tag: what a change is answered with, and If-Match goes by."""
    return f'"{short_hash(msgspec.json.encode(dict(row), order="deterministic"))}"'


def parse_if_match(header: str | None) -> frozenset[str] | None:
    """Read If-Match as states of a row: tags with commas, or any; nothing where it was not sent. A weak tag names none."""
    if header is None:
        return None
    tags = frozenset(part.strip() for part in header.split(","))
    weak = frozenset(part for part in tags if part[:3] == WEAK and part[-1:] == QUOTE and len(part) > len(WEAK))
    tags -= weak
    if not all(part == ANY or (len(part) > 1 and part[0] == part[-1] == '"') for part in tags):
        raise field_error("If-Match", f"{header!r} is not allowed: expected what ETag said, or *")
    return frozenset(part if part == ANY else f'"{part.strip(QUOTE).partition(".")[0]}"' for part in tags)


async def claim_idempotency_key(desk: TenantSession, request: Request[Any, Any, Any]) -> None:
    """Note that this is done, in the transaction that does it; what was done before is answered as it was then."""
    key = request.headers.get("idempotency-key")
    if key is None or request.method != "POST" or "claim" in request.scope["state"]:
        return
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise field_error("Idempotency-Key", f"is not allowed: expected 1 to {MAX_KEY_CHARS} printable characters")
    asked = await _fingerprint_request(request)
    # Of one caller: what another did under the same name is none of its business.
    whose = sha256_hex(f"{desk.organisation_id} {desk.caller.id} {desk.caller.user_id} {key}")
    await _replay_response(desk, whose, asked)
    row = {"id": new_id(), "organisation_id": desk.organisation_id, "sha256": whose, "asked": asked}
    await desk.connection.execute(insert(idempotent_responses).values({**row, "status": 0, "created_at": now()}))
    request.scope["state"]["claim"] = IdempotencyClaim(row["id"], row["id"])


async def _fingerprint_request(request: Request[Any, Any, Any]) -> str:
    """Tell this request from others; of a form its fields, whose borders are others each time."""
    asked = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode())
    if request.content_type[0] != RequestEncodingType.MULTI_PART:
        asked.update(await request.body())
        return asked.hexdigest()
    for name, value in (await request.form()).multi_items():
        about = [name, value.filename] if isinstance(value, UploadFile) else [name, value]
        asked.update(msgspec.json.encode(about))
        if isinstance(value, UploadFile):
            await value.seek(0)
            while piece := await value.read(READ_CHUNK_BYTES):
                asked.update(piece)
            await value.seek(0)
    return asked.hexdigest()


async def _replay_response(desk: TenantSession, whose: str, asked: str) -> None:
    found = (
        (await desk.connection.execute(select(idempotent_responses).where(idempotent_responses.c.sha256 == whose)))
        .mappings()
        .first()
    )
    if found is None:
        return
    if found["asked"] != asked:
        message = "this Idempotency-Key was used for another request"
        raise ConflictError(message)
    if found["sealed"] is None:
        message = "this request was made before, and its answer is not known yet; hint: look whether it is there"
        raise ConflictError(message)
    raise ReplayedResponse((await desk.open(found["sealed"], found["id"])).encode())


async def before_send(office: Services, message: Message, scope: Scope) -> None:
    """Add its tag to a change, keep the answer to what is done once, and hold it until the data plane goes by the change."""
    state = scope["state"]
    claimed: IdempotencyClaim | None = state.get("claim")
    if message["type"] == "http.response.start":
        # What is read has one of its own by now: `kit.answer`.
        if (known := state.get("etag")) and message["status"] < MIN_FAILURE_STATUS:
            message["headers"] = [*message.get("headers", ()), (b"etag", known.encode())]
        if claimed:
            claimed.status = message["status"]
    elif message["type"] == "http.response.body":
        if claimed and 0 < claimed.status < MIN_FAILURE_STATUS:
            del state["claim"]
            if len(message["body"]) <= MAX_STORED_RESPONSE_BYTES:
                await _try_store_response(office, claimed, message["body"])
        # Nothing of an answer goes before its body. It was kept: whoever asks again meanwhile is answered.
        if awaited := state.pop("awaited", None):
            await office.wait_until_applied(awaited)


async def _try_store_response(office: Services, claimed: IdempotencyClaim, body: bytes) -> None:
    try:
        async with office.database.write_transaction() as connection:
            await _store_response(office, connection, claimed, body)
    except PenstockError as error:
        # It is done all the same, and whoever asks again learns that.
        log.warning("the answer to a request that is done once is not kept: %s", error)


async def _store_response(
    office: Services, connection: AsyncConnection, claimed: IdempotencyClaim, body: bytes
) -> None:
    sealed = await office.vault.seal(connection, body.decode(), claimed.owner)
    values = {"status": claimed.status, "sealed": sealed}
    await connection.execute(
        update(idempotent_responses).where(idempotent_responses.c.id == claimed.row_id).values(values)
    )
