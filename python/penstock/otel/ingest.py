"""OTLP JSON that clients send: spans and log records become custom logs. Attributes of the conventions for generative
AI, and their older names, become the request and the response of a chat.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import BodyTooLargeError, InvalidError, UnsupportedMediaTypeError
from penstock.ids import new_id
from penstock.kit.text_validation import json_body_problems
from penstock.log_api.custom_logs import CustomLog, CustomRequest, CustomResponse, LogIdentity
from penstock.otel.attributes import Attributes, KeyValue, split_attributes, to_plain
from penstock.otel.calls import build_call
from penstock.otel.protobuf import OtlpItems, convert_to_json, is_protobuf
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_ITEMS, MAX_NAME_CHARS, MAX_METADATA_PAIRS = 5000, 512, 48
# Maximum lead of a client's clock. Items with later times are rejected.
MAX_CLOCK_LEAD_MS = 3600 * 1000
HOUR_MS, NANOSECONDS_PER_MS = 3600 * 1000, 1_000_000
GZIP_WINDOW_BITS = 31
TRACE_ID, SPAN_ID = re.compile(r"(?!0{32})[0-9a-fA-F]{32}"), re.compile(r"(?!0{16})[0-9a-fA-F]{16}")
ERROR_STATUS = 2
# Lowest OTLP severity number of an error.
ERROR_SEVERITY = 17
DEFAULT_STATUS, DEFAULT_ERROR_STATUS = 200, 500
JSON_TYPE = "application/json"
CONTENT_TYPE_MESSAGE = (
    "the content type {!r} is not supported; send OTLP as application/x-protobuf or application/json "
    "(OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf or http/json)"
)


class Resource(msgspec.Struct, frozen=True):
    """Program that sends spans or log records."""

    attributes: list[KeyValue] | None = None


class ScopeSpans(msgspec.Struct, frozen=True):
    """Spans of one library. Each span is decoded separately, so that an invalid one does not reject the others."""

    spans: list[msgspec.Raw] | None = None


class ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    """Spans of one program."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] | None = None


class TracesRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a request with spans."""

    resource_spans: list[ResourceSpans] | None = None


class ScopeLogs(msgspec.Struct, frozen=True, rename="camel"):
    """Log records of one library."""

    log_records: list[msgspec.Raw] | None = None


class ResourceLogs(msgspec.Struct, frozen=True, rename="camel"):
    """Log records of one program."""

    resource: Resource | None = None
    scope_logs: list[ScopeLogs] | None = None


class LogsRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a request with log records."""

    resource_logs: list[ResourceLogs] | None = None


class SpanStatus(msgspec.Struct, frozen=True):
    """Status of a span."""

    code: int | None = 0
    message: str | None = ""


class SpanEvent(msgspec.Struct, frozen=True):
    """Event of a span."""

    name: str | None = ""
    attributes: list[KeyValue] | None = None


class Span(msgspec.Struct, frozen=True, rename="camel"):
    """One span."""

    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str | None = None
    parent_span_id: str | None = None
    name: str | None = ""
    attributes: list[KeyValue] | None = None
    events: list[SpanEvent] | None = None
    status: SpanStatus | None = None


class LogRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One log record."""

    time_unix_nano: int | str | None = None
    observed_time_unix_nano: int | str | None = None
    severity_number: int | None = 0
    severity_text: str | None = ""
    event_name: str | None = ""
    body: Any = None
    attributes: list[KeyValue] | None = None
    trace_id: str | None = None
    span_id: str | None = None


class ReceivedLog(NamedTuple):
    """A custom log, and the identity of its record."""

    log: CustomLog
    identity: LogIdentity


class ReceivedLogs(NamedTuple):
    """Logs of a request, the number of rejected items, and the reason of the first rejection."""

    logs: list[ReceivedLog]
    rejected: int
    reason: str


class RejectedItemError(ValueError):
    """Rejected span or log record. The message contains the reason."""


class LogReader:
    """Parses the spans and log records of one request."""

    def __init__(self, workspace_id: str, max_age_hours: int) -> None:
        """Stores the workspace of the logs, and the maximum age of items."""
        self._workspace_id = workspace_id
        self._now = now()
        self._oldest_ms = self._now - max_age_hours * HOUR_MS

    def read_spans(self, body: bytes) -> ReceivedLogs:
        """Returns the logs of spans. Raises `InvalidError` if the body is not a request with spans."""
        return self._read(_iter_spans(_decode(body, TracesRequest)), self._to_log_of_span)

    def read_log_records(self, body: bytes) -> ReceivedLogs:
        """Returns the logs of log records. Raises `InvalidError` if the body is not a request with log records."""
        return self._read(_iter_log_records(_decode(body, LogsRequest)), self._to_log_of_record)

    def _read(self, items: Iterator[tuple[Attributes, msgspec.Raw]], convert: Any) -> ReceivedLogs:  # noqa: ANN401 - one of two methods
        logs: list[ReceivedLog] = []
        rejected, reason = 0, ""
        for number, (resource, item) in enumerate(items):
            if number >= MAX_ITEMS:
                rejected += 1
                reason = reason or f"one request may have at most {MAX_ITEMS} items"
                continue
            try:
                logs.append(convert(item, resource))
            except (msgspec.MsgspecError, RejectedItemError) as error:
                rejected += 1
                reason = reason or f"item {number}: {error}"
        return ReceivedLogs(logs, rejected, reason)

    def _to_log_of_span(self, item: msgspec.Raw, resource: Attributes) -> ReceivedLog:
        span = msgspec.json.decode(item, type=Span)
        if not TRACE_ID.fullmatch(span.trace_id) or not SPAN_ID.fullmatch(span.span_id):
            raise RejectedItemError("traceId must have 32 hexadecimal digits, and spanId 16; not all may be zero")
        start_ns = _read_nanoseconds(span.start_time_unix_nano, "startTimeUnixNano")
        end_ns = _read_nanoseconds(span.end_time_unix_nano or 0, "endTimeUnixNano")
        started_at = self._check_time(start_ns)
        attributes = split_attributes(span.attributes)
        status = span.status or SpanStatus()
        is_error = status.code == ERROR_STATUS
        name = (span.name or "")[:MAX_NAME_CHARS]
        call = build_call(name, attributes)
        events = [
            {"name": event.name, "attributes": split_attributes(event.attributes).values} for event in span.events or ()
        ]
        response_body = call.response_body
        if call.is_plain:
            response_body = {"status": {"code": status.code, "message": status.message}, "events": events}
        log = CustomLog(
            request=CustomRequest(
                url=call.url,
                method=call.method,
                body=call.request_body,
                headers=attributes.request_headers,
                provider=call.provider,
            ),
            response=CustomResponse(
                body=response_body,
                status=attributes.status_code or (DEFAULT_ERROR_STATUS if is_error else DEFAULT_STATUS),
                headers=attributes.response_headers,
                response_time=max(0, end_ns - start_ns) / NANOSECONDS_PER_MS,
            ),
            metadata=_build_metadata(
                resource,
                attributes,
                trace_id=span.trace_id.lower(),
                span_id=span.span_id.lower(),
                span_name=name,
                parent_span_id=(span.parent_span_id or "").lower(),
            ),
        )
        text = f"{self._workspace_id} {span.trace_id.lower()} {span.span_id.lower()}"
        return ReceivedLog(log, LogIdentity(derive_id(text.encode(), started_at), started_at))

    def _to_log_of_record(self, item: msgspec.Raw, resource: Attributes) -> ReceivedLog:
        record = msgspec.json.decode(item, type=LogRecord)
        nanoseconds = record.time_unix_nano or record.observed_time_unix_nano
        moment = _read_nanoseconds(nanoseconds, "timeUnixNano") if nanoseconds else self._now * NANOSECONDS_PER_MS
        attributes = split_attributes(record.attributes)
        name = (record.event_name or str(attributes.values.get("event.name") or "") or "log")[:MAX_NAME_CHARS]
        call = build_call(name, attributes)
        is_error = (record.severity_number or 0) >= ERROR_SEVERITY
        content = {"body": to_plain(record.body), "severity": record.severity_text}
        log = CustomLog(
            request=CustomRequest(
                url=call.url,
                method=call.method,
                body=call.request_body,
                headers=attributes.request_headers,
                provider=call.provider,
            ),
            response=CustomResponse(
                body=content if call.is_plain else {**call.response_body, **content},
                status=attributes.status_code or (DEFAULT_ERROR_STATUS if is_error else DEFAULT_STATUS),
                headers=attributes.response_headers,
            ),
            metadata=_build_metadata(
                resource,
                attributes,
                trace_id=(record.trace_id or "").lower(),
                span_id="",
                span_name=name,
                # A log record becomes a child of its span.
                parent_span_id=(record.span_id or "").lower(),
            ),
        )
        started_at = self._check_time(moment)
        # Without a time, a log record that is sent again cannot be distinguished from a new one.
        identifier = derive_id(self._workspace_id.encode() + bytes(item), started_at) if nanoseconds else new_id()
        return ReceivedLog(log, LogIdentity(identifier, started_at))

    def _check_time(self, nanoseconds: int) -> int:
        """Converts nanoseconds to milliseconds. Rejects times in the future, and times that are too old. An insertion
        looks for duplicates in the files of all days that it has, so old items would delay those of all tenants.
        """
        moment = nanoseconds // NANOSECONDS_PER_MS
        if not self._oldest_ms <= moment <= self._now + MAX_CLOCK_LEAD_MS:
            raise RejectedItemError("its time is in the future, or older than log_store.received_max_age_hours")
        return moment


def derive_id(content: bytes, started_at: int) -> str:
    """Returns the id of an item's record: a UUID version 7 that is the same if the client sends the item again."""
    rest = int.from_bytes(hashlib.blake2b(content, digest_size=10).digest(), "big")
    return str(uuid.UUID(int=(started_at << 80) | (7 << 76) | (rest >> 68 << 64) | (2 << 62) | (rest & (2**62 - 1))))


def read_body(body: bytes, content_type: str, content_encoding: str, items: OtlpItems) -> bytes:
    """Returns the body of a request with `spans` or `log records`, decompressed and as JSON.

    Raises:
        UnsupportedMediaTypeError: its content type or content encoding is not supported.
        BodyTooLargeError: it is too large when decompressed.
        InvalidError: it cannot be decompressed, or does not match its content type.

    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in {JSON_TYPE, ""} and not is_protobuf(content_type):
        raise UnsupportedMediaTypeError(CONTENT_TYPE_MESSAGE.format(kind[:MAX_NAME_CHARS]))
    content = _decompress(body, content_encoding)
    return convert_to_json(content, items) if is_protobuf(content_type) else content


def _decompress(body: bytes, content_encoding: str) -> bytes:
    encoding = content_encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        message = f"the content encoding {encoding[:MAX_NAME_CHARS]!r} is not supported; send gzip, or no compression"
        raise UnsupportedMediaTypeError(message)
    unpacker = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        decompressed = unpacker.decompress(body, MAX_BODY_BYTES)
    except zlib.error:
        raise InvalidError("the body is not valid gzip data") from None
    if unpacker.unconsumed_tail:
        raise BodyTooLargeError(f"the decompressed body is too long; at most {MAX_BODY_BYTES} bytes are allowed")
    if not unpacker.eof:
        raise InvalidError("the body is not valid gzip data: its end is missing")
    return decompressed


def _decode(body: bytes, kind: type[Any]) -> Any:  # noqa: ANN401 - an instance of `kind`
    if problems := json_body_problems(body):
        raise InvalidError(f"{problems[0].path or 'the body'} {problems[0].message}", problems)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidError(f"the body is not OTLP JSON: {error}") from None


def _iter_spans(request: TracesRequest) -> Iterator[tuple[Attributes, msgspec.Raw]]:
    for group in request.resource_spans or ():
        resource = _read_resource(group.resource)
        for scope in group.scope_spans or ():
            for span in scope.spans or ():
                yield resource, span


def _iter_log_records(request: LogsRequest) -> Iterator[tuple[Attributes, msgspec.Raw]]:
    for group in request.resource_logs or ():
        resource = _read_resource(group.resource)
        for scope in group.scope_logs or ():
            for record in scope.log_records or ():
                yield resource, record


def _read_resource(resource: Resource | None) -> Attributes:
    return split_attributes(resource.attributes if resource else None)


def _build_metadata(resource: Attributes, attributes: Attributes, **trace: str) -> dict[str, Any]:
    """Returns the metadata of a log: its trace, the service, the user, and attributes with short values."""
    service = resource.values.get("service.name")
    pairs = {
        **({"service.name": service} if isinstance(service, str) else {}),
        **{name: value for name, value in attributes.metadata.items() if name not in trace},
    }
    return {**trace, **dict(list(pairs.items())[:MAX_METADATA_PAIRS])}


def _read_nanoseconds(value: int | str, name: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise RejectedItemError(f"{name} must be a number of nanoseconds") from None
    if not 0 <= number < 2**64:
        raise RejectedItemError(f"{name} must be a number of nanoseconds since 1970")
    return number
