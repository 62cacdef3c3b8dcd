"""LiteLLM as a client, in both of the dialects that it has for a gateway."""

from __future__ import annotations

import json
from functools import partial

import litellm
from said import ARGUMENTS, GATEWAY, KEY, PROMPT, PROVIDERS, REFUSING, SCHEMA, asking, calling, model, refused, say

litellm.suppress_debug_info = True
MESSAGES = [{"role": "user", "content": PROMPT}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA}}]
BASES = {"openai": f"{GATEWAY}/v1", "anthropic": GATEWAY}


def complete(dialect: str, provider: str, headers: dict[str, str] | None = None, **more: object) -> object:
    return litellm.completion(
        model=f"{dialect}/{model(provider)}",
        api_base=BASES[dialect],
        api_key=KEY,
        messages=more.pop("messages", MESSAGES),
        extra_headers=headers,
        num_retries=0,
        max_retries=0,
        **more,
    )


def whole(dialect: str, provider: str) -> object:
    answer = complete(dialect, provider)
    return [answer.choices[0].message.content, answer.usage.prompt_tokens, answer.usage.completion_tokens]


def streamed(dialect: str, provider: str) -> object:
    chunks = list(complete(dialect, provider, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    usage = next(chunk.usage for chunk in reversed(chunks) if getattr(chunk, "usage", None))
    return [text, usage.prompt_tokens, usage.completion_tokens]


def tool(dialect: str, provider: str) -> object:
    first = complete(dialect, provider, calling(), tools=TOOLS).choices[0].message
    call = first.tool_calls[0]
    turns = [*MESSAGES, first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = complete(dialect, provider, calling(), tools=TOOLS, messages=turns).choices[0].message
    return [call.function.name, json.loads(call.function.arguments) == ARGUMENTS, bool(second.content)]


def error(dialect: str, provider: str) -> object:
    return refused(
        lambda: complete(dialect, provider, asking(**REFUSING)),
        litellm.exceptions.RateLimitError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for dialect in BASES:
        for call in (whole, streamed, tool, error):
            say(f"{provider} by {dialect}", call.__name__, partial(call, dialect, provider))
