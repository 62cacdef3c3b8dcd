"""File routes in OpenAI's format. The gateway stores the input and output files of batches itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import delete, get, post
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.enums import RequestEncodingType
from litestar.params import Body, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.batches import files as batch_files
from penstock.batches.batch_object import ACTIVE_STATUSES
from penstock.batches.files import File, file_response
from penstock.batches.runner import BatchRunner
from penstock.blobs.folder import CHUNK_BYTES
from penstock.blobs.store import BlobStore
from penstock.errors import PenstockError, ReplayedResponse, UnavailableError
from penstock.kit import cursor_pages
from penstock.kit.cursor_pages import AfterCursor, CursorPage
from penstock.kit.tenant_session import RequestContext
from penstock.kit.text_validation import NUL, NUL_MESSAGE
from penstock.schemas import field_error, now
from penstock.settings import Settings
from penstock.store.job_tables import batches, files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.store.tenant import Row

TAGS = ["Files"]
SCOPE_GUARD = require_scopes("completions.write")
MAX_PAGE_SIZE = 10_000
MIN_EXPIRY_SECONDS = 3600
# Maximum time to store an upload. The edge waits 30 seconds for the response, and nothing may be stored after that.
MAX_STORING_SECONDS = 22.0
# Maximum number of digits to parse. A longer number of seconds is always above the limit.
MAX_EXPIRY_DIGITS = 12

FileId = Annotated[str, PathParameter(description="id of the file: `gw_file_…`")]
LimitParam = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="maximum number of files to return")]
OrderParam = Annotated[Literal["asc", "desc"], QueryParameter(description="sort direction; default: newest first")]
PurposeParam = Annotated[str | None, QueryParameter(description="only files with this purpose")]


class UploadFileForm(msgspec.Struct, kw_only=True):
    """Multipart form that uploads a file."""

    file: Annotated[UploadFile, Meta(description="content of the file, with its name")]
    purpose: Annotated[
        Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"],
        Meta(description="purpose of the file"),
    ]
    anchor: Annotated[str | None, Meta(description="`created_at`")] = msgspec.field(
        name="expires_after[anchor]", default=None
    )
    seconds: Annotated[str | None, Meta(description="age in seconds at which the file is deleted")] = msgspec.field(
        name="expires_after[seconds]", default=None
    )


class FileList(CursorPage, frozen=True, kw_only=True):
    """One page of the workspace's files."""

    data: Annotated[list[File], Meta(description="files of this page")]


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that a file was deleted."""

    id: Annotated[str, Meta(description="its id")]
    deleted: Annotated[bool, Meta(description="true")] = True
    object: Annotated[str, Meta(description="`file`")] = "file"


# The framework's limit is off: the edge already limits bodies to `limits.body_bytes`.
@post("/", status_code=200, guards=[SCOPE_GUARD], request_max_body_size=None, summary="Upload file", tags=TAGS)
async def upload_file(
    data: Annotated[UploadFileForm, Body(media_type=RequestEncodingType.MULTI_PART)],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    blobs: NamedDependency[BlobStore],
) -> File:
    """Stores a file for the key's workspace until it is deleted or expires."""
    life = _parse_expiry_seconds(data, settings.files.retention_seconds)
    name = data.file.filename or "file"
    if NUL in name:
        raise field_error("file", f"its name {NUL_MESSAGE}")
    row = batch_files.new_file_row(data.purpose, name, life, created_by=context.caller.actor_id)
    async with context.read_session() as session:
        _ = session.bound_workspace_id
        await batch_files.check_workspace_quota(session, settings, _measure_size(data.file))
    row["bytes"] = await _store_content(blobs, row["id"], data.file)
    try:
        async with context.write_session() as session:
            await session.insert(files, row)
    except (PenstockError, ReplayedResponse):
        with suppress(UnavailableError):
            await blobs.delete(row["id"])
        raise
    return file_response(row)


async def _store_content(blobs: BlobStore, name: str, file: UploadFile) -> int:
    try:
        async with asyncio.timeout(MAX_STORING_SECONDS):
            return await blobs.put(name, _read_chunks(file))
    except TimeoutError:
        message = (
            f"the file was not stored within {MAX_STORING_SECONDS:g} s; hint: try again later, or send a smaller file"
        )
        raise UnavailableError(message) from None


def _parse_expiry_seconds(data: UploadFileForm, longest: int) -> int:
    if data.anchor is None and data.seconds is None:
        return longest
    if data.anchor != "created_at":
        raise field_error("expires_after[anchor]", f"{data.anchor!r} is not allowed: expected created_at")
    seconds = data.seconds or ""
    if not seconds.isdecimal() or len(seconds) > MAX_EXPIRY_DIGITS or not MIN_EXPIRY_SECONDS <= int(seconds) <= longest:
        raise field_error(
            "expires_after[seconds]", f"{seconds!r} is not allowed: expected {MIN_EXPIRY_SECONDS} to {longest}"
        )
    return int(seconds)


def _measure_size(file: UploadFile) -> int:
    length = file.file.seek(0, 2)
    file.file.seek(0)
    return length


async def _read_chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk


@get("/", guards=[SCOPE_GUARD], summary="List files", tags=TAGS)
async def list_files(
    context: NamedDependency[RequestContext],
    purpose: PurposeParam = None,
    limit: LimitParam = MAX_PAGE_SIZE,
    after: AfterCursor = None,
    order: OrderParam = "desc",
) -> FileList:
    """Lists the files of the workspace."""
    conditions = (
        files.c.expires_at > now(),
        files.c.purpose != batch_files.LOG_EXPORT_PURPOSE,
        *((files.c.purpose == purpose,) if purpose else ()),
    )
    last = batch_files.parse_prefixed_id(batch_files.FILE, after) if after else None
    requested = cursor_pages.CursorQuery(limit, last, order == "desc", conditions)
    async with context.read_session() as session:
        return FileList.from_rows(await cursor_pages.fetch_rows(session, files, requested), limit, file_response)


@get("/{file_id:str}", guards=[SCOPE_GUARD], summary="Get file", tags=TAGS)
async def get_file(file_id: FileId, context: NamedDependency[RequestContext]) -> File:
    """Returns the metadata of one file."""
    async with context.read_session() as session:
        row = await batch_files.find_file(session, file_id)
        session.set_requested_row(files, row)
        return file_response(row)


@get(
    "/{file_id:str}/content",
    guards=[SCOPE_GUARD],
    summary="Get file content",
    tags=TAGS,
    media_type="application/octet-stream",
)
async def get_content(
    file_id: FileId, context: NamedDependency[RequestContext], blobs: NamedDependency[BlobStore]
) -> Stream:
    """Returns the content of a file."""
    async with context.read_session() as session:
        row = await batch_files.find_file(session, file_id)
    return await stream_file(blobs, row)


async def stream_file(blobs: BlobStore, row: Row) -> Stream:
    """Returns a response that streams the content of a file in chunks."""
    return await stream_blob(blobs, row["id"], row["bytes"], "application/octet-stream")


async def stream_blob(blobs: BlobStore, name: str, size: int, media_type: str, **headers: str) -> Stream:
    """Returns a response that streams a blob in chunks. Reads the first chunk before the response begins, so that a
    missing blob or a failure of the storage results in an error response.
    """
    chunks = blobs.read(name)
    first = await anext(chunks, b"")

    async def iter_chunks() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return Stream(iter_chunks(), media_type=media_type, headers={"content-length": str(size), **headers})


@delete("/{file_id:str}", status_code=200, guards=[SCOPE_GUARD], summary="Delete file", tags=TAGS)
async def delete_file(
    file_id: FileId, context: NamedDependency[RequestContext], runner: NamedDependency[BatchRunner]
) -> DeletedFile:
    """Deletes a file. Rejects a file that an unfinished batch still reads."""
    async with context.write_session() as session:
        row = await batch_files.find_file(session, file_id)
        session.set_requested_row(files, row)
        await session.check_precondition(files, row)
        reads = [batches.c.input_file_id == row["id"], batches.c.status.in_(ACTIVE_STATUSES)]
        if await session.count(batches, reads):
            raise field_error("file_id", f"{file_id!r} is the input of an unfinished batch; hint: cancel it")
        await session.delete(files, files.c.id == row["id"])
    await runner.delete_content(row)
    return DeletedFile(id=file_id)


routes = [upload_file, list_files, get_file, get_content, delete_file]
