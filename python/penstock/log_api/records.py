"""Records of the log store as the API returns them: the fields of a list, and one log with its request and response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock.logs.columns import LISTED_COLUMNS, NANODOLLARS_PER_CENT, Column, ColumnType
from penstock.logs.spool_format import BODY_NAMES, UPSTREAM_HEAD

if TYPE_CHECKING:
    from collections.abc import Mapping

# Columns with the location of stored bodies. Responses omit them.
INTERNAL_COLUMNS = frozenset({"body_key", "body_offset", "body_length"})
SHOWN_COLUMNS = tuple(column for column in LISTED_COLUMNS if column.name not in INTERNAL_COLUMNS)
SHOWN_COLUMN_NAMES = [column.name for column in SHOWN_COLUMNS]
TYPES: dict[ColumnType, Any] = {
    ColumnType.UUID: str,
    ColumnType.STRING: str | None,
    ColumnType.CATEGORY: str | None,
    ColumnType.INTEGER: int | None,
    ColumnType.FLOAT: float | int | None,
    ColumnType.BOOLEAN: bool | None,
    ColumnType.TIMESTAMP: str | None,
    ColumnType.JSON: Any,
    ColumnType.MAP: dict[str, str] | None,
}
# Name under which the head of the request to the provider is stored with the bodies.
UPSTREAM_HEAD_NAME = BODY_NAMES[UPSTREAM_HEAD]
# Field that equals the id.
INTERNAL_TRACE_ID = "internal_trace_id"
COST_WORDS = "cost in cents; may be fractional; null if no price is known"
# Columns that the response for one log contains in `metrics`, under the same name.
METRIC_COLUMNS = (
    *("id", "organisation_id", "prompt_id", "prompt_version_id", "config_id", "created_at", "is_success", "ai_org"),
    *("ai_model", "req_units", "res_units", "total_units", "request_url", "request_method", "response_status_code"),
    *("response_time", "is_proxy_call", "cache_status", "cache_type", "retry_success_count", "trace_id", "span_id"),
    *("span_name", "parent_span_id", "mode", "virtual_key", "source", "runtime", "runtime_version", "sdk_version"),
    *("config", "last_used_option_index", "config_version_id", "prompt_slug", "workspace_slug"),
    *("api_key_id", "request_parsing_time", "pre_processing_time", "cache_processing_time", "response_parsing_time"),
    *("authentication_time", "limit_check_time"),
    *("gateway_processing_time", "upstream_response_time", "prompt_version", "prompt_label"),
)
# Further fields of a record that explain how the gateway handled the request.
EXPLANATIONS = (
    *("outcome", "error", "body", "usage", "attempts", "decisions", "events", "hook_results", "operation", "limits"),
    "prompt_variables",
)


def _record_field(column: Column) -> tuple[str, Any, Any]:
    return column.name, Annotated[TYPES[column.type], Meta(description=column.meaning)], None


LogRecord = msgspec.defstruct(
    "LogRecord",
    [
        *map(_record_field, SHOWN_COLUMNS),
        ("cost", Annotated[float | int | None, Meta(description=COST_WORDS)], None),
        (INTERNAL_TRACE_ID, Annotated[str | None, Meta(description="trace that the gateway assigned")], None),
        ("object", Annotated[str, Meta(description="`log`")], "log"),
    ],
    frozen=True,
    kw_only=True,
    namespace={"__doc__": "One request. `docs/log-fields.md` lists the fields."},
)


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request as the client sent it."""

    url: Annotated[str | None, Meta(description="path and query, with secrets masked")]
    method: Annotated[str | None, Meta(description="HTTP method")]
    headers: Annotated[dict[str, str], Meta(description="headers, with secrets masked")]
    body: Annotated[Any, Meta(description="body: a JSON value, or text; null if it is not stored")]
    gateway_headers: Annotated[
        dict[str, str], Meta(description="control headers without their prefix, such as `trace-id`")
    ] = msgspec.field(name="gatewayHeaders")


class LogResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response as the client received it."""

    status: Annotated[int | None, Meta(description="status code")]
    headers: Annotated[dict[str, str], Meta(description="headers that may be stored")]
    body: Annotated[
        Any, Meta(description="body: a JSON value, or text such as server-sent events; null if it is not stored")
    ]
    response_time: Annotated[float | int | None, Meta(description="time until its end in milliseconds")]
    last_used_option_json_path: Annotated[str | None, Meta(description="config path of the target that responded")]


class LogExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One side of the exchange with the provider."""

    body: Annotated[Any, Meta(description="body: a JSON value, or text; null if it is not stored")]
    url: Annotated[
        str | None, Meta(description="URL with secrets masked; null for a response, and if bodies are not stored")
    ] = None
    method: Annotated[str | None, Meta(description="HTTP method")] = None
    headers: Annotated[dict[str, str], Meta(description="headers, with secrets masked")] = {}


class UpstreamHead(msgspec.Struct, frozen=True):
    """Head of the request to the provider, as the edge stores it with the bodies."""

    url: str | None = None
    method: str | None = None
    headers: dict[str, str] = {}


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """One request with its response, its figures, and what the gateway did with it."""

    id: Annotated[str, Meta(description="its id")] = msgspec.field(name="_id")
    request: Annotated[LogRequest, Meta(description="request as the client sent it")]
    response: Annotated[LogResponse, Meta(description="response as the client received it")]
    organisation_id: Annotated[str, Meta(description="id of its organisation")]
    created_at: Annotated[str, Meta(description="start of the request, ISO 8601")]
    metrics: Annotated[
        dict[str, Any],
        Meta(
            description="figures and identifiers; `cost` is in cents and may be fractional, times are in milliseconds; `metadata.key` and `metadata.value` are parallel lists"
        ),
    ]
    final_untransformed_request: Annotated[LogExchange, Meta(description="request in the client's API format")] = (
        msgspec.field(name="finalUntransformedRequest")
    )
    transformed_request: Annotated[LogExchange, Meta(description="request as it was sent to the provider")] = (
        msgspec.field(name="transformedRequest")
    )
    original_response: Annotated[LogExchange, Meta(description="response as the provider sent it")] = msgspec.field(
        name="originalResponse"
    )
    feedback: Annotated[list[dict[str, Any]], Meta(description="feedback on its trace")]
    details: Annotated[
        dict[str, Any],
        Meta(description="`outcome`, `error`, `attempts`, routing `decisions`, `usage`, and the state of the bodies"),
    ]
    log_format: Annotated[str, Meta(description="how bodies are stored: `packs`, `v1` or `v2`")]
    object: Annotated[str, Meta(description="`log`")] = "log"


def to_record(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a struct that is built above
    """Converts the fields of a log to an item of a list response."""
    return msgspec.convert({**fields, INTERNAL_TRACE_ID: fields["id"]}, LogRecord)


def to_new_record(line: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Converts a record line that is not in the log store yet to an item of a list response."""
    fields = dict(line)
    nanodollars = fields.get("cost_nanodollars")
    fields["cost"] = None if nanodollars is None else nanodollars / NANODOLLARS_PER_CENT
    return to_record(fields)


def to_log(
    fields: Mapping[str, Any],
    bodies: Mapping[str, bytes],
    organisation_name: str | None,
    prefixes: tuple[str, ...],
    log_format: str,
) -> Log:
    """Returns one log. `fields` is the result of `GetQuery`, and `prefixes` are the prefixes of control headers."""
    record: dict[str, Any] = fields["record"]
    headers: dict[str, str] = record.get("request_headers") or {}
    response_headers: dict[str, str] = record.get("response_headers") or {}
    decoded = {name: decode_body(content) for name, content in bodies.items() if name != UPSTREAM_HEAD_NAME}
    upstream_head = _decode_head(bodies.get(UPSTREAM_HEAD_NAME))
    sent = decoded.get("upstream_response")
    return Log(
        id=record["id"],
        request=LogRequest(
            url=record["request_url"],
            method=record["request_method"],
            headers=headers,
            body=decoded.get("client_request"),
            gateway_headers={
                name.removeprefix(prefix): value
                for name, value in headers.items()
                for prefix in prefixes
                if name.startswith(prefix)
            },
        ),
        response=LogResponse(
            status=record["response_status_code"],
            headers=response_headers,
            # `client_response` is stored only if the client received a different response than the provider sent.
            body=decoded.get("client_response", sent),
            response_time=record["response_time"],
            last_used_option_json_path=record["last_used_option_index"],
        ),
        organisation_id=record["organisation_id"],
        created_at=record["created_at"],
        metrics=_build_metrics(record, organisation_name, log_format),
        final_untransformed_request=LogExchange(
            body=decoded.get("client_request"),
            url=record["request_url"],
            method=record["request_method"],
            headers=headers,
        ),
        transformed_request=LogExchange(
            body=decoded.get("upstream_request"),
            url=upstream_head.url,
            method=upstream_head.method or record["request_method"],
            headers=upstream_head.headers,
        ),
        original_response=LogExchange(body=sent, method=record["request_method"], headers=response_headers),
        feedback=fields.get("feedback", []),
        details={name: record[name] for name in EXPLANATIONS if record.get(name) is not None},
        log_format=log_format,
    )


def _decode_head(content: bytes | None) -> UpstreamHead:
    """Decodes the head of the request to the provider. A head that is damaged or absent has no fields."""
    try:
        return msgspec.json.decode(content or b"{}", type=UpstreamHead)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return UpstreamHead()


def _build_metrics(record: Mapping[str, Any], organisation_name: str | None, log_format: str) -> dict[str, Any]:
    metadata: dict[str, str] = record.get("metadata") or {}
    stream_mode = record.get("stream_mode")
    return {
        **{name: record.get(name) for name in METRIC_COLUMNS},
        INTERNAL_TRACE_ID: record["id"],
        "organisation_name": organisation_name,
        "cost": record.get("cost"),
        "cost_currency": record.get("cost_currency") or "USD",
        "stream_mode": None if stream_mode is None else int(stream_mode),
        "log_store_file_path_format": log_format,
        "metadata.key": list(metadata),
        "metadata.value": list(metadata.values()),
    }


def decode_body(content: bytes) -> Any:  # noqa: ANN401 - JSON
    """Decodes a stored body: JSON, else text."""
    if not content:
        return None
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return content.decode("utf-8", "replace")
