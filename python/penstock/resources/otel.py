"""OpenTelemetry ingest: spans and log records of other programs become logs of the key's workspace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.di import NamedDependency
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from msgspec import UNSET, Meta, UnsetType

from penstock.authorization import require_scopes
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.custom_logs import CustomLogWriter, find_log_origin
from penstock.log_api.service import LogService
from penstock.otel.ingest import MAX_BODY_BYTES, LogReader, read_body
from penstock.otel.protobuf import PROTOBUF_TYPE, OtlpItems, encode_response, is_protobuf
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.otel.ingest import ReceivedLogs

TAGS = ["OpenTelemetry"]
GUARDS = [require_scopes("completions.write"), require_scopes("logs.write")]
REFUSALS = {
    413: f"The decompressed body has more than {MAX_BODY_BYTES} bytes.",
    415: "The body is neither protobuf nor JSON, or is compressed with something else than gzip.",
}
_Reason = Annotated[str, Meta(description="why the first one was rejected")]


class OtlpOperation(Operation):
    """OpenAPI operation for a route that decodes the body itself, because it may be compressed."""

    def __post_init__(self) -> None:
        """Adds the description of the body to the operation."""
        schema = Schema(
            type=OpenAPIType.OBJECT, description="`ExportTraceServiceRequest` or `ExportLogsServiceRequest`"
        )
        self.request_body = RequestBody(
            content={
                "application/json": OpenAPIMediaType(schema=schema),
                PROTOBUF_TYPE: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)),
            },
            description="OTLP as protobuf or JSON, optionally compressed with gzip",
            required=True,
        )


class RejectedSpans(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Spans that were not accepted."""

    rejected_spans: Annotated[str, Meta(description="number of rejected spans, as text")]
    error_message: _Reason


class TracesResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Confirmation of spans."""

    partial_success: Annotated[
        RejectedSpans | UnsetType, Meta(description="present if spans were rejected; they must not be sent again")
    ] = UNSET


class RejectedLogRecords(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Log records that were not accepted."""

    rejected_log_records: Annotated[str, Meta(description="number of rejected log records, as text")]
    error_message: _Reason


class LogsResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Confirmation of log records."""

    partial_success: Annotated[
        RejectedLogRecords | UnsetType,
        Meta(description="present if log records were rejected; they must not be sent again"),
    ] = UNSET


@post(
    "/v1/traces",
    status_code=200,
    guards=GUARDS,
    summary="Create logs from spans",
    tags=TAGS,
    operation_class=OtlpOperation,
    opt={"refuses": REFUSALS},
)
async def create_logs_from_spans(
    request: Request[Any, Any, Any],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    custom_logs: NamedDependency[CustomLogWriter],
    settings: NamedDependency[Settings],
) -> Response[TracesResponse]:
    """Saves the spans of an OTLP request as logs. A span that is sent again is stored once."""
    parsed = await _save(request, context, log_service, custom_logs, settings, "spans")
    rejected = RejectedSpans(rejected_spans=str(parsed.rejected), error_message=parsed.reason)
    return _respond(request, TracesResponse(partial_success=rejected if parsed.rejected else UNSET), "spans")


@post(
    "/v1/logs",
    status_code=200,
    guards=GUARDS,
    summary="Create logs from log records",
    tags=TAGS,
    operation_class=OtlpOperation,
    opt={"refuses": REFUSALS},
)
async def create_logs_from_log_records(
    request: Request[Any, Any, Any],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    custom_logs: NamedDependency[CustomLogWriter],
    settings: NamedDependency[Settings],
) -> Response[LogsResponse]:
    """Saves the log records of an OTLP request as logs."""
    parsed = await _save(request, context, log_service, custom_logs, settings, "log records")
    rejected = RejectedLogRecords(rejected_log_records=str(parsed.rejected), error_message=parsed.reason)
    return _respond(request, LogsResponse(partial_success=rejected if parsed.rejected else UNSET), "log records")


async def _save(
    request: Request[Any, Any, Any],
    context: RequestContext,
    log_service: LogService,
    custom_logs: CustomLogWriter,
    settings: Settings,
    items: OtlpItems,
) -> ReceivedLogs:
    headers = request.headers
    body = await request.body()
    async with context.ingest_session() as session:
        session.require_any_scope("completions.write")
        origin = await find_log_origin(session, log_service)
        log_store = settings.log_store
        max_age_hours = min(log_store.received_max_age_hours, 24 * log_store.keep_days)
        reader = LogReader(session.bound_workspace_id, max_age_hours)
        # Decoded in a thread, because decoding a large body would block the event loop.
        content = await asyncio.to_thread(
            read_body, body, headers.get("content-type", ""), headers.get("content-encoding", ""), items
        )
        read = reader.read_spans if items == "spans" else reader.read_log_records
        decoded = await asyncio.to_thread(read, content)
        _, frames = await custom_logs.encode_frames(
            [item.log for item in decoded.logs], origin, [item.identity for item in decoded.logs]
        )
        await log_service.append(frames)
    return decoded


def _respond(request: Request[Any, Any, Any], content: Any, items: OtlpItems) -> Response[Any]:  # noqa: ANN401 - one of two structs
    """Returns a response in the encoding of the request."""
    if is_protobuf(request.headers.get("content-type", "")):
        return Response(encode_response(content, items), media_type=PROTOBUF_TYPE)
    return Response(content, media_type=MediaType.JSON)


routes = [create_logs_from_spans, create_logs_from_log_records]
