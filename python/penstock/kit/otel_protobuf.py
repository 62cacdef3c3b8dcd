"""OTLP in protobuf, the usual encoding of exporters, converted to OTLP JSON and back."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from penstock.errors import BodyTooLargeError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

PROTOBUF_TYPE = "application/x-protobuf"
# An empty message has two bytes and becomes an object in memory, so this is less than the limit of JSON.
MAX_PROTOBUF_BYTES = 8 * 1024 * 1024
# OTLP JSON has these as hexadecimal digits. The general rule for bytes in JSON is base64.
ID_FIELDS = ("traceId", "spanId", "parentSpanId")
OtlpItems = Literal["spans", "log records"]
REQUESTS: dict[OtlpItems, type[Message]] = {"spans": ExportTraceServiceRequest, "log records": ExportLogsServiceRequest}
RESPONSES: dict[OtlpItems, type[Message]] = {
    "spans": ExportTraceServiceResponse,
    "log records": ExportLogsServiceResponse,
}


def is_protobuf(content_type: str) -> bool:
    """Returns true if the content type of a request is that of protobuf."""
    return content_type.partition(";")[0].strip().lower() == PROTOBUF_TYPE


def convert_to_json(body: bytes, items: OtlpItems) -> bytes:
    """Converts a request with `spans` or `log records` to OTLP JSON. Raises `InvalidError` or `BodyTooLargeError`."""
    if len(body) > MAX_PROTOBUF_BYTES:
        message = f"the decompressed body is too long; at most {MAX_PROTOBUF_BYTES} bytes of protobuf are allowed"
        raise BodyTooLargeError(message)
    request = REQUESTS[items]()
    try:
        request.ParseFromString(body)
        fields = json_format.MessageToDict(request, use_integers_for_enums=True)
    except (DecodeError, json_format.Error, RecursionError, UnicodeDecodeError) as error:
        message = f"the body is not a protobuf request with {items}: {error}"
        raise InvalidError(message) from None
    for item in _iter_items(fields):
        for name in ID_FIELDS:
            if name in item:
                item[name] = base64.b64decode(item[name]).hex()
    return msgspec.json.encode(fields)


def encode_response(content: object, items: OtlpItems) -> bytes:
    """Encodes the response to a request with `spans` or `log records`."""
    return json_format.ParseDict(msgspec.to_builtins(content), RESPONSES[items]()).SerializeToString()


def _iter_items(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource, scope, items in (
        ("resourceSpans", "scopeSpans", "spans"),
        ("resourceLogs", "scopeLogs", "logRecords"),
    ):
        for group in fields.get(resource, ()):
            for part in group.get(scope, ()):
                yield from part.get(items, ())
