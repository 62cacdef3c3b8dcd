"""Mistral's own SDK."""

from __future__ import annotations

import json

from mistralai.client import Mistral
from mistralai.client.errors import MistralError
from said import ARGUMENTS, GATEWAY, KEY, PROMPT, PROVIDERS, REFUSING, SCHEMA, asking, calling, model, refused, say

MESSAGES = [{"role": "user", "content": PROMPT}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA}}]


def client() -> Mistral:
    return Mistral(api_key=KEY, server_url=GATEWAY, timeout_ms=10_000)


def whole(provider: str) -> object:
    answer = client().chat.complete(model=model(provider), messages=MESSAGES)
    return [answer.choices[0].message.content, answer.usage.prompt_tokens, answer.usage.completion_tokens]


def streamed(provider: str) -> object:
    # Mistral says in every stream what it cost, so its SDK has no way to ask.
    headers = asking(usage="on")
    stream = client().chat.stream(model=model(provider), messages=MESSAGES, http_headers=headers)
    chunks = [event.data for event in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    return [text, usage and usage.prompt_tokens, usage and usage.completion_tokens]


def tool(provider: str) -> object:
    chat, headers = client().chat, calling()
    first = chat.complete(model=model(provider), messages=MESSAGES, tools=TOOLS, http_headers=headers).choices[0]
    call = first.message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
    turns = [*MESSAGES, first.message.model_dump(exclude_unset=True), result]
    second = chat.complete(model=model(provider), messages=turns, tools=TOOLS, http_headers=headers)
    arguments = call.function.arguments
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return [call.function.name, arguments == ARGUMENTS, bool(second.choices[0].message.content)]


def error(provider: str) -> object:
    headers = asking(**REFUSING)
    return refused(
        lambda: client().chat.complete(model=model(provider), messages=MESSAGES, http_headers=headers),
        MistralError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for call in (whole, streamed, tool, error):
        say(provider, call.__name__, lambda call=call, provider=provider: call(provider))
