"""Mistral SDK."""

from __future__ import annotations

import json

from mistralai.client import Mistral
from mistralai.client.errors import MistralError
from sdk_calls import (
    GATEWAY,
    KEY,
    MOCK_REJECTION,
    PROMPT,
    PROVIDERS,
    TOOL_ARGUMENTS,
    TOOL_SCHEMA,
    failure_status,
    mock_headers,
    model_name,
    report_call,
    tool_call_headers,
)

PROMPT_MESSAGES = [{"role": "user", "content": PROMPT}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": TOOL_SCHEMA}}]


def build_client() -> Mistral:
    return Mistral(api_key=KEY, server_url=GATEWAY, timeout_ms=10_000)


def send_chat(provider: str) -> object:
    response = build_client().chat.complete(model=model_name(provider), messages=PROMPT_MESSAGES)
    return [response.choices[0].message.content, response.usage.prompt_tokens, response.usage.completion_tokens]


def stream_chat(provider: str) -> object:
    # Mistral reports usage in every stream, so its SDK has no option to request it.
    headers = mock_headers(usage="on")
    stream = build_client().chat.stream(model=model_name(provider), messages=PROMPT_MESSAGES, http_headers=headers)
    chunks = [event.data for event in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    return [text, usage and usage.prompt_tokens, usage and usage.completion_tokens]


def call_tool(provider: str) -> object:
    chat, headers = build_client().chat, tool_call_headers()
    first = chat.complete(
        model=model_name(provider), messages=PROMPT_MESSAGES, tools=TOOLS, http_headers=headers
    ).choices[0]
    call = first.message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
    turns = [*PROMPT_MESSAGES, first.message.model_dump(exclude_unset=True), result]
    second = chat.complete(model=model_name(provider), messages=turns, tools=TOOLS, http_headers=headers)
    arguments = call.function.arguments
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return [call.function.name, arguments == TOOL_ARGUMENTS, bool(second.choices[0].message.content)]


def provoke_error(provider: str) -> object:
    headers = mock_headers(**MOCK_REJECTION)
    return failure_status(
        lambda: build_client().chat.complete(
            model=model_name(provider), messages=PROMPT_MESSAGES, http_headers=headers
        ),
        MistralError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for call in (send_chat, stream_chat, call_tool, provoke_error):
        report_call(provider, call.__name__, lambda call=call, provider=provider: call(provider))
