"""OpenTelemetry spans of request records, as OTLP JSON. One span per request, with child spans for its attempts and
guardrails. Attribute names follow the semantic conventions for generative AI.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import uuid
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.ids import is_uuid

if TYPE_CHECKING:
    from collections.abc import Mapping

SCOPE_NAME = "custom.genai.instrumentation"
INTERNAL_KIND, CLIENT_KIND = 1, 3
ERROR_STATUS = 2
FIRST_ERROR_STATUS_CODE = 300
TRACE_ID, SPAN_ID = re.compile(r"(?!0{32})[0-9a-fA-F]{32}"), re.compile(r"(?!0{16})[0-9a-fA-F]{16}")
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
MAX_TEXT_CHARS, MAX_METADATA_PAIRS = 4096, 64
NANODOLLARS_PER_DOLLAR = 1_000_000_000
# Names in the conventions for operations of the gateway. Other operations have the same names in spans.
OPERATION_NAMES = {
    "chatComplete": "chat",
    "messages": "chat",
    "createModelResponse": "chat",
    "converse": "chat",
    "converseStream": "chat",
    "invokeModel": "chat",
    "invokeModelStream": "chat",
    "complete": "text_completion",
    "generateContent": "generate_content",
    "streamGenerateContent": "generate_content",
    "embed": "embeddings",
    "embedContent": "embeddings",
    "batchEmbedContents": "embeddings",
}
# Names in the conventions for providers. Other providers have their slugs in spans.
PROVIDER_NAMES = {
    "azure-ai": "azure.ai.inference",
    "azure-openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-mantle": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral-ai": "mistral_ai",
    "moonshot": "moonshot_ai",
    "perplexity-ai": "perplexity",
    "vertex-ai": "gcp.vertex_ai",
    "x-ai": "x_ai",
}
# Attributes for parts of the token counts. The total counts include these parts.
USAGE_NAMES = {
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
    "audio_in": "gen_ai.usage.audio.input_tokens",
    "audio_out": "gen_ai.usage.audio.output_tokens",
    "image_in": "gen_ai.usage.image.input_tokens",
}
CACHE_WRITE_NAMES = ("cache_write_5m", "cache_write_1h")
# Fields of a record that become attributes `penstock.<name>`.
OWN_FIELDS = (
    *(
        "id",
        "organisation_id",
        "workspace_id",
        "workspace_slug",
        "api_key_id",
        "api_key_name",
        "user_id",
        "virtual_key",
    ),
    *("provider_id", "integration_id", "config", "config_id", "config_version_id"),
    *("prompt_slug", "mode", "cache_status", "retry_success_count", "last_used_option_index", "outcome", "source"),
    *("is_proxy_call", "units_estimated", "price_version", "trace_id", "span_name"),
)

Attributes = dict[str, Any]


class Attempt(msgspec.Struct, frozen=True):
    """One request to a provider."""

    provider: str = ""
    virtual_key: str | None = None
    model: str | None = None
    target: str | None = None
    host: str = ""
    status: int | None = None
    duration: float = 0.0
    # Start of the attempt, in milliseconds after the arrival of the request.
    start: float | None = None
    error: str | None = None


class GuardrailCheck(msgspec.Struct, frozen=True):
    """Result of one check, without its data."""

    id: str = ""
    verdict: bool = True


class GuardrailResult(msgspec.Struct, frozen=True):
    """Result of one guardrail, without the data of its checks, which may hold parts of messages."""

    id: str = ""
    verdict: bool | None = None
    deny: bool | None = None
    transformed: bool | None = None
    skipped: bool | None = None
    would_deny: bool | None = None
    checks: list[GuardrailCheck] = []
    execution_time: float = 0.0
    created_at: str | None = None


class GuardrailResults(msgspec.Struct, frozen=True):
    """Results of all guardrails of a request."""

    before_request_hooks: list[GuardrailResult] = []
    after_request_hooks: list[GuardrailResult] = []


class Metadata(msgspec.Struct, frozen=True):
    """Metadata as a list of keys and a list of values, as in records of batches and external logs."""

    key: list[str] = []
    value: list[Any] = []


class SpanRecord(msgspec.Struct, frozen=True):
    """Fields of a record that its span shows. Headers and bodies are not among them."""

    id: uuid.UUID
    created_at: str = ""
    organisation_id: str | None = None
    workspace_id: str | None = None
    workspace_slug: str | None = None
    api_key_id: str | None = None
    api_key_name: str | None = None
    user_id: str | None = None
    user: str | None = None
    trace_id: str = ""
    span_id: str | None = None
    span_name: str | None = None
    parent_span_id: str | None = None
    request_method: str = ""
    request_url: str = ""
    operation: str = ""
    ai_org: str | None = None
    ai_model: str | None = None
    virtual_key: str | None = None
    provider_id: str | None = None
    integration_id: str | None = None
    config: str | None = None
    config_id: str | None = None
    config_version_id: str | None = None
    prompt_slug: str | None = None
    mode: str | None = None
    cache_status: str | None = None
    last_used_option_index: str | None = None
    outcome: str | None = None
    error: str | None = None
    source: str | None = None
    response_status_code: int | None = None
    retry_success_count: int | None = None
    is_proxy_call: bool | None = None
    stream_mode: bool | None = None
    response_time: float | None = None
    time_to_first_byte: float | None = None
    request_parsing_time: float | None = None
    pre_processing_time: float | None = None
    req_units: int | None = None
    res_units: int | None = None
    cost_nanodollars: int | None = None
    units_estimated: bool | None = None
    price_version: str | None = None
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    attempts: list[Attempt] | None = None
    hook_results: GuardrailResults | None = None


decode_record = msgspec.json.Decoder(SpanRecord).decode


def build_spans(record: SpanRecord, body_attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the spans of a record as OTLP JSON, the request's span first.

    `body_attributes` are those that come from the bodies (`otel_content.py`).
    """
    start = parse_time_ns(record.created_at)
    end = start + _to_ns(record.response_time)
    trace_id = derive_trace_id(record)
    span_id = derive_span_id(record, record.span_id)
    operation = OPERATION_NAMES.get(record.operation, record.operation or "proxy")
    span = _make_span(trace_id, span_id, f"{operation} {record.ai_model or ''}".strip(), (start, end))
    if record.parent_span_id:
        span["parentSpanId"] = derive_span_id(record, record.parent_span_id)
    span["attributes"] = encode_attributes({**_build_attributes(record, operation), **body_attributes})
    if error := find_error_type(record):
        span["status"] = {"code": ERROR_STATUS, "message": error}
    return [
        span,
        *_attempt_spans(record, trace_id, span_id, start),
        *_guardrail_spans(record, trace_id, span_id, (start, end)),
    ]


def encode_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Encodes attributes as OTLP JSON. Omits attributes without a value."""
    return [
        {"key": key, "value": _encode_value(value)}
        for key, value in values.items()
        if value is not None and value != ""
    ]


def find_error_type(record: SpanRecord) -> str:
    """Returns the kind of error with which a request ended; an empty string if it was successful."""
    if record.error:
        return record.error
    status = record.response_status_code
    if status is not None and status >= FIRST_ERROR_STATUS_CODE:
        return str(status)
    return record.outcome if record.outcome and record.outcome != "complete" else ""


def derive_trace_id(record: SpanRecord) -> str:
    """Returns the trace id as 32 hexadecimal digits. Requests of a workspace with the same trace id share a trace."""
    trace_id = record.trace_id or str(record.id)
    digits = trace_id.replace("-", "") if is_uuid(trace_id) else trace_id
    if TRACE_ID.fullmatch(digits):
        return digits.lower()
    return _digest(TRACE_ID_BYTES, record.organisation_id, record.workspace_id, trace_id)


def derive_span_id(record: SpanRecord, span_id: str | None) -> str:
    """Returns a span id as 16 hexadecimal digits. If the client sent none, it is derived from the record id, so that
    a repeated export has the same span id.
    """
    if not span_id:
        return record.id.bytes[TRACE_ID_BYTES - SPAN_ID_BYTES :].hex()
    if SPAN_ID.fullmatch(span_id):
        return span_id.lower()
    return _digest(SPAN_ID_BYTES, derive_trace_id(record), span_id)


def parse_time_ns(text: str) -> int:
    """Returns a time in nanoseconds since 1970; 0 if it is not valid."""
    try:
        return round(dt.datetime.fromisoformat(text).timestamp() * 1000) * 1_000_000
    except ValueError:
        return 0


def _build_attributes(record: SpanRecord, operation: str) -> Attributes:
    usage = record.usage or {}
    metadata = _read_metadata(record.metadata)
    cache_writes = [usage[name] for name in CACHE_WRITE_NAMES if isinstance(usage.get(name), int)]
    first_byte = record.time_to_first_byte
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _name_provider(record.ai_org),
        "gen_ai.request.model": record.ai_model,
        "gen_ai.request.stream": record.stream_mode or None,
        "gen_ai.response.time_to_first_chunk": first_byte / 1000 if record.stream_mode and first_byte else None,
        "gen_ai.usage.input_tokens": record.req_units,
        "gen_ai.usage.output_tokens": record.res_units,
        **{USAGE_NAMES[name]: value for name, value in usage.items() if name in USAGE_NAMES},
        "gen_ai.usage.cache_creation.input_tokens": sum(cache_writes) if cache_writes else None,
        "gen_ai.conversation.id": metadata.get("session_id"),
        "error.type": find_error_type(record),
        "server.address": record.attempts[-1].host if record.attempts else None,
        "http.request.method": record.request_method,
        "http.response.status_code": record.response_status_code,
        "url.path": record.request_url.partition("?")[0],
        "user.id": record.user,
        "penstock.cost.usd": None
        if record.cost_nanodollars is None
        else record.cost_nanodollars / NANODOLLARS_PER_DOLLAR,
        **{f"penstock.{name}": getattr(record, name) for name in OWN_FIELDS},
        **{f"penstock.metadata.{name}": value for name, value in metadata.items()},
    }


def _attempt_spans(record: SpanRecord, trace_id: str, parent_id: str, start: int) -> list[dict[str, Any]]:
    """Returns the spans of the attempts. In records of earlier releases, attempts have no start time, so each starts at
    the end of the previous one.
    """
    spans: list[dict[str, Any]] = []
    arrival = start
    start += _to_ns((record.request_parsing_time or 0) + (record.pre_processing_time or 0))
    for number, attempt in enumerate(record.attempts or (), 1):
        if attempt.start is not None:
            start = arrival + _to_ns(attempt.start)
        end = start + _to_ns(attempt.duration)
        span_id = _digest(SPAN_ID_BYTES, record.id.hex, "attempt", str(number))
        span = _make_span(trace_id, span_id, f"attempt {attempt.provider}".strip(), (start, end))
        is_failed = attempt.status is None or attempt.status >= FIRST_ERROR_STATUS_CODE
        error = attempt.error or (str(attempt.status or "_OTHER") if is_failed else "")
        span |= {
            "parentSpanId": parent_id,
            "attributes": encode_attributes(
                {
                    "server.address": attempt.host,
                    "http.response.status_code": attempt.status,
                    "error.type": error,
                    "penstock.attempt.number": number,
                    "penstock.attempt.provider": attempt.provider,
                    "penstock.attempt.virtual_key": attempt.virtual_key,
                    "penstock.attempt.target": attempt.target,
                    "penstock.attempt.model": attempt.model,
                }
            ),
            **({"status": {"code": ERROR_STATUS, "message": error}} if error else {}),
        }
        spans.append(span)
        start = end
    return spans


def _guardrail_spans(record: SpanRecord, trace_id: str, parent_id: str, times: tuple[int, int]) -> list[dict[str, Any]]:
    results = record.hook_results or GuardrailResults()
    spans: list[dict[str, Any]] = []
    for stage, ran in (("input", results.before_request_hooks), ("output", results.after_request_hooks)):
        for number, result in enumerate(ran, 1):
            duration = _to_ns(result.execution_time)
            # A result without a time gets a default: the start of the request for input guardrails, and its end for
            # output guardrails.
            fallback = times[0] if stage == "input" else max(times[0], times[1] - duration)
            start = (parse_time_ns(result.created_at) if result.created_at else 0) or fallback
            span_id = _digest(SPAN_ID_BYTES, record.id.hex, stage, str(number))
            span = _make_span(
                trace_id, span_id, f"guardrail {result.id}".strip(), (start, start + duration), INTERNAL_KIND
            )
            span |= {
                "parentSpanId": parent_id,
                "attributes": encode_attributes(
                    {
                        "penstock.guardrail.id": result.id,
                        "penstock.guardrail.stage": stage,
                        "penstock.guardrail.verdict": result.verdict,
                        "penstock.guardrail.deny": result.deny,
                        "penstock.guardrail.transformed": result.transformed,
                        "penstock.guardrail.skipped": result.skipped,
                        "penstock.guardrail.would_deny": result.would_deny,
                        "penstock.guardrail.failed_checks": [check.id for check in result.checks if not check.verdict]
                        or None,
                    }
                ),
            }
            spans.append(span)
    return spans


def _make_span(
    trace_id: str, span_id: str, name: str, times: tuple[int, int], kind: int = CLIENT_KIND
) -> dict[str, Any]:
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(times[0]),
        "endTimeUnixNano": str(times[1]),
    }


def _encode_value(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any attribute value
    # Strings are checked first, because they are the most frequent type.
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": list(map(_encode_value, cast("list[Any]", value)))}}
    return {"stringValue": str(value)}


def _read_metadata(metadata: dict[str, Any] | None) -> dict[str, str]:
    """Returns the metadata of a record, which is an object or a pair of parallel lists."""
    if not metadata:
        return {}
    pairs = metadata
    if metadata.keys() == {"key", "value"} and isinstance(metadata["key"], list):
        try:
            lists = msgspec.convert(metadata, Metadata)
        except msgspec.ValidationError:
            return {}
        pairs = dict(zip(lists.key, lists.value, strict=False))
    return {name: str(value)[:MAX_TEXT_CHARS] for name, value in list(pairs.items())[:MAX_METADATA_PAIRS]}


def _name_provider(slug: str | None) -> str:
    return PROVIDER_NAMES.get(slug, slug) if slug else ""


def _to_ns(milliseconds: float | None) -> int:
    return round((milliseconds or 0) * 1_000_000)


def _digest(size: int, *parts: str | None) -> str:
    return hashlib.blake2b("\0".join(part or "" for part in parts).encode(), digest_size=size).hexdigest()
