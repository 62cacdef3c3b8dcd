"""Batch routes in OpenAI's format. Either the gateway sends a batch's requests itself, or a provider runs the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from penstock.authorization import extract_credential, require_scopes
from penstock.batches import batch_object
from penstock.batches import files as file_kit
from penstock.batches.batch_object import Batch
from penstock.batches.budgets import BatchBudgets, BatchSubject, load_request_metadata
from penstock.batches.providers import batch_providers_by_name
from penstock.batches.providers.batch_provider import ProviderSettings
from penstock.batches.runner import BatchRunner
from penstock.blobs.store import BlobStore
from penstock.errors import ConflictError, ForbiddenError, NotFoundError, RateLimitedError, UsageNotBoundedError
from penstock.ids import new_id
from penstock.kit import cursor_pages
from penstock.kit.cursor_pages import AfterCursor, CursorPage
from penstock.kit.tenant_session import RequestContext
from penstock.resources.files import MIN_EXPIRY_SECONDS, stream_file
from penstock.schemas import field_error, now
from penstock.settings import Settings
from penstock.store.job_tables import batches

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession

TAGS = ["Batch"]
SCOPE_GUARD = require_scopes("completions.write")
MAX_PAGE_SIZE = 100

BatchId = Annotated[str, PathParameter(description="id of the batch: `gw_batch_…`")]
IncludeProviderDetails = Annotated[
    bool, QueryParameter(description="true adds `provider_details`: the run of the batch at its provider")
]
LimitParam = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="maximum number of batches to return")]
_MetadataKey = Annotated[str, Meta(max_length=64)]
_MetadataValue = Annotated[str, Meta(max_length=512)]


class OutputExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the output files of a batch are deleted."""

    anchor: Annotated[Literal["created_at"], Meta(description="start of the period: the creation of the file")]
    seconds: Annotated[int, Meta(ge=MIN_EXPIRY_SECONDS, description="age in seconds at which the file is deleted")]


class CreateBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A batch to create."""

    input_file_id: Annotated[
        str, Meta(description="id of the input file, uploaded to the gateway with the purpose `batch`")
    ]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        Meta(description="endpoint that the lines are sent to"),
    ]
    completion_window: Annotated[
        Literal["immediate", "24h"],
        Meta(
            description="`immediate`: the gateway sends the lines one by one; `24h`: the named provider runs the batch"
        ),
    ]
    metadata: Annotated[
        Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=16)] | None,
        Meta(description="metadata that is returned with the batch; at most 16 fields"),
    ] = None
    output_expires_after: Annotated[
        OutputExpiry | None, Meta(description="when the output files are deleted; default: as other files")
    ] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255)] | None, Meta(description="model for lines that name none")
    ] = None
    gateway_options: Annotated[
        dict[str, str],
        Meta(description="`x-gateway-…` headers for the batch's requests; they override the headers of this request"),
    ] = {}
    provider_options: Annotated[
        dict[str, Annotated[str, Meta(min_length=1, max_length=2048)]],
        Meta(description="further options for the provider that runs the batch, such as `role_arn` for bedrock"),
    ] = {}


class UpdateBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a batch to update."""

    internal_output_file_id: Annotated[
        str,
        Meta(description="id of the file to return as the output from now on, such as one with reviewed responses"),
    ]


class BatchList(CursorPage, frozen=True, kw_only=True):
    """One page of the workspace's batches."""

    data: Annotated[list[Batch], Meta(description="batches of this page, newest first")]


@post("/", status_code=200, guards=[SCOPE_GUARD], summary="Create batch", tags=TAGS)
async def create_batch(
    request: Request[Any, Any, Any],
    data: JSONBody[CreateBatch],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    runner: NamedDependency[BatchRunner],
) -> Batch:
    """Creates a batch. Each line of the input file becomes a separate request, with the key that creates the batch."""
    sent = extract_credential(request)
    if sent.kind != "key":
        message = "a batch needs the API key or token of the request that creates it; a session has none"
        raise ForbiddenError(message)
    headers = batch_object.collect_headers(
        request.headers.items(), sent.text, data.gateway_options, request.app.state.get("header_aliases", ())
    )
    life, longest = data.output_expires_after, settings.files.retention_seconds
    if life and life.seconds > longest:
        raise field_error(
            "output_expires_after.seconds",
            f"is too long: files are kept for {longest} seconds (files.retention_seconds)",
        )
    async with context.write_session() as session:
        await _check_active_batches(session, settings.batches.max_unfinished)
        file = await file_kit.find_file(session, data.input_file_id)
        if file["purpose"] != "batch":
            raise field_error("input_file_id", f"names a file for {file['purpose']!r}: expected one for 'batch'")
        job = (
            None
            if data.completion_window == batch_object.IMMEDIATE_WINDOW
            else await _build_provider_job(session, data, headers)
        )
        row_id = new_id()
        sealed = await session.seal(msgspec.json.encode(headers).decode(), row_id)
        row = await session.insert(
            batches, {**_build_row(data, settings, file["id"]), "id": row_id, "job": job, "sealed": sealed}
        )
    runner.notify()
    return batch_object.to_batch(row)


async def _build_provider_job(session: TenantSession, data: CreateBatch, headers: dict[str, str]) -> dict[str, Any]:
    """Returns the job for a batch that a provider runs: the provider, and the options that it needs besides the
    lines.
    """
    supported_providers = batch_providers_by_name()
    selection = await batch_object.select_provider(session, headers, supported_providers)
    adapter = supported_providers[selection.provider]
    for name in data.provider_options:
        if name not in adapter.ALLOWED_OPTIONS:
            hint = (
                f"expected {', '.join(sorted(adapter.ALLOWED_OPTIONS))}" if adapter.ALLOWED_OPTIONS else "it takes none"
            )
            raise field_error(f"provider_options.{name}", f"is not known for {selection.provider}: {hint}")
    needs = adapter.required_options(ProviderSettings(headers, selection.configurations, data.provider_options))
    caller = session.caller
    if caller.has_budget:
        message = (
            "tokens with usage_limits create no batches that a provider runs, because such a batch cannot be charged to "
            "them; use completion_window 'immediate', or an API key with usage limits"
        )
        raise UsageNotBoundedError(message)
    connection, workspace_id = session.connection, session.bound_workspace_id
    header = headers.get(f"{batch_object.HEADER_PREFIX}metadata")
    job: dict[str, Any] = {
        "provider": selection.provider,
        "virtual_key": selection.slug,
        "endpoint": data.endpoint,
        "integration_id": selection.integration_id,
        "api_key_id": caller.id if caller.by == "key" else None,
        "metadata": await load_request_metadata(connection, caller, workspace_id, header),
        "needs": needs,
    }
    subject = BatchSubject(
        workspace_id,
        job["api_key_id"],
        selection.integration_id,
        selection.provider,
        selection.slug,
        data.endpoint,
        job["metadata"],
    )
    await (await BatchBudgets.load(connection, subject)).check(connection)
    return job


async def _check_active_batches(session: TenantSession, maximum: int) -> None:
    _ = session.bound_workspace_id
    if await session.count(batches, [batches.c.status.in_(batch_object.ACTIVE_STATUSES)]) >= maximum:
        message = f"{maximum} batches of this workspace are not finished; batches.max_unfinished allows no more"
        raise RateLimitedError(message)


def _build_row(data: CreateBatch, settings: Settings, file_id: str) -> dict[str, Any]:
    moment = now()
    nothing_yet = ("output_file_id", "error_file_id", "internal_output_file_id", "errors", "run_by", "run_until")
    return {
        "endpoint": data.endpoint,
        "completion_window": data.completion_window,
        "status": batch_object.VALIDATING,
        "input_file_id": file_id,
        "model": data.model,
        "details": {
            "metadata": data.metadata,
            "output_seconds": data.output_expires_after and data.output_expires_after.seconds,
        },
        "moments": {batch_object.VALIDATING: moment},
        "expires_at": moment + settings.batches.window_seconds * file_kit.MS_PER_SECOND,
        "created_at": moment,
        "last_updated_at": moment,
        **dict.fromkeys(("total", "completed", "failed"), 0),
        **dict.fromkeys(nothing_yet),
    }


@get("/", guards=[SCOPE_GUARD], summary="List batches", tags=TAGS)
async def list_batches(
    context: NamedDependency[RequestContext], limit: LimitParam = 20, after: AfterCursor = None
) -> BatchList:
    """Lists the batches of the workspace, newest first."""
    requested = cursor_pages.CursorQuery(limit, file_kit.parse_prefixed_id(file_kit.BATCH, after) if after else None)
    async with context.read_session() as session:
        return BatchList.from_rows(
            await cursor_pages.fetch_rows(session, batches, requested), limit, batch_object.to_batch
        )


@get("/{batch_id:str}", guards=[SCOPE_GUARD], summary="Get batch", tags=TAGS)
async def get_batch(
    batch_id: BatchId,
    context: NamedDependency[RequestContext],
    include_provider_details: IncludeProviderDetails = False,
) -> Batch:
    """Returns one batch, on request with the state of its run at the provider."""
    async with context.read_session() as session:
        row = await batch_object.find_batch(session, batch_id)
        session.set_requested_row(batches, row)
        return batch_object.to_batch(row, has_provider_details=include_provider_details)


@get(
    "/{batch_id:str}/output",
    guards=[SCOPE_GUARD],
    summary="Get batch output",
    tags=TAGS,
    media_type="application/octet-stream",
)
async def get_output(
    batch_id: BatchId, context: NamedDependency[RequestContext], blobs: NamedDependency[BlobStore]
) -> Stream:
    """Returns the output of a batch as JSON lines."""
    async with context.read_session() as session:
        batch = batch_object.to_batch(await batch_object.find_batch(session, batch_id))
        if batch.output_file_id is None:
            raise NotFoundError(f"this batch has no output: it is {batch.status}")
        row = await file_kit.find_file(session, batch.output_file_id)
    return await stream_file(blobs, row)


@post("/{batch_id:str}/cancel", status_code=200, guards=[SCOPE_GUARD], summary="Cancel batch", tags=TAGS)
async def cancel_batch(
    batch_id: BatchId, context: NamedDependency[RequestContext], runner: NamedDependency[BatchRunner]
) -> Batch:
    """Cancels a batch. No further lines start; running requests finish."""
    async with context.write_session() as session:
        row = await batch_object.find_batch(session, batch_id)
        if row["status"] in {batch_object.VALIDATING, batch_object.IN_PROGRESS}:
            change = batch_object.status_change(row, batch_object.CANCELLING)
            await session.update(batches, row["id"], change)
            row = {**row, **change}
        elif row["status"] not in {batch_object.CANCELLING, batch_object.CANCELLED}:
            raise ConflictError(f"this batch cannot be cancelled: it is {batch_object.status_name(row)}")
    runner.notify()
    return batch_object.to_batch(row)


@put("/{batch_id:str}", guards=[SCOPE_GUARD], summary="Update batch", tags=TAGS)
async def update_batch(
    batch_id: BatchId, data: JSONBody[UpdateBatch], context: NamedDependency[RequestContext]
) -> Batch:
    """Replaces the output file of a finished batch."""
    async with context.write_session() as session:
        row = await batch_object.find_batch(session, batch_id)
        session.set_requested_row(batches, row)
        await session.check_precondition(batches, row)
        if row["status"] not in batch_object.FINISHED_STATUSES:
            raise ConflictError(f"this batch is not finished: it is {batch_object.status_name(row)}")
        file = await file_kit.find_file(session, data.internal_output_file_id)
        values = {"internal_output_file_id": file["id"], "last_updated_at": now()}
        await session.update(batches, row["id"], values)
    return batch_object.to_batch({**row, **values})


routes = [create_batch, list_batches, get_batch, get_output, cancel_batch, update_batch]
