"""Messages of the API formats as parts of OpenTelemetry's conventions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.logs.otel_messages import collect_output, find_input, find_instructions, find_tools

TEXT = {"type": "text", "content": "hi"}


def test_openai_chat_messages():
    messages = [
        {"role": "developer", "content": "hi"},
        {"role": "user", "content": [
            {"type": "text", "text": "hi"},
            {"type": "image_url", "image_url": {"url": "https://a.test/x.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]  # fmt: skip
    assert find_input({"messages": messages}) == [
        {"role": "system", "parts": [TEXT]},
        {
            "role": "user",
            "parts": [
                TEXT,
                {"type": "uri", "modality": "image", "uri": "https://a.test/x.png"},
                {"type": "image_url"},
            ],
        },
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
    ]


def test_anthropic_messages():
    request = {
        "system": [{"type": "text", "text": "hi"}],
        "messages": [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {}}, {"type": "web_search_1", "name": "web"}],
    }  # fmt: skip
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}
    assert find_input(request) == [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, call]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
    ]
    assert find_instructions(request) == [TEXT]
    assert find_tools(request) == [
        {"type": "function", "name": "f", "description": "d"},
        {"type": "web_search_1", "name": "web"},
    ]


def test_google_contents():
    request = {
        "systemInstruction": {"parts": [{"text": "hi"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"data": "AAAA"}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"b": 2}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}],
    }
    assert find_input(request) == [
        {"role": "user", "parts": [TEXT, {"type": "inlineData"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": None, "name": "f", "arguments": {"a": 1}}]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": None, "response": {"b": 2}}]},
    ]
    assert find_instructions(request) == [TEXT]
    assert [tool["name"] for tool in find_tools(request)] == ["f", "g"]


def test_amazon_messages():
    request = {
        "system": [{"text": "hi"}],
        "messages": [
            {"role": "user", "content": [{"text": "hi"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "f", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "42"}]}}]},
        ],
        "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]},
    }
    assert [message["parts"][0]["type"] for message in find_input(request)] == [
        "text",
        "tool_call",
        "tool_call_response",
    ]
    assert (find_instructions(request), find_tools(request)) == ([TEXT], [{"type": "function", "name": "f"}])


def test_openai_responses_and_prompts():
    request = {
        "instructions": "hi",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "tools": [{"type": "function", "name": "f"}],
    }
    assert find_input(request) == [
        {"role": "user", "parts": [TEXT]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
    ]
    assert find_instructions(request) == [TEXT]
    for name in ("prompt", "input"):
        assert find_input({name: "hi"}) == [{"role": "user", "parts": [TEXT]}]


COMPLETE = {
    "chat": {
        "choices": [
            {"index": 0, "message": {"content": "hi", "reasoning_content": "hm"}, "finish_reason": "stop"},
            {"index": 1, "message": {"content": None, "tool_calls": [
                {"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]}, "finish_reason": "tool_calls"},
        ]
    },
}  # fmt: skip
CALL = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}


def test_each_choice_is_a_message():
    first, second = collect_output([COMPLETE["chat"]])
    assert first == {
        "role": "assistant",
        "parts": [{"type": "reasoning", "content": "hm"}, TEXT],
        "finish_reason": "stop",
    }
    assert (second["parts"], second["finish_reason"]) == ([CALL], "tool_calls")


STREAMS: dict[str, list[dict[str, Any]]] = {
    "openai chat": [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"content": "h"}}]},
        {"choices": [{"index": 0, "delta": {"content": "i"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "end"}]},
        {"choices": [], "usage": {}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "i"}},
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "c", "name": "f", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ":1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "end"}},
    ],
    "google": [
        {"candidates": [{"content": {"parts": [{"text": "h"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "i"}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}}]},
                         "finishReason": "end"}]},
    ],
    "openai responses": [
        {"type": "response.created", "response": {"output": []}},
        {"type": "response.output_text.delta", "delta": "h"},
        {"type": "response.completed", "response": {"status": "end", "output": [
            {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}]}},
    ],
    "anthropic, complete": [
        {"type": "message", "stop_reason": "end", "content": [
            {"type": "text", "text": "hi"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
    ],
    "amazon, complete": [
        {"stopReason": "end", "output": {"message": {"content": [
            {"text": "hi"}, {"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": 1}}}]}}},
    ],
    "openai responses, complete": [
        {"object": "response", "status": "end", "output": [
            {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_every_format_gives_the_same_message(name: str):
    (message,) = collect_output(STREAMS[name])
    assert message == {"role": "assistant", "parts": [TEXT, CALL], "finish_reason": "end"}


@pytest.mark.parametrize("odd", [None, 1, "x", [], [1], {}, {"a": 1}, [{"b": 1}], [[]]])
def test_unexpected_values_are_ignored(odd: object):
    for name in ("messages", "contents", "input", "prompt", "system", "instructions", "tools", "toolConfig"):
        request = {name: odd}
        json.dumps([find_input(request), find_instructions(request), find_tools(request)])
    for name in ("choices", "candidates", "output", "type", "response", "content", "delta", "stop_reason"):
        json.dumps(collect_output([{name: odd}, {"choices": [{name: odd, "delta": {name: odd}}]}]))
        json.dumps(collect_output([{"type": "content_block_delta", name: odd}, {"type": "message", name: odd}]))
