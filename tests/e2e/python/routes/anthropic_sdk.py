"""Calls every route of the installed Anthropic SDK through the gateway at `GATEWAY`. Prints one line of JSON for each
call.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anthropic
from calls import HEADERS, run_calls

if TYPE_CHECKING:
    from calls import Calls

PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]
TEXT_FILE = ("note.txt", b"a\r\n--not-a-boundary\r\n" * 500, "text/plain")


def create_message(client: anthropic.Anthropic) -> object:
    return client.messages.create(model="mock", max_tokens=9, messages=PROMPT_MESSAGES).content[0].text


def stream_message(client: anthropic.Anthropic) -> object:
    with client.messages.stream(model="mock", max_tokens=9, messages=PROMPT_MESSAGES) as stream:
        return "".join(stream.text_stream) and stream.get_final_message().stop_reason == "end_turn"


def stream_message_cut_within_event(client: anthropic.Anthropic) -> object:
    model = "mock?chunks=8&after=4&fault=cut_event"
    try:
        with client.messages.stream(model=model, max_tokens=9, messages=PROMPT_MESSAGES) as stream:
            stream.until_done()
    except anthropic.APIError as error:
        return "the provider's response broke off" in error.message
    return False


def count_tokens(client: anthropic.Anthropic) -> object:
    return client.messages.count_tokens(model="mock", messages=PROMPT_MESSAGES).input_tokens == 12


def create_batch(client: anthropic.Anthropic) -> object:
    request_tokens = {"custom_id": "1", "params": {"model": "mock", "max_tokens": 9, "messages": PROMPT_MESSAGES}}
    return client.messages.batches.create(requests=[request_tokens]).processing_status == "ended"


CALLS: Calls = [
    ("POST /v1/messages", create_message),
    ("POST /v1/messages", stream_message),
    ("POST /v1/messages", stream_message_cut_within_event),
    (
        "POST /v1/messages?beta=true",
        lambda c: (
            c.beta.messages.create(model="mock", max_tokens=9, messages=PROMPT_MESSAGES, betas=["b-1"]).content[0].text
        ),
    ),
    ("POST /v1/messages/count_tokens", count_tokens),
    ("POST /v1/messages/batches", create_batch),
    ("GET /v1/messages/batches?limit=2", lambda c: c.messages.batches.list(limit=2).data == []),
    ("GET /v1/messages/batches/b-1", lambda c: c.messages.batches.retrieve("b-1").id == "b-1"),
    ("POST /v1/messages/batches/b-1/cancel", lambda c: c.messages.batches.cancel("b-1").id == "b-1"),
    ("DELETE /v1/messages/batches/b-1", lambda c: c.messages.batches.delete("b-1").id == "b-1"),
    ("GET /v1/models", lambda c: c.models.list().data[0].display_name == "mock"),
    ("GET /v1/models/mock-mini", lambda c: c.models.retrieve("mock-mini").display_name == "mock-mini"),
    ("POST /v1/files?beta=true", lambda c: c.beta.files.upload(file=TEXT_FILE).downloadable),
    ("GET /v1/files?beta=true&limit=2", lambda c: c.beta.files.list(limit=2).data == []),
    ("GET /v1/files/f-1?beta=true", lambda c: c.beta.files.retrieve_metadata("f-1").id == "f-1"),
    ("GET /v1/files/f-1/content?beta=true", lambda c: c.beta.files.download("f-1").read().endswith(b"}\n")),
    ("DELETE /v1/files/f-1?beta=true", lambda c: c.beta.files.delete("f-1").id == "f-1"),
]

with anthropic.Anthropic(
    base_url=os.environ["GATEWAY"], api_key="provider-key", default_headers=HEADERS, max_retries=0, timeout=10
) as sdk:
    run_calls(CALLS, sdk)
sys.stderr.write(anthropic.__version__)
