"""Cohere SDK. The gateway forwards its paths unchanged to providers that have Cohere's API format."""

from __future__ import annotations

import json

import cohere
import httpx
from sdk_calls import GATEWAY, KEY, MOCK_REJECTION, PROVIDERS, failure_status, mock_headers, report_call

WEATHER_MESSAGES = [{"role": "user", "content": "how is the weather?"}]
CLOCK_MESSAGES = [{"role": "user", "content": "what time is it?"}]
TOOL_SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
TOOLS = [{"type": "function", "function": {"name": "clock", "description": "The hour", "parameters": TOOL_SCHEMA}}]
TOOL_CALL_HEADERS = mock_headers(call="clock", arguments=json.dumps({"zone": "UTC"}))


def build_client(provider: str, requested: dict[str, str] | None = None) -> cohere.ClientV2:
    headers = {"x-gateway-provider": f"@{provider}", **(requested or {})}
    return cohere.ClientV2(api_key=KEY, base_url=GATEWAY, httpx_client=httpx.Client(headers=headers, timeout=10))


def token_counts(usage: cohere.Usage | None) -> list[float | None] | None:
    tokens = usage.tokens if usage else None
    return [tokens.input_tokens, tokens.output_tokens] if tokens else None


def send_chat(provider: str) -> object:
    response = build_client(provider).chat(model="command-a-03-2025", messages=WEATHER_MESSAGES)
    return [response.message.content[0].text, token_counts(response.usage)]


def stream_chat(provider: str) -> object:
    events = list(build_client(provider).chat_stream(model="command-a-03-2025", messages=WEATHER_MESSAGES))
    text = "".join(event.delta.message.content.text for event in events if event.type == "content-delta")
    return [text, token_counts(events[-1].delta.usage)]


def call_tool(provider: str) -> object:
    response = build_client(provider, TOOL_CALL_HEADERS).chat(
        model="command-a-03-2025", messages=CLOCK_MESSAGES, tools=TOOLS
    )
    return [[call.function.name, json.loads(call.function.arguments)] for call in response.message.tool_calls]


def stream_tool_call(provider: str) -> object:
    events = list(
        build_client(provider, TOOL_CALL_HEADERS).chat_stream(
            model="command-a-03-2025", messages=CLOCK_MESSAGES, tools=TOOLS
        )
    )
    begun = [event.delta.message.tool_calls.function for event in events if event.type == "tool-call-start"]
    more = [event.delta.message.tool_calls.function for event in events if event.type == "tool-call-delta"]
    arguments = "".join(part.arguments or "" for part in [*begun, *more])
    return [[begun[0].name, json.loads(arguments)]]


def send_tool_result(provider: str) -> object:
    """Sends the tool call back together with the tool's result."""
    call = {"id": "call_mock", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    reported = {"role": "tool", "tool_call_id": "call_mock", "content": "noon"}
    messages = [*CLOCK_MESSAGES, {"role": "assistant", "tool_calls": [call]}, reported]
    response = build_client(provider, TOOL_CALL_HEADERS).chat(model="command-a-03-2025", messages=messages, tools=TOOLS)
    return response.finish_reason


def embed_texts(provider: str) -> object:
    response = build_client(provider).embed(
        model="embed-v4.0", texts=["one", "two"], input_type="search_document", embedding_types=["float"]
    )
    return [len(vector) > 1 for vector in response.embeddings.float_]


def rerank_documents(provider: str) -> object:
    response = build_client(provider).rerank(model="rerank-v3.5", query="weather", documents=["sun", "rain"])
    return [item.index for item in response.results]


def provoke_error(provider: str) -> object:
    client = build_client(provider, mock_headers(**MOCK_REJECTION))
    request_body = [{"role": "user", "content": "what nobody has an answer to"}]
    return failure_status(
        lambda: client.chat(model="command-a-03-2025", messages=request_body, request_options={"max_retries": 0}),
        cohere.core.api_error.ApiError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for call in (
        send_chat,
        stream_chat,
        call_tool,
        stream_tool_call,
        send_tool_result,
        embed_texts,
        rerank_documents,
        provoke_error,
    ):
        report_call(provider, call.__name__, lambda call=call, provider=provider: call(provider))
