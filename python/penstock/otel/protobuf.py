"""OTLP in protobuf, the usual encoding of exporters, converted to OTLP JSON and back."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from penstock.errors import BodyTooLargeError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

PROTOBUF_TYPE = "application/x-protobuf"
# Maximum size of a body. It is below the limit of JSON, because an empty message of two bytes becomes an object in
# memory.
MAX_PROTOBUF_BYTES = 8 * 1024 * 1024
# Maximum number of nested messages in a request, each of which becomes an object in memory. A request of 512 spans with
# 30 attributes each has about 31,000.
MAX_MESSAGES = 100_000
# Maximum number of fields of all kinds in a request, so that reading them takes well below a second.
MAX_FIELDS = 400_000
VARINT, FIXED_64, LENGTH_DELIMITED, FIXED_32 = 0, 1, 2, 5
# Fields that OTLP JSON contains as hexadecimal digits. Protobuf's general rule for bytes in JSON is base64.
ID_FIELDS = ("traceId", "spanId", "parentSpanId")
OtlpItems = Literal["spans", "log records"]


class ProtobufTypes(NamedTuple):
    """The messages of OTLP, and the module that converts them."""

    requests: dict[OtlpItems, type[Message]]
    responses: dict[OtlpItems, type[Message]]
    # `google.protobuf.json_format` has no types.
    json_format: Any
    errors: tuple[type[Exception], ...]


@cache
def load_types() -> ProtobufTypes:
    """Imports protobuf and the messages. Most gateways receive no OTLP, and do not need their 2 MB."""
    from google.protobuf import json_format  # noqa: PLC0415 - see the comment above
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (  # noqa: PLC0415
        ExportLogsServiceRequest,
        ExportLogsServiceResponse,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    return ProtobufTypes(
        {"spans": ExportTraceServiceRequest, "log records": ExportLogsServiceRequest},
        {"spans": ExportTraceServiceResponse, "log records": ExportLogsServiceResponse},
        json_format,
        (DecodeError, json_format.Error, RecursionError, UnicodeDecodeError),
    )


def is_protobuf(content_type: str) -> bool:
    """Returns true if the content type of a request is that of protobuf."""
    return content_type.partition(";")[0].strip().lower() == PROTOBUF_TYPE


def convert_to_json(body: bytes, items: OtlpItems) -> bytes:
    """Converts a request with `spans` or `log records` to OTLP JSON. Raises `InvalidError` or `BodyTooLargeError`."""
    if len(body) > MAX_PROTOBUF_BYTES:
        message = f"the decompressed body is too long; at most {MAX_PROTOBUF_BYTES} bytes of protobuf are allowed"
        raise BodyTooLargeError(message)
    types = load_types()
    request = types.requests[items]()
    if not _has_few_messages(body, items):
        message = (
            f"the body has more than {MAX_MESSAGES} messages or {MAX_FIELDS} fields; send fewer {items} in one request"
        )
        raise BodyTooLargeError(message)
    try:
        request.ParseFromString(body)
        fields = types.json_format.MessageToDict(request, use_integers_for_enums=True)
    except types.errors as error:
        message = f"the body is not a protobuf request with {items}: {error}"
        raise InvalidError(message) from None
    for item in _iter_items(fields):
        for name in ID_FIELDS:
            if name in item:
                item[name] = base64.b64decode(item[name]).hex()
    return msgspec.json.encode(fields)


def _has_few_messages(body: bytes, items: OtlpItems) -> bool:
    """Returns false if the body contains more than `MAX_MESSAGES` messages or `MAX_FIELDS` fields. Stops at malformed
    data, which the parser reports later. The time depends on the number of fields, not on their length.
    """
    message_count, fields_read = 0, 0
    waiting: list[tuple[int, int, Any]] = [(0, len(body), load_types().requests[items].DESCRIPTOR)]
    while waiting:
        position, end, kind = waiting.pop()
        while position < end:
            fields_read += 1
            found_field = _read_field(body, position, end)
            if found_field is None:
                break
            number, start, position = found_field
            field = kind.fields_by_number.get(number)
            if start is not None and field is not None and field.message_type is not None:
                message_count += 1
                waiting.append((start, position, field.message_type))
            if message_count > MAX_MESSAGES or fields_read > MAX_FIELDS:
                return False
    return True


def _read_field(body: bytes, position: int, end: int) -> tuple[int, int | None, int] | None:
    """Reads the field at a position. Returns its number, the start of its content if that has a length, and the end of
    the field; `None` if it is malformed.
    """
    read = _read_varint(body, position, end)
    if read is None:
        return None
    key, position = read
    start: int | None = None
    if key & 7 == LENGTH_DELIMITED:
        read = _read_varint(body, position, end)
        if read is None:
            return None
        length, start = read
        position = start + length
    elif key & 7 == VARINT:
        read = _read_varint(body, position, end)
        if read is None:
            return None
        position = read[1]
    elif key & 7 in {FIXED_64, FIXED_32}:
        position += 8 if key & 7 == FIXED_64 else 4
    else:
        return None
    return (key >> 3, start, position) if position <= end else None


def _read_varint(body: bytes, position: int, end: int) -> tuple[int, int] | None:
    value = shift = 0
    while position < end and shift < 70:  # noqa: PLR2004 - a varint has at most ten bytes of seven bits
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit is set if more bytes follow
            return value, position
        shift += 7
    return None


def encode_response(content: object, items: OtlpItems) -> bytes:
    """Encodes the response to a request with `spans` or `log records`."""
    types = load_types()
    return types.json_format.ParseDict(msgspec.to_builtins(content), types.responses[items]()).SerializeToString()


def _iter_items(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource, scope, items in (
        ("resourceSpans", "scopeSpans", "spans"),
        ("resourceLogs", "scopeLogs", "logRecords"),
    ):
        for group in fields.get(resource, ()):
            for part in group.get(scope, ()):
                yield from part.get(items, ())
