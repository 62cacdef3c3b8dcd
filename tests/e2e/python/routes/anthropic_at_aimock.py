"""Calls what a pretend provider that nobody here wrote answers of the Anthropic SDK's routes; `fixtures.json` says what it answers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anthropic
from calls import SAID, at_aimock, make

if TYPE_CHECKING:
    from calls import Calls

ASK = [{"role": "user", "content": "how is the weather?"}]
CLOCK = [{"role": "user", "content": "what time is it?"}]
MODEL = "claude-test"


def message(client: anthropic.Anthropic) -> object:
    return client.messages.create(model=MODEL, max_tokens=64, messages=ASK).content[0].text == SAID


def message_streamed(client: anthropic.Anthropic) -> object:
    with client.messages.stream(model=MODEL, max_tokens=64, messages=ASK) as stream:
        return "".join(stream.text_stream) == SAID and stream.get_final_message().stop_reason == "end_turn"


def call_streamed(client: anthropic.Anthropic) -> object:
    with client.messages.stream(model=MODEL, max_tokens=64, messages=CLOCK) as stream:
        *_, call = stream.get_final_message().content
    return (call.type, call.name, call.input) == ("tool_use", "clock", {"zone": "UTC"})


def beta(client: anthropic.Anthropic) -> object:
    asked = client.beta.messages.create(model=MODEL, max_tokens=64, messages=ASK, betas=["b-1"])
    return asked.content[0].text == SAID


CALLS: Calls = [
    ("messages", message),
    ("messages, streamed", message_streamed),
    ("messages, a call streamed", call_streamed),
    ("messages, beta", beta),
]

with anthropic.Anthropic(
    base_url=os.environ["GATEWAY"],
    api_key="provider-key",
    default_headers=at_aimock("anthropic"),
    max_retries=0,
    timeout=10,
) as sdk:
    make(CALLS, sdk)
sys.stderr.write(anthropic.__version__)
