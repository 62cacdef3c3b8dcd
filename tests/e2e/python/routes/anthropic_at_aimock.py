"""Calls the routes of the Anthropic SDK at aimock, a third-party mock provider. `fixtures.json` defines its responses."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anthropic
from calls import WEATHER_TEXT, aimock_headers, run_calls

if TYPE_CHECKING:
    from calls import Calls

WEATHER_MESSAGES = [{"role": "user", "content": "how is the weather?"}]
CLOCK_MESSAGES = [{"role": "user", "content": "what time is it?"}]
MODEL = "claude-test"


def create_message(client: anthropic.Anthropic) -> object:
    return client.messages.create(model=MODEL, max_tokens=64, messages=WEATHER_MESSAGES).content[0].text == WEATHER_TEXT


def stream_message(client: anthropic.Anthropic) -> object:
    with client.messages.stream(model=MODEL, max_tokens=64, messages=WEATHER_MESSAGES) as stream:
        return "".join(stream.text_stream) == WEATHER_TEXT and stream.get_final_message().stop_reason == "end_turn"


def stream_tool_call(client: anthropic.Anthropic) -> object:
    with client.messages.stream(model=MODEL, max_tokens=64, messages=CLOCK_MESSAGES) as stream:
        *_, call = stream.get_final_message().content
    return (call.type, call.name, call.input) == ("tool_use", "clock", {"zone": "UTC"})


def create_beta_message(client: anthropic.Anthropic) -> object:
    request_tokens = client.beta.messages.create(model=MODEL, max_tokens=64, messages=WEATHER_MESSAGES, betas=["b-1"])
    return request_tokens.content[0].text == WEATHER_TEXT


CALLS: Calls = [
    ("messages", create_message),
    ("messages, streamed", stream_message),
    ("messages, a call streamed", stream_tool_call),
    ("messages, beta", create_beta_message),
]

with anthropic.Anthropic(
    base_url=os.environ["GATEWAY"],
    api_key="provider-key",
    default_headers=aimock_headers("anthropic"),
    max_retries=0,
    timeout=10,
) as sdk:
    run_calls(CALLS, sdk)
sys.stderr.write(anthropic.__version__)
