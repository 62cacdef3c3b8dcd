"""Files that the gateway stores itself: their public ids, their API representation, the workspace quota and the reading
of lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import func, select

from penstock.errors import NotFoundError, RateLimitedError
from penstock.ids import is_uuid, new_id
from penstock.schemas import now
from penstock.store.job_tables import files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.blobs.store import BlobStore
    from penstock.settings import Settings
    from penstock.store.tenant import Row, TenantStore

FILE, BATCH = "gw_file_", "gw_batch_"
MS_PER_SECOND = 1000
# Purpose of the files that log exports are stored in.
LOG_EXPORT_PURPOSE = "log_export"

UnixSeconds = Annotated[int, Meta(description="Unix time in seconds")]


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file, in OpenAI's format."""

    id: Annotated[str, Meta(description="its id")]
    bytes: Annotated[int, Meta(description="its length")]
    created_at: UnixSeconds
    expires_at: Annotated[int, Meta(description="deletion time, Unix time in seconds")]
    filename: Annotated[str, Meta(description="file name that the client sent")]
    purpose: Annotated[str, Meta(description="purpose of the file")]
    status: Annotated[str, Meta(description="`processed`: it can be used")] = "processed"
    status_details: Annotated[str | None, Meta(description="nothing more")] = None
    object: Annotated[str, Meta(description="`file`")] = "file"


def file_response(row: Row) -> File:
    """Converts the row of a file to the API response."""
    return File(
        id=FILE + row["id"],
        bytes=row["bytes"],
        created_at=row["created_at"] // MS_PER_SECOND,
        expires_at=row["expires_at"] // MS_PER_SECOND,
        filename=row["filename"],
        purpose=row["purpose"],
    )


def parse_prefixed_id(prefix: str, prefixed_id: str) -> str:
    """Converts a public id, such as `gw_file_…`, to the id of the row; raises NotFoundError if it is malformed."""
    identifier = prefixed_id.removeprefix(prefix)
    if identifier == prefixed_id or not is_uuid(identifier):
        raise not_found_error(prefixed_id)
    return identifier


def not_found_error(prefixed_id: str) -> NotFoundError:
    """Creates the error for a file or batch that does not exist in the caller's workspace."""
    kind = "batch" if prefixed_id.startswith(BATCH) else "file"
    return NotFoundError(
        f"there is no {kind} {prefixed_id!r} here; hint: one that is stored at a provider needs x-gateway-provider"
    )


async def find_file(session: TenantStore, prefixed_id: str) -> Row:
    """Returns the row of a file by its public id; raises NotFoundError if it is missing or expired."""
    row = await session.find(files, parse_prefixed_id(FILE, prefixed_id))
    # Log exports are reachable only through their own routes, which require other scopes than files.
    if row is None or row["expires_at"] <= now() or row["purpose"] == LOG_EXPORT_PURPOSE:
        raise not_found_error(prefixed_id)
    return row


async def check_workspace_quota(session: TenantStore, settings: Settings, requested: int) -> None:
    """Raises RateLimitedError if `requested` more bytes would exceed the file quota of the workspace."""
    query = select(func.coalesce(func.sum(files.c.bytes), 0).label("held"))
    usage = await session.fetch_first(query, files)
    if usage and int(usage["held"]) + requested > settings.files.workspace_bytes:
        message = (
            f"no file space is left: files.workspace_bytes is {settings.files.workspace_bytes}; hint: delete some files"
        )
        raise RateLimitedError(message)


def new_file_row(purpose: str, filename: str, keep_seconds: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - columns
    """Returns the columns of a file that is created now and expires after `keep_seconds`."""
    moment = now()
    times = {"created_at": moment, "expires_at": moment + keep_seconds * MS_PER_SECOND}
    return {"id": new_id(), "purpose": purpose, "filename": filename[:255], "bytes": 0, **times, **more}


async def iter_lines(blobs: BlobStore, name: str, longest: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """Yields the non-blank lines of a blob, numbered from 1. A line longer than `longest` bytes is yielded as
    `None`.
    """
    number, buffer, too_long = 1, bytearray(), False
    async for chunk in blobs.read(name):
        first, *rest = chunk.split(b"\n")
        too_long = too_long or len(buffer) + len(first) > longest
        buffer = bytearray() if too_long else buffer + first
        for part in rest:
            if too_long or buffer.strip():
                yield number, None if too_long else bytes(buffer)
            number, too_long = number + 1, len(part) > longest
            buffer = bytearray() if too_long else bytearray(part)
    if too_long or buffer.strip():
        yield number, None if too_long else bytes(buffer)
