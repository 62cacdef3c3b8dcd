"""Spans of records: names, ids, attributes of the conventions, errors, and child spans."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from penstock.logs.otel_spans import build_spans, decode_record
from tests.otel_collector import attributes_of

ID = uuid.UUID("0199aaaa-0000-7000-8000-0000000000ab")
TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "53995c3f42cd8ad8"
START_NS = 1_763_640_000_123_000_000


def make_spans(body_attributes: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    record = {
        "id": str(ID),
        "created_at": "2025-11-20T12:00:00.123Z",
        "organisation_id": "o",
        "workspace_id": "w",
        "operation": "chatComplete",
        "ai_org": "openai",
        "ai_model": "gpt-5",
        "response_status_code": 200,
        "response_time": 1000.5,
        "outcome": "complete",
        **fields,
    }
    return build_spans(decode_record(json.dumps(record).encode()), body_attributes or {})


def make_attributes(**fields: Any) -> dict[str, Any]:
    return attributes_of(make_spans(**fields)[0])


def test_request_becomes_a_client_span_with_its_times():
    (span,) = make_spans()
    assert (span["name"], span["kind"]) == ("chat gpt-5", 3)
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == (str(START_NS), str(START_NS + 1_000_500_000))
    assert "status" not in span
    assert "parentSpanId" not in span


@pytest.mark.parametrize(
    ("operation", "provider", "names"),
    [
        ("messages", "anthropic", ("chat", "anthropic")),
        ("createModelResponse", "azure-openai", ("chat", "azure.ai.openai")),
        ("generateContent", "google", ("generate_content", "gcp.gemini")),
        ("converse", "bedrock", ("chat", "aws.bedrock")),
        ("complete", "mistral-ai", ("text_completion", "mistral_ai")),
        ("embed", "x-ai", ("embeddings", "x_ai")),
        ("imageGenerate", "recraft-ai", ("imageGenerate", "recraft-ai")),
    ],
)
def test_names_are_those_of_the_conventions(operation: str, provider: str, names: tuple[str, str]):
    values = make_attributes(operation=operation, ai_org=provider)
    assert (values["gen_ai.operation.name"], values["gen_ai.provider.name"]) == names


def test_w3c_ids_are_preserved():
    (span,) = make_spans(trace_id=TRACE.upper(), span_id=SPAN, parent_span_id=PARENT)
    assert (span["traceId"], span["spanId"], span["parentSpanId"]) == (TRACE, SPAN, PARENT)


@pytest.mark.parametrize("trace_id", ["order-17", "0" * 32, "g" * 32, "4bf92f35"])
def test_other_trace_ids_are_derived_within_their_workspace(trace_id: str):
    ids = {
        make_spans(trace_id=trace_id, workspace_id=workspace, id=str(uuid.uuid4()))[0]["traceId"]
        for workspace in ("w", "w", "x")
    }
    assert len(ids) == 2
    assert all(len(text) == 32 and text != trace_id and int(text, 16) for text in ids)
    assert make_attributes(trace_id=trace_id)["penstock.trace_id"] == trace_id


def test_record_id_is_the_trace_without_one():
    for trace_id in ("", str(ID)):
        (span,) = make_spans(trace_id=trace_id)
        assert (span["traceId"], span["spanId"]) == (ID.hex, ID.hex[16:])


def test_children_find_a_parent_whose_id_is_derived():
    (parent,) = make_spans(trace_id="t", span_id="step-1")
    (child,) = make_spans(trace_id="t", parent_span_id="step-1", id=str(uuid.uuid4()))
    assert child["parentSpanId"] == parent["spanId"]
    assert child["spanId"] != parent["spanId"]
    assert make_spans(trace_id="other", span_id="step-1")[0]["spanId"] != parent["spanId"]


def test_attributes_have_usage_and_cost():
    usage = {"input": 5, "cache_read": 3, "cache_write_5m": 1, "cache_write_1h": 1, "reasoning": 4, "maps": 2}
    values = make_attributes(
        req_units=10,
        res_units=6,
        usage=usage,
        cost_nanodollars=2_500_000,
        stream_mode=True,
        time_to_first_byte=250,
        metadata={"_user": "ann", "session_id": "s", "team": "red"},
        user="ann",
        request_method="POST",
        request_url="/v1/chat/completions?a=b",
        virtual_key="prod",
        cache_status="miss",
    )
    expected = {
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "gen_ai.conversation.id": "s",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "user.id": "ann",
        "penstock.cost.usd": 0.0025,
        "penstock.virtual_key": "prod",
        "penstock.cache_status": "miss",
        "penstock.metadata.team": "red",
        "penstock.organisation_id": "o",
        "penstock.workspace_id": "w",
    }
    assert {name: values.get(name) for name in expected} == expected
    assert "gen_ai.request.stream" not in make_attributes(stream_mode=False)


def test_metadata_of_external_records_is_read():
    values = make_attributes(metadata={"key": ["team", "size"], "value": ["red", 3]})
    assert (values["penstock.metadata.team"], values["penstock.metadata.size"]) == ("red", "3")
    assert make_attributes(metadata={"key": "a", "value": "b"})["penstock.metadata.key"] == "a"
    assert not [name for name in make_attributes(metadata={"key": [1], "value": 2}) if "metadata" in name]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"response_status_code": 429}, "429"),
        ({"response_status_code": 302}, "302"),
        ({"response_status_code": 503, "error": "timeout"}, "timeout"),
        ({"outcome": "aborted"}, "aborted"),
        ({"outcome": "killed", "response_status_code": None, "response_time": None}, "killed"),
        ({"response_status_code": 246}, None),
        ({"response_status_code": 101}, None),
    ],
)
def test_error_type_says_how_a_request_failed(fields: dict[str, Any], error: str | None):
    (span,) = make_spans(**fields)
    assert attributes_of(span).get("error.type") == error
    assert span.get("status") == (error and {"code": 2, "message": error})


def test_attempts_are_children_in_sequence():
    attempts = [
        {"provider": "openai", "host": "api.openai.com", "status": 429, "duration": 10},
        {"provider": "openai", "host": "api.openai.com", "duration": 5, "error": "connect_timeout"},
        {"provider": "anthropic", "host": "api.anthropic.com", "status": 200, "duration": 100.5},
    ]
    root, *children = make_spans(attempts=attempts, request_parsing_time=1, pre_processing_time=2)
    assert [child["name"] for child in children] == ["attempt openai", "attempt openai", "attempt anthropic"]
    assert {(child["traceId"], child["parentSpanId"]) for child in children} == {(root["traceId"], root["spanId"])}
    assert len({span["spanId"] for span in (root, *children)}) == 4
    assert [attributes_of(child).get("error.type") for child in children] == ["429", "connect_timeout", None]
    assert ["status" in child for child in children] == [True, True, False]
    starts = [int(child["startTimeUnixNano"]) - START_NS for child in children]
    assert starts == [3_000_000, 13_000_000, 18_000_000]
    assert int(children[2]["endTimeUnixNano"]) - START_NS == 118_500_000
    assert attributes_of(root)["server.address"] == attributes_of(children[2])["server.address"] == "api.anthropic.com"
    # Token counts are only in the span of the request, so that sums are right.
    assert not [name for child in children for name in attributes_of(child) if name.startswith("gen_ai.")]


def test_hedged_attempts_overlap():
    attempts = [{"provider": "a", "start": 5, "duration": 100}, {"provider": "b", "start": 50.5, "duration": 20}]
    attempts[1] |= {"virtual_key": "b-main", "model": "m", "target": "config.targets[1]"}
    _, *children = make_spans(attempts=attempts, request_parsing_time=1, pre_processing_time=2)
    attributes = attributes_of(children[1])
    names = ("penstock.attempt.virtual_key", "penstock.attempt.model", "penstock.attempt.target")
    assert [attributes[name] for name in names] == ["b-main", "m", "config.targets[1]"]
    times = [[int(child[f"{edge}TimeUnixNano"]) - START_NS for edge in ("start", "end")] for child in children]
    assert times == [[5_000_000, 105_000_000], [50_500_000, 70_500_000]]


def test_guardrails_are_children_without_their_data():
    results = {
        "before_request_hooks": [
            {"id": "pii", "verdict": False, "deny": True, "execution_time": 7, "checks": [{"data": {"text": "secret"}}],
             "created_at": "2025-11-20T12:00:00.200Z"},
            {"id": "skip", "type": "guardrail", "skipped": True},
        ],
        "after_request_hooks": [{"id": "json", "verdict": True, "execution_time": 2}],
    }  # fmt: skip
    root, *children = make_spans(hook_results=results)
    assert [(child["name"], child["kind"]) for child in children] == [
        ("guardrail pii", 1),
        ("guardrail skip", 1),
        ("guardrail json", 1),
    ]
    assert {child["parentSpanId"] for child in children} == {root["spanId"]}
    values = attributes_of(children[0])
    assert values["penstock.guardrail.verdict"] is False
    assert values["penstock.guardrail.deny"] is True
    assert values["penstock.guardrail.stage"] == "input"
    assert "secret" not in json.dumps(children)
    assert int(children[0]["startTimeUnixNano"]) - START_NS == 77_000_000
    assert children[2]["endTimeUnixNano"] == root["endTimeUnixNano"]


def test_values_are_encoded_as_otlp_json():
    (span,) = make_spans({"a": ["x", "y"], "b": 1.5, "c": True, "d": 2**60, "e": None, "f": ""})
    attributes = {item["key"]: item["value"] for item in span["attributes"]}
    assert attributes["a"] == {"arrayValue": {"values": [{"stringValue": "x"}, {"stringValue": "y"}]}}
    assert (attributes["b"], attributes["c"], attributes["d"]) == (
        {"doubleValue": 1.5},
        {"boolValue": True},
        {"intValue": "1152921504606846976"},
    )
    assert not {"e", "f"} & attributes.keys()


def test_record_with_an_unreadable_time_becomes_a_span():
    (span,) = make_spans(created_at="yesterday")
    assert span["startTimeUnixNano"] == "0"
