"""Files that the gateway keeps itself, in OpenAI's shapes: what batches read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import delete, get, post
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.enums import RequestEncodingType
from litestar.params import Body, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from penstock.authorization import needs
from penstock.batches import files as kit
from penstock.batches.files import File, shown
from penstock.batches.model import ACTIVE
from penstock.blobs.folder import PIECE, Folder
from penstock.errors import PenstockError, Replayed
from penstock.kit import pages
from penstock.kit.pages import After, Page
from penstock.kit.tenant_session import Work
from penstock.kit.text_validation import NUL, WITH_NUL
from penstock.schemas import now, refuse
from penstock.settings import Settings
from penstock.store.tables import batches, files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.store.tenant import Row

TAGS = ["Files"]
SCOPE = needs("completions.write")
MOST = 10_000
SHORTEST_LIFE = 3600
# More of them are no number of seconds that anybody means.
DIGITS = 12

FileId = Annotated[str, PathParameter(description="id of the file: `gw_file_…`")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="how many at most")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="direction; default: newest first")]
PurposeAsked = Annotated[str | None, QueryParameter(description="only those for this")]


class Upload(msgspec.Struct, kw_only=True):
    """A file as a form brings it."""

    file: Annotated[UploadFile, Meta(description="what is in it, with its name")]
    purpose: Annotated[
        Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"], Meta(description="what it is for")
    ]
    anchor: Annotated[str | None, Meta(description="`created_at`")] = msgspec.field(
        name="expires_after[anchor]", default=None
    )
    seconds: Annotated[str | None, Meta(description="its age in seconds when it is deleted")] = msgspec.field(
        name="expires_after[seconds]", default=None
    )


class FileList(Page, frozen=True, kw_only=True):
    """Files of the workspace."""

    data: Annotated[list[File], Meta(description="those of this page")]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone."""

    id: Annotated[str, Meta(description="its id")]
    deleted: Annotated[bool, Meta(description="true")] = True
    object: Annotated[str, Meta(description="`file`")] = "file"


# The edge bounds bodies by `limits.body_bytes`.
@post("/", status_code=200, guards=[SCOPE], request_max_body_size=None, summary="Upload file", tags=TAGS)
async def upload(
    data: Annotated[Upload, Body(media_type=RequestEncodingType.MULTI_PART)],
    work: NamedDependency[Work],
    settings: NamedDependency[Settings],
    blobs: NamedDependency[Folder],
) -> File:
    """Keep a file for the workspace of the key, until it is deleted or too old."""
    life = _life(data, settings.files.keep_seconds)
    name = data.file.filename or "file"
    if NUL in name:
        raise refuse("file", f"its name {WITH_NUL}")
    row = kit.new_row(data.purpose, name, life, created_by=work.caller.actor)
    async with work.reading() as desk:
        _ = desk.workspace
        await kit.check_room(desk, settings, _length(data.file))
    row["bytes"] = await blobs.put(row["id"], _pieces(data.file))
    try:
        async with work.writing() as desk:
            await desk.insert(files, row)
    except (PenstockError, Replayed):
        await blobs.delete(row["id"])
        raise
    return shown(row)


def _life(data: Upload, longest: int) -> int:
    if data.anchor is None and data.seconds is None:
        return longest
    if data.anchor != "created_at":
        raise refuse("expires_after[anchor]", f"{data.anchor!r} is not allowed: expected created_at")
    given = data.seconds or ""
    if not given.isdecimal() or len(given) > DIGITS or not SHORTEST_LIFE <= int(given) <= longest:
        raise refuse("expires_after[seconds]", f"{given!r} is not allowed: expected {SHORTEST_LIFE} to {longest}")
    return int(given)


def _length(file: UploadFile) -> int:
    length = file.file.seek(0, 2)
    file.file.seek(0)
    return length


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(PIECE):
        yield piece


@get("/", guards=[SCOPE], summary="List files", tags=TAGS)
async def index(
    work: NamedDependency[Work],
    purpose: PurposeAsked = None,
    limit: Limit = MOST,
    after: After = None,
    order: Order = "desc",
) -> FileList:
    """List the files of the workspace."""
    conditions = (files.c.expires_at > now(), *((files.c.purpose == purpose,) if purpose else ()))
    last = kit.inner(kit.FILE, after) if after else None
    wanted = pages.Wanted(limit, last, order == "desc", conditions)
    async with work.reading() as desk:
        return FileList.of(await pages.rows(desk, files, wanted), limit, shown)


@get("/{file_id:str}", guards=[SCOPE], summary="Get file", tags=TAGS)
async def show(file_id: FileId, work: NamedDependency[Work]) -> File:
    """Show one file."""
    async with work.reading() as desk:
        row = await kit.find(desk, file_id)
        desk.address(files, row)
        return shown(row)


@get(
    "/{file_id:str}/content",
    guards=[SCOPE],
    summary="Get file content",
    tags=TAGS,
    media_type="application/octet-stream",
)
async def content(file_id: FileId, work: NamedDependency[Work], blobs: NamedDependency[Folder]) -> Stream:
    """Give what is in a file."""
    async with work.reading() as desk:
        row = await kit.find(desk, file_id)
    return stream(blobs, row)


def stream(blobs: Folder, row: Row) -> Stream:
    """Answer with what is in a file, piece by piece."""
    headers = {"content-length": str(row["bytes"])}
    return Stream(blobs.read(row["id"]), media_type="application/octet-stream", headers=headers)


@delete("/{file_id:str}", status_code=200, guards=[SCOPE], summary="Delete file", tags=TAGS)
async def remove(file_id: FileId, work: NamedDependency[Work], blobs: NamedDependency[Folder]) -> Deleted:
    """Delete a file, unless a batch still reads it."""
    async with work.writing() as desk:
        row = await kit.find(desk, file_id)
        desk.address(files, row)
        await desk.agree(files, row)
        reads = [batches.c.input_file_id == row["id"], batches.c.status.in_(ACTIVE)]
        if await desk.count(batches, reads):
            raise refuse("file_id", f"{file_id!r} is read by a batch that is not over; hint: cancel it")
        await desk.delete(files, files.c.id == row["id"])
    await blobs.delete(row["id"])
    return Deleted(id=file_id)


routes = [upload, index, show, content, remove]
