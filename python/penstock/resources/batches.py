"""Batches that the gateway runs itself or has a provider run, in OpenAI's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from penstock.authorization import needs, shown
from penstock.batches import files as file_kit
from penstock.batches import model as kit
from penstock.batches.model import Batch
from penstock.batches.providers import ways
from penstock.batches.providers.batch_provider import Stated
from penstock.batches.runner import Runner
from penstock.blobs.folder import Folder
from penstock.errors import ConflictError, ForbiddenError, MissingError, TooManyError
from penstock.ids import new_id
from penstock.kit import pages
from penstock.kit.pages import After, Page
from penstock.kit.tenant_session import Work
from penstock.resources.files import SHORTEST_LIFE, stream
from penstock.schemas import now, refuse
from penstock.settings import Settings
from penstock.store.tables import batches

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Desk

TAGS = ["Batch"]
SCOPE = needs("completions.write")
MOST = 100

BatchId = Annotated[str, PathParameter(description="id of the batch: `gw_batch_…`")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="how many at most")]
_Key = Annotated[str, Meta(max_length=64)]
_Value = Annotated[str, Meta(max_length=512)]


class OutputLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long the files with the answers are kept."""

    anchor: Annotated[Literal["created_at"], Meta(description="when such a file is made")]
    seconds: Annotated[int, Meta(ge=SHORTEST_LIFE, description="its age in seconds when it is deleted")]


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A batch to be made."""

    input_file_id: Annotated[str, Meta(description="file with its lines, uploaded here with the purpose `batch`")]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        Meta(description="where its lines go"),
    ]
    completion_window: Annotated[
        Literal["immediate", "24h"],
        Meta(
            description="`immediate`: the gateway itself sends line by line; `24h`: the provider that is named runs it"
        ),
    ]
    metadata: Annotated[
        Annotated[dict[_Key, _Value], Meta(max_length=16)] | None,
        Meta(description="what is shown with it; at most 16 fields"),
    ] = None
    output_expires_after: Annotated[
        OutputLife | None, Meta(description="how long files with answers are kept; default: as long as files are")
    ] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255)] | None, Meta(description="for lines that name none")
    ] = None
    gateway_options: Annotated[
        dict[str, str], Meta(description="`x-gateway-…` headers for its requests, before those that it is made with")
    ] = {}
    provider_options: Annotated[
        dict[str, Annotated[str, Meta(min_length=1, max_length=2048)]],
        Meta(description="what the provider that runs it needs to know besides, as `role_arn` for bedrock"),
    ] = {}


class BatchChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed."""

    internal_output_file_id: Annotated[
        str,
        Meta(description="file that is given as the output from now on, such as one with answers that were checked"),
    ]


class BatchList(Page, frozen=True, kw_only=True):
    """Batches of the workspace."""

    data: Annotated[list[Batch], Meta(description="those of this page, newest first")]


@post("/", status_code=200, guards=[SCOPE], summary="Create batch", tags=TAGS)
async def create(
    request: Request[Any, Any, Any],
    data: JSONBody[NewBatch],
    work: NamedDependency[Work],
    settings: NamedDependency[Settings],
    runner: NamedDependency[Runner],
) -> Batch:
    """Have the lines of a file answered, each as a request of its own with the key that makes the batch."""
    sent = shown(request)
    if sent.kind != "key":
        message = "a batch is sent with the key or token that makes it: a session has none"
        raise ForbiddenError(message)
    headers = kit.carried(
        request.headers.items(), sent.text, data.gateway_options, request.app.state.get("header_aliases", ())
    )
    life, longest = data.output_expires_after, settings.files.keep_seconds
    if life and life.seconds > longest:
        raise refuse("output_expires_after.seconds", f"is too many: files are kept for {longest} (files.keep_seconds)")
    async with work.writing() as desk:
        await _check_room(desk, settings.batches.waiting)
        file = await file_kit.find(desk, data.input_file_id)
        if file["purpose"] != "batch":
            raise refuse("input_file_id", f"names a file for {file['purpose']!r}: expected one for 'batch'")
        job = None if data.completion_window == kit.IMMEDIATE else await _job(desk, data, headers)
        row_id = new_id()
        sealed = await desk.seal(msgspec.json.encode(headers).decode(), row_id)
        row = await desk.insert(
            batches, {**_row(data, settings, file["id"]), "id": row_id, "job": job, "sealed": sealed}
        )
    runner.ring()
    return kit.shown(row)


async def _job(desk: Desk, data: NewBatch, headers: dict[str, str]) -> dict[str, Any]:
    """Say who is to run a batch, and what is needed for that besides its lines."""
    able = ways()
    named = await kit.provider_of(desk, headers, able)
    way = able[named.provider]
    for name in data.provider_options:
        if name not in way.OPTIONS:
            known = f"expected {', '.join(sorted(way.OPTIONS))}" if way.OPTIONS else "it takes none"
            raise refuse(f"provider_options.{name}", f"is not known for {named.provider}: {known}")
    needs = way.needs(Stated(headers, named.configurations, data.provider_options))
    caller = desk.caller
    return {
        "provider": named.provider,
        "integration_id": named.integration_id,
        "api_key_id": caller.id if caller.by == "key" else None,
        "needs": needs,
    }


async def _check_room(desk: Desk, most: int) -> None:
    _ = desk.workspace
    if await desk.count(batches, [batches.c.status.in_(kit.ACTIVE)]) >= most:
        message = f"{most} batches of this workspace are not over yet: that is batches.waiting"
        raise TooManyError(message)


def _row(data: NewBatch, settings: Settings, file_id: str) -> dict[str, Any]:
    moment = now()
    nothing_yet = ("output_file_id", "error_file_id", "internal_output_file_id", "errors", "run_by", "run_until")
    return {
        "endpoint": data.endpoint,
        "completion_window": data.completion_window,
        "status": kit.VALIDATING,
        "input_file_id": file_id,
        "model": data.model,
        "details": {
            "metadata": data.metadata,
            "output_seconds": data.output_expires_after and data.output_expires_after.seconds,
        },
        "moments": {kit.VALIDATING: moment},
        "expires_at": moment + settings.batches.window_seconds * file_kit.SECOND,
        "created_at": moment,
        "last_updated_at": moment,
        **dict.fromkeys(("total", "completed", "failed"), 0),
        **dict.fromkeys(nothing_yet),
    }


@get("/", guards=[SCOPE], summary="List batches", tags=TAGS)
async def index(work: NamedDependency[Work], limit: Limit = 20, after: After = None) -> BatchList:
    """List the batches of the workspace, newest first."""
    wanted = pages.Wanted(limit, file_kit.inner(file_kit.BATCH, after) if after else None)
    async with work.reading() as desk:
        return BatchList.of(await pages.rows(desk, batches, wanted), limit, kit.shown)


@get("/{batch_id:str}", guards=[SCOPE], summary="Get batch", tags=TAGS)
async def show(batch_id: BatchId, work: NamedDependency[Work]) -> Batch:
    """Show one batch."""
    async with work.reading() as desk:
        row = await kit.find(desk, batch_id)
        desk.address(batches, row)
        return kit.shown(row)


@get(
    "/{batch_id:str}/output",
    guards=[SCOPE],
    summary="Get batch output",
    tags=TAGS,
    media_type="application/octet-stream",
)
async def output(batch_id: BatchId, work: NamedDependency[Work], blobs: NamedDependency[Folder]) -> Stream:
    """Give the answers as lines of JSON."""
    async with work.reading() as desk:
        batch = kit.shown(await kit.find(desk, batch_id))
        if batch.output_file_id is None:
            raise MissingError(f"this batch has no output: it is {batch.status}")
        row = await file_kit.find(desk, batch.output_file_id)
    return stream(blobs, row)


@post("/{batch_id:str}/cancel", status_code=200, guards=[SCOPE], summary="Cancel batch", tags=TAGS)
async def cancel(batch_id: BatchId, work: NamedDependency[Work], runner: NamedDependency[Runner]) -> Batch:
    """Begin no further line; what is under way is waited for."""
    async with work.writing() as desk:
        row = await kit.find(desk, batch_id)
        if row["status"] in {kit.VALIDATING, kit.IN_PROGRESS}:
            change = kit.turned(row, kit.CANCELLING)
            await desk.update(batches, row["id"], change)
            row = {**row, **change}
        elif row["status"] not in {kit.CANCELLING, kit.CANCELLED}:
            raise ConflictError(f"this batch cannot be cancelled: it is {row['status']}")
    runner.ring()
    return kit.shown(row)


@put("/{batch_id:str}", guards=[SCOPE], summary="Update batch", tags=TAGS)
async def change(batch_id: BatchId, data: JSONBody[BatchChange], work: NamedDependency[Work]) -> Batch:
    """Have another file given as the output of a batch that is over."""
    async with work.writing() as desk:
        row = await kit.find(desk, batch_id)
        desk.address(batches, row)
        await desk.agree(batches, row)
        if row["status"] not in kit.OVER:
            raise ConflictError(f"this batch is not over: it is {row['status']}")
        file = await file_kit.find(desk, data.internal_output_file_id)
        values = {"internal_output_file_id": file["id"], "last_updated_at": now()}
        await desk.update(batches, row["id"], values)
    return kit.shown({**row, **values})


routes = [create, index, show, output, cancel, change]
