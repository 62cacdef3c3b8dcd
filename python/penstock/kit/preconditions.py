"""Under which conditions a request is done: while nobody else changed it (If-Match, If-None-Match), and once (Idempotency-Key)."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.datastructures import UploadFile
from litestar.enums import RequestEncodingType
from sqlalchemy import insert, select, update

from penstock.errors import ConflictError, PenstockError, Replayed
from penstock.ids import digest, new_id
from penstock.kit.json_response import short
from penstock.schemas import now, refuse
from penstock.store.tables import answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar import Request
    from litestar.types import Message, Scope
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Desk, Office

log = logging.getLogger("penstock")

LONGEST_KEY = 255
# Larger answers to creates do not exist; should one come, it is not kept.
LARGEST_ANSWER = 256 * 1024
ANY, QUOTE, WEAK = "*", '"', 'W/"'
PIECE = 64 * 1024
# From this status on nothing was done.
REFUSED = 300


class Claim:
    """The one time that a request with an Idempotency-Key is done."""

    def __init__(self, row_id: str, owner: str) -> None:
        """Know the row."""
        self.row_id = row_id
        self.owner = owner
        self.status = 0


def tag(row: Mapping[str, Any]) -> str:
    """Say which state of a row this is, as an entity tag: what a change is answered with, and If-Match goes by."""
    return f'"{short(msgspec.json.encode(dict(row), order="deterministic"))}"'


def expected(header: str | None) -> frozenset[str] | None:
    """Read If-Match as states of a row: tags with commas, or any; nothing where it was not sent. A weak tag names none."""
    if header is None:
        return None
    tags = frozenset(part.strip() for part in header.split(","))
    weak = frozenset(part for part in tags if part[:3] == WEAK and part[-1:] == QUOTE and len(part) > len(WEAK))
    tags -= weak
    if not all(part == ANY or (len(part) > 1 and part[0] == part[-1] == '"') for part in tags):
        raise refuse("If-Match", f"{header!r} is not allowed: expected what ETag said, or *")
    return frozenset(part if part == ANY else f'"{part.strip(QUOTE).partition(".")[0]}"' for part in tags)


async def claim(desk: Desk, request: Request[Any, Any, Any]) -> None:
    """Note that this is done, in the transaction that does it; what was done before is answered as it was then."""
    key = request.headers.get("idempotency-key")
    if key is None or request.method != "POST" or "claim" in request.scope["state"]:
        return
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise refuse("Idempotency-Key", f"is not allowed: expected 1 to {LONGEST_KEY} printable characters")
    asked = await _asked(request)
    # Of one caller: what another did under the same name is none of its business.
    whose = digest(f"{desk.organisation_id} {desk.caller.id} {desk.caller.user_id} {key}")
    await _replay(desk, whose, asked)
    row = {"id": new_id(), "organisation_id": desk.organisation_id, "sha256": whose, "asked": asked}
    await desk.connection.execute(insert(answers).values({**row, "status": 0, "created_at": now()}))
    request.scope["state"]["claim"] = Claim(row["id"], row["id"])


async def _asked(request: Request[Any, Any, Any]) -> str:
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
            while piece := await value.read(PIECE):
                asked.update(piece)
            await value.seek(0)
    return asked.hexdigest()


async def _replay(desk: Desk, whose: str, asked: str) -> None:
    found = (await desk.connection.execute(select(answers).where(answers.c.sha256 == whose))).mappings().first()
    if found is None:
        return
    if found["asked"] != asked:
        message = "this Idempotency-Key was used for another request"
        raise ConflictError(message)
    if found["sealed"] is None:
        message = "this request was made before, and its answer is not known yet; hint: look whether it is there"
        raise ConflictError(message)
    raise Replayed((await desk.open(found["sealed"], found["id"])).encode())


async def before_send(office: Office, message: Message, scope: Scope) -> None:
    """Add its tag to a change, keep the answer to what is done once, and hold it until the data plane goes by the change."""
    state = scope["state"]
    claimed: Claim | None = state.get("claim")
    if message["type"] == "http.response.start":
        # What is read has one of its own by now: `kit.answer`.
        if (known := state.get("etag")) and message["status"] < REFUSED:
            message["headers"] = [*message.get("headers", ()), (b"etag", known.encode())]
        if claimed:
            claimed.status = message["status"]
    elif message["type"] == "http.response.body":
        if claimed and 0 < claimed.status < REFUSED:
            del state["claim"]
            if len(message["body"]) <= LARGEST_ANSWER:
                await _try_to_keep(office, claimed, message["body"])
        # Nothing of an answer goes before its body. It was kept: whoever asks again meanwhile is answered.
        if awaited := state.pop("awaited", None):
            await office.known(awaited)


async def _try_to_keep(office: Office, claimed: Claim, body: bytes) -> None:
    try:
        async with office.database.writing() as connection:
            await _keep(office, connection, claimed, body)
    except PenstockError as error:
        # It is done all the same, and whoever asks again learns that.
        log.warning("the answer to a request that is done once is not kept: %s", error)


async def _keep(office: Office, connection: AsyncConnection, claimed: Claim, body: bytes) -> None:
    sealed = await office.vault.seal(connection, body.decode(), claimed.owner)
    values = {"status": claimed.status, "sealed": sealed}
    await connection.execute(update(answers).where(answers.c.id == claimed.row_id).values(values))
