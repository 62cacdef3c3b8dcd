"""OTLP in protobuf: the same logs as from OTLP JSON, and responses in protobuf."""

from __future__ import annotations

import gzip
import json
import time

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from penstock.errors import BodyTooLargeError, InvalidError
from penstock.otel import protobuf as otel_protobuf
from penstock.otel.ingest import LogReader, read_body
from penstock.otel.protobuf import PROTOBUF_TYPE, convert_to_json, encode_response
from penstock.resources.otel import RejectedSpans, TracesResponse

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "00000000000000ff"


def make_traces() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    span = group.scope_spans.add().spans.add(
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(SPAN),
        parent_span_id=bytes.fromhex(PARENT),
        name="chat gpt-4o",
        start_time_unix_nano=time.time_ns(),
        end_time_unix_nano=time.time_ns() + 2_000_000,
    )
    span.attributes.add(key="gen_ai.request.model").value.string_value = "gpt-4o"
    span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = 9
    nested = span.attributes.add(key="nested").value.kvlist_value.values.add(key="list").value.array_value.values
    nested.add().double_value = 0.5
    nested.add().bytes_value = b"\x00\xff"
    span.status.code = Status.STATUS_CODE_ERROR
    return request


def test_protobuf_and_json_become_the_same_logs():
    request = make_traces()
    as_json = json_format.MessageToDict(request, use_integers_for_enums=True)
    (span,) = as_json["resourceSpans"][0]["scopeSpans"][0]["spans"]
    span |= {"traceId": TRACE, "spanId": SPAN, "parentSpanId": PARENT}
    reader = LogReader("w", 48)
    body = gzip.compress(request.SerializeToString())
    spans = reader.read_spans(read_body(body, f"{PROTOBUF_TYPE}; x=y", "gzip", "spans"))
    assert spans == reader.read_spans(json.dumps(as_json).encode())
    assert spans.rejected == 0
    metadata = spans.logs[0].log.metadata or {}
    assert (metadata["trace_id"], metadata["parent_span_id"]) == (TRACE, PARENT)


def test_log_records_are_read():
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(severity_number=17, event_name="failed")
    record.trace_id = bytes.fromhex(TRACE)
    record.body.string_value = "no answer"
    actual = LogReader("w", 48).read_log_records(convert_to_json(request.SerializeToString(), "log records"))
    metadata = actual.logs[0].log.metadata or {}
    assert (metadata["trace_id"], metadata["span_name"]) == (TRACE, "failed")


@pytest.mark.parametrize("body", [b"\x0a\x00\xff", b"{}", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f"])
def test_other_bytes_are_invalid(body: bytes):
    with pytest.raises(InvalidError, match="protobuf request with spans"):
        convert_to_json(body, "spans")


def test_deeply_nested_values_are_invalid():
    request = make_traces()
    value = request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="deep").value
    for _ in range(200):
        value = value.array_value.values.add()
    value.string_value = "x"
    with pytest.raises(InvalidError):
        convert_to_json(request.SerializeToString(), "spans")


def test_large_bodies_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(otel_protobuf, "MAX_PROTOBUF_BYTES", 10)
    with pytest.raises(BodyTooLargeError, match="10 bytes of protobuf"):
        convert_to_json(b"x" * 11, "spans")


def encode_field(number: int, content: bytes) -> bytes:
    length, varint = len(content), b""
    while True:
        length, low = length >> 7, length & 0x7F
        varint += bytes([low | (0x80 if length else 0)])
        if not length:
            return bytes([number << 3 | 2]) + varint + content


@pytest.mark.parametrize(
    "path",
    [
        (1, 2, 2),  # spans
        (1, 2, 2, 9),  # attributes of a span
        (1, 2, 2, 9, 2, 5, 1),  # values of a list
        (1, 1, 1),  # attributes of the resource
    ],
)
def test_many_messages_are_refused_before_they_are_parsed(path: tuple[int, ...]):
    *outer, repeated = path
    for count, is_allowed in ((otel_protobuf.MAX_MESSAGES // 2, True), (1_000_000, False)):
        body = encode_field(repeated, b"") * count
        for number in reversed(outer):
            body = encode_field(number, body)
        assert otel_protobuf._has_few_messages(body, "spans") is is_allowed
    with pytest.raises(BodyTooLargeError, match="more than 100000 messages or 400000 fields"):
        convert_to_json(body, "spans")


def test_many_fields_are_refused():
    with pytest.raises(BodyTooLargeError, match="400000 fields"):
        convert_to_json(b"\x58\x01" * 500_000, "spans")


def test_response_is_protobuf_too():
    rejected = RejectedSpans(rejected_spans="3", error_message="too old")
    encoded = encode_response(TracesResponse(partial_success=rejected), "spans")
    response = ExportTraceServiceResponse.FromString(encoded)
    assert (response.partial_success.rejected_spans, response.partial_success.error_message) == (3, "too old")
    assert encode_response(TracesResponse(), "spans") == b""
