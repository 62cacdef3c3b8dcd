"""Attributes from bodies: parameters in every API format, and how responses ended, whole or streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.logs import spool_format as spool
from penstock.logs.otel_content import MAX_CONTENT_BYTES, find_edge_events, read_body_attributes


def read(request: object = None, response: object = None, *, with_content: bool = False) -> dict[str, Any]:
    bodies = {spool.CLIENT_REQUEST: json.dumps(request).encode()} if request is not None else {}
    if response is not None:
        bodies[spool.UPSTREAM_RESPONSE] = response if isinstance(response, bytes) else json.dumps(response).encode()
    attributes = read_body_attributes(bodies, with_content=with_content)
    return {name.removeprefix("gen_ai."): value for name, value in attributes.items() if value is not None}


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\r\ndata: %b\r\n\r\n" % json.dumps(event).encode() for event in events)


@pytest.mark.parametrize(
    "request_body",
    [
        {"max_completion_tokens": 9, "temperature": 1, "top_p": 0.5, "stop": ["a"]},
        {"max_tokens": 9, "temperature": 1.0, "top_p": 0.5, "stop_sequences": ["a"]},
        {"max_output_tokens": 9, "temperature": 1, "top_p": 0.5, "stop": "a"},
        {"generationConfig": {"maxOutputTokens": 9, "temperature": 1, "topP": 0.5, "stopSequences": ["a"]}},
        {"inferenceConfig": {"maxTokens": 9, "temperature": 1, "topP": 0.5, "stopSequences": ["a"]}},
    ],
)
def test_parameters_have_the_same_names_for_every_format(request_body: dict[str, Any]):
    assert read(request_body) == {
        "request.max_tokens": 9,
        "request.temperature": 1.0,
        "request.top_p": 0.5,
        "request.stop_sequences": ["a"],
    }


def test_parameters_of_wrong_types_are_left_out():
    odd = {"temperature": "hot", "max_tokens": 1.5, "seed": True, "stop": 3, "n": 1, "top_k": 4, "dimensions": 8}
    assert read(odd) == {"request.top_k": 4.0, "embeddings.dimension.count": 8}
    for body in ([], "x", 1, {"generationConfig": 3}):
        assert read(body) == {}
    assert read_body_attributes({spool.CLIENT_REQUEST: b"--form"}, with_content=True) == {
        "gen_ai.response.id": None,
        "gen_ai.response.model": None,
        "gen_ai.response.finish_reasons": None,
    }


@pytest.mark.parametrize(
    "response",
    [
        {"id": "r", "model": "m-1", "choices": [{"finish_reason": "stop"}]},
        {"id": "r", "model": "m-1", "type": "message", "stop_reason": "stop"},
        {"responseId": "r", "modelVersion": "m-1", "candidates": [{"finishReason": "stop"}]},
        stream(
            {"id": "r", "model": "m-1", "choices": [{"delta": {}}]},
            {"id": "r", "choices": [{"finish_reason": "stop"}]},
            {"id": "r", "choices": [], "usage": {}},
        )
        + b"data: [DONE]\r\n\r\n",
        stream(
            {"type": "message_start", "message": {"id": "r", "model": "m-1", "stop_reason": None}},
            {"type": "content_block_delta", "delta": {"text": "x"}},
            {"type": "message_delta", "delta": {"stop_reason": "stop"}},
        ),
        stream(*[{"responseId": "r", "modelVersion": "m-1"}] * 50, {"candidates": [{"finishReason": "stop"}]}),
    ],
)
def test_identity_and_finish_reason_of_every_format(response: object):
    assert read(None, response) == {
        "response.id": "r",
        "response.model": "m-1",
        "response.finish_reasons": ["stop"],
    }


def test_finish_reason_of_openai_responses():
    whole = {"object": "response", "id": "r", "model": "m", "status": "completed"}
    assert read(None, whole)["response.finish_reasons"] == ["completed"]
    events = stream(
        {"type": "response.created", "response": {**whole, "status": "in_progress"}},
        {"type": "response.incomplete", "response": {**whole, "status": "incomplete"}},
    )
    assert read(None, events)["response.finish_reasons"] == ["incomplete"]
    # The status of another object, such as a batch, is no finish reason.
    assert read(None, {"id": "b", "object": "batch", "status": "completed"}) == {"response.id": "b"}


def test_response_to_the_client_takes_precedence():
    bodies = {spool.UPSTREAM_RESPONSE: b'{"id":"theirs"}', spool.CLIENT_RESPONSE: b'{"id":"ours"}'}
    assert read_body_attributes(bodies, with_content=False)["gen_ai.response.id"] == "ours"


@pytest.mark.parametrize("count", [0, 1, 3, 4, 11, 12, 400])
def test_both_ends_of_a_stream_are_read_once(count: int):
    body = stream(*({"n": number} for number in range(count)))
    numbers = [json.loads(data)["n"] for data in find_edge_events(body)]
    assert numbers == sorted(set(numbers))
    assert numbers == ([*range(3), *range(count - 8, count)] if count > 11 else list(range(count)))


def test_data_within_a_line_is_no_event():
    assert find_edge_events(b'x data: {"a":1}\ndata: {"b":"data: {}"}') == [b'{"b":"data: {}"}']


def test_contents_are_json_texts():
    request = {
        "system": "be nice",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    attributes = read(request, stream({"choices": [{"delta": {"content": "yo"}}]}), with_content=True)
    assert json.loads(attributes["input.messages"]) == [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    assert json.loads(attributes["output.messages"])[0]["parts"] == [{"type": "text", "content": "yo"}]
    assert json.loads(attributes["system_instructions"]) == [{"type": "text", "content": "be nice"}]
    assert json.loads(attributes["tool.definitions"]) == [{"type": "function", "name": "f"}]
    assert not {"input.messages", "output.messages"} & read(request, {"choices": []}).keys()


def test_oldest_messages_are_left_out_if_there_are_too_many():
    messages = [{"role": "user", "content": f"{number} " + "x" * 1000} for number in range(1000)]
    text = read({"messages": messages}, with_content=True)["input.messages"]
    assert len(text) < MAX_CONTENT_BYTES + 1000
    remaining = json.loads(text)
    assert remaining[-1]["parts"][0]["content"].startswith("999 ")
    assert len(remaining) > 100
