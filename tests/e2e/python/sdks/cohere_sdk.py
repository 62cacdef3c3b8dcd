"""Cohere's own SDK, whose paths pass through to who speaks its dialect."""

from __future__ import annotations

import cohere
import httpx
from said import GATEWAY, KEY, PROVIDERS, refused, say

MESSAGES = [{"role": "user", "content": "how is the weather?"}]


def client(provider: str) -> cohere.ClientV2:
    headers = {"x-gateway-provider": f"@{provider}"}
    return cohere.ClientV2(api_key=KEY, base_url=GATEWAY, httpx_client=httpx.Client(headers=headers, timeout=10))


def whole(provider: str) -> object:
    answer = client(provider).chat(model="command-a-03-2025", messages=MESSAGES)
    return answer.message.content[0].text


def streamed(provider: str) -> object:
    events = client(provider).chat_stream(model="command-a-03-2025", messages=MESSAGES)
    return "".join(event.delta.message.content.text for event in events if event.type == "content-delta")


def error(provider: str) -> object:
    made = client(provider)
    asked = [{"role": "user", "content": "what nobody has an answer to"}]
    return refused(
        lambda: made.chat(model="command-a-03-2025", messages=asked, request_options={"max_retries": 0}),
        cohere.core.api_error.ApiError,
        lambda error: [error.status_code],
    )


for provider in PROVIDERS:
    for call in (whole, streamed, error):
        say(provider, call.__name__, lambda call=call, provider=provider: call(provider))
