"""LiteLLM as a client, in both API formats that it has for a gateway."""

from __future__ import annotations

import json
from functools import partial

import litellm
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

litellm.suppress_debug_info = True
PROMPT_MESSAGES = [{"role": "user", "content": PROMPT}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": TOOL_SCHEMA}}]
BASE_URLS = {"openai": f"{GATEWAY}/v1", "anthropic": GATEWAY}


def complete_chat(dialect: str, provider: str, headers: dict[str, str] | None = None, **more: object) -> object:
    return litellm.completion(
        model=f"{dialect}/{model_name(provider)}",
        api_base=BASE_URLS[dialect],
        api_key=KEY,
        messages=more.pop("messages", PROMPT_MESSAGES),
        extra_headers=headers,
        num_retries=0,
        max_retries=0,
        **more,
    )


def send_chat(dialect: str, provider: str) -> object:
    response = complete_chat(dialect, provider)
    return [response.choices[0].message.content, response.usage.prompt_tokens, response.usage.completion_tokens]


def stream_chat(dialect: str, provider: str) -> object:
    chunks = list(complete_chat(dialect, provider, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    usage = next(chunk.usage for chunk in reversed(chunks) if getattr(chunk, "usage", None))
    return [text, usage.prompt_tokens, usage.completion_tokens]


def call_tool(dialect: str, provider: str) -> object:
    first = complete_chat(dialect, provider, tool_call_headers(), tools=TOOLS).choices[0].message
    call = first.tool_calls[0]
    turns = [*PROMPT_MESSAGES, first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = complete_chat(dialect, provider, tool_call_headers(), tools=TOOLS, messages=turns).choices[0].message
    return [call.function.name, json.loads(call.function.arguments) == TOOL_ARGUMENTS, bool(second.content)]


def provoke_error(dialect: str, provider: str) -> object:
    return failure_status(
        lambda: complete_chat(dialect, provider, mock_headers(**MOCK_REJECTION)),
        litellm.exceptions.RateLimitError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for dialect in BASE_URLS:
        for call in (send_chat, stream_chat, call_tool, provoke_error):
            report_call(f"{provider} by {dialect}", call.__name__, partial(call, dialect, provider))
