"""Spans and log records as custom logs: names of attributes, values that are rejected, and bodies."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import time
from typing import Any

import msgspec
import pytest

from penstock.errors import BodyTooLargeError, InvalidError, UnsupportedMediaTypeError
from penstock.log_api.custom_logs import CustomLog, CustomLogWriter, LogOrigin
from penstock.otel import ingest as otel_ingest
from penstock.otel.ingest import LogReader, ReceivedLogs, read_body
from penstock.pricing.cost_calculator import CostCalculator
from penstock.settings import Settings
from tests.otlp import (
    CALL_ATTRIBUTES,
    CALL_REQUEST,
    CANARY,
    PARENT,
    SPAN,
    TRACE,
    encode_attributes,
    make_logs,
    make_span,
    make_traces,
)


def read_spans(*spans: Any, workspace: str = "w") -> ReceivedLogs:
    return LogReader(workspace, 48).read_spans(json.dumps(make_traces(*spans)).encode())


def read_one(span: Any) -> CustomLog:
    (spans,) = read_spans(span).logs
    return spans.log


def test_call_of_a_model_is_in_the_format_of_openai():
    log = read_one(make_span())
    assert (log.request.url, log.request.method, log.request.provider) == (
        "https://api.openai.com/v1/chat/completions",
        "POST",
        "openai",
    )
    assert log.request.body == CALL_REQUEST
    assert log.response.body == {
        "model": "gpt-4o-2024",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    assert (log.response.status, log.response.response_time) == (200, 250)
    assert log.metadata
    expected = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "parent_span_id": PARENT,
        "span_name": "chat gpt-4o",
        "service.name": "agent",
        "_user": "ann",
        "session_id": "s-1",
        "team": "red",
    }
    assert {name: log.metadata[name] for name in expected} == expected
    assert not {"gen_ai.input.messages", "gen_ai.output.messages", "url.query"} & log.metadata.keys()


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.system": "openai", "gen_ai.request.model": "gpt-4o", "gen_ai.usage.prompt_tokens": 10,
         "gen_ai.usage.completion_tokens": 5, "gen_ai.prompt": "zebra"},
        {"llm.provider": "openai", "llm.model_name": "gpt-4o", "llm.token_count.prompt": 10,
         "llm.token_count.completion": "5", "input.value": "zebra"},
        {"gen_ai.provider.name": "openai", "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o",
         "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5,
         "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "zebra"}]}]},
    ],
)  # fmt: skip
def test_older_names_and_structured_values_are_read(attributes: dict[str, Any]):
    log = read_one(make_span(attributes))
    assert (log.request.provider, log.request.body["model"]) == ("openai", "gpt-4o")
    assert log.request.body["messages"] == [{"role": "user", "content": "zebra"}]
    assert log.response.body["usage"]["total_tokens"] == 15


@pytest.mark.parametrize(
    ("name", "slug"), [("gcp.vertex_ai", "vertex-ai"), ("aws.bedrock", "bedrock"), ("cohere", "cohere"), ("x", "x")]
)
def test_providers_have_their_slugs(name: str, slug: str):
    log = read_one(make_span({**CALL_ATTRIBUTES, "gen_ai.provider.name": name}))
    assert log.request.provider == slug


def test_usage_has_its_parts():
    details = {"gen_ai.usage.cache_read.input_tokens": 4, "gen_ai.usage.reasoning.output_tokens": 99}
    usage = read_one(make_span({**CALL_ATTRIBUTES, **details})).response.body["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    # A detail is never larger than the total that contains it.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}


@pytest.mark.parametrize("operation", ["execute_tool", "invoke_agent"])
def test_span_of_an_agent_is_no_call_of_a_model(operation: str):
    log = read_one(make_span({**CALL_ATTRIBUTES, "gen_ai.operation.name": operation}))
    assert "usage" not in log.response.body
    assert log.request.body["attributes"]["gen_ai.operation.name"] == operation


def test_other_spans_have_their_attributes_as_body():
    attributes = {
        "http.method": "GET",
        "http.url": f"https://user:{CANARY}@a.test/x?key={CANARY}",
        "http.status_code": 404,
        "deep": {"list": [1, 2.5, True, "x"]},
    }
    events = [{"name": "exception", "attributes": encode_attributes({"exception.type": "E"})}]
    log = read_one(make_span(attributes, name="GET /x", status={"code": 2, "message": "no"}, events=events))
    assert (log.response.status, log.request.method) == (404, "GET")
    assert log.request.body["attributes"]["deep"] == {"list": [1, 2.5, True, "x"]}
    assert log.response.body == {
        "status": {"code": 2, "message": "no"},
        "events": [{"name": "exception", "attributes": {"exception.type": "E"}}],
    }
    assert CANARY not in msgspec.json.encode(log).decode()
    assert read_one(make_span({}, status={"code": 2})).response.status == 500


def test_id_is_the_same_for_a_span_that_is_sent_again():
    span = make_span()
    (first,) = read_spans(span).logs
    (again,) = read_spans({**span, "traceId": TRACE.upper()}).logs
    assert first.identity == again.identity
    assert first.identity.id[14] == "7"
    assert first.identity.started_at == int(span["startTimeUnixNano"]) // 1_000_000
    others = [
        read_spans(span, workspace="x"),
        read_spans({**span, "spanId": PARENT}),
        read_spans({**span, "traceId": TRACE[::-1]}),
    ]
    assert len({first.identity.id, *(other.logs[0].identity.id for other in others)}) == 4


@pytest.mark.parametrize(
    ("span", "word"),
    [
        (make_span(traceId="0" * 32), "traceId"),
        (make_span(traceId="xyz"), "traceId"),
        (make_span(spanId=SPAN + "0"), "spanId"),
        (make_span(spanId=7), "spanId"),
        (make_span(startTimeUnixNano="soon"), "startTimeUnixNano"),
        (make_span(startTimeUnixNano="-1"), "startTimeUnixNano"),
        (make_span(endTimeUnixNano=str(2**64)), "endTimeUnixNano"),
        (make_span(startTimeUnixNano="0"), "received_max_age_hours"),
        (make_span(age_seconds=-7200), "future"),
        (make_span(age_seconds=49 * 3600), "received_max_age_hours"),
        (make_span(attributes="x"), "attributes"),
        (make_span(attributes=[{"value": {}}]), "key"),
        ({"name": "x"}, "traceId"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_invalid_span_is_rejected_without_the_others(span: Any, word: str):
    spans = read_spans(make_span(spanId=PARENT), span, make_span())
    assert (len(spans.logs), spans.rejected) == (2, 1)
    assert spans.reason.startswith("item 1: ")
    assert word in spans.reason


def test_items_beyond_the_limit_are_rejected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(otel_ingest, "MAX_ITEMS", 2)
    spans = read_spans(*[make_span()] * 5)
    assert (len(spans.logs), spans.rejected) == (2, 3)
    assert "at most 2 items" in spans.reason


def test_log_record_that_is_sent_again_has_the_same_id():
    moment = time.time_ns()
    items = [{"timeUnixNano": str(moment), "body": {"stringValue": text}} for text in ("x", "y")]
    body = json.dumps(make_logs(*items, {"body": {"stringValue": "x"}})).encode()
    first, second = ([log.identity.id for log in LogReader("w", 48).read_log_records(body).logs] for _ in range(2))
    assert first[:2] == second[:2]
    # It has no time.
    assert first[2] != second[2]
    assert len({*first, *second}) == 4
    other = [log.identity.id for log in LogReader("other", 48).read_log_records(body).logs]
    assert not {*other} & {*first}


def test_log_record_without_a_trace_is_read():
    body = json.dumps(make_logs({"body": {"stringValue": "x"}}, {"timeUnixNano": "never"})).encode()
    actual = LogReader("w", 48).read_log_records(body)
    (item,) = actual.logs
    assert (item.log.response.body, item.log.response.status) == ({"body": "x", "severity": ""}, 200)
    assert actual.rejected == 1


ODD_VALUES: list[Any] = [
    None, 1, "x", [], {}, {"stringValue": 1}, {"intValue": "x"}, {"intValue": {}}, {"doubleValue": "NaN"},
    {"doubleValue": "Infinity"}, {"arrayValue": 1}, {"arrayValue": {"values": 1}}, {"kvlistValue": {"values": [1]}},
    {"kvlistValue": {}}, {"boolValue": None}, {"arrayValue": {"values": [{"stringValue": "x"}, 1, None]}},
    {"stringValue": '{"role":1}'}, {"stringValue": "[[1]]"}, {"stringValue": '[{"role":1,"parts":[{"type":[]}]}]'},
    {"intValue": str(10**400)}, {"intValue": -5}, {"stringValue": "9" * 5000}, {"intValue": str(2**62)},
]  # fmt: skip


def test_odd_values_become_logs_that_can_be_stored():
    names = (*CALL_ATTRIBUTES, "http.response.status_code", "http.request.method", "gen_ai.prompt", "")
    model = [item for item in encode_attributes(CALL_ATTRIBUTES) if item["key"] == "gen_ai.request.model"]
    spans: list[Any] = []
    for odd in ODD_VALUES:
        attributes = [{"key": name, "value": copy.deepcopy(odd)} for name in names]
        operation = {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}
        spans += [make_span(attributes=attributes), make_span(attributes=[*attributes, *model, operation])]
    result = read_spans(*spans)
    assert (len(result.logs), result.rejected) == (len(spans), 0)
    settings = Settings()
    writer = CustomLogWriter(settings, CostCalculator(settings))
    origin = LogOrigin({"organisation_id": "o"}, keeps_bodies=True, providers={}, prices={})
    logs, identities = [item.log for item in result.logs], [item.identity for item in result.logs]
    ids, frames = asyncio.run(writer.encode_frames(logs, origin, identities))
    assert (len(ids), len(frames)) == (len(spans), 3 * len(spans))


def test_compressed_body_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(otel_ingest, "MAX_BODY_BYTES", 1000)
    assert read_body(gzip.compress(b"x" * 1000), "application/json; charset=utf-8", "GZIP", "spans") == b"x" * 1000
    with pytest.raises(BodyTooLargeError, match="1000 bytes"):
        read_body(gzip.compress(b"x" * 100_000), "application/json", "gzip", "spans")
    for broken in (b"x", gzip.compress(b"x" * 100)[:-12], b""):
        with pytest.raises(InvalidError, match="gzip"):
            read_body(broken, "application/json", "gzip", "spans")


@pytest.mark.parametrize(
    ("content_type", "encoding", "word"),
    [
        ("application/grpc", "", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf or http/json"),
        ("text/plain", "", "text/plain"),
        ("application/json", "br", "'br' is not supported"),
    ],
)
def test_other_media_types_are_rejected(content_type: str, encoding: str, word: str):
    with pytest.raises(UnsupportedMediaTypeError, match=word):
        read_body(b"{}", content_type, encoding, "spans")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"resourceSpans":{}}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[1}]}]}',
        b'{"resourceSpans":"\\u0000"}',
        b"\xff",
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_body_that_is_no_otlp_is_invalid(body: bytes):
    with pytest.raises(InvalidError):
        LogReader("w", 48).read_spans(body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"resourceSpans":null}', b'{"resourceSpans":[{"scopeSpans":null}]}'])
def test_request_without_spans_is_accepted(body: bytes):
    assert LogReader("w", 48).read_spans(body) == ReceivedLogs([], 0, "")
