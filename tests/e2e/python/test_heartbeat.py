"""Heartbeat comments in streams. The official SDKs for Python must ignore those that the gateway sends during pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

from tests.integration.raw_http import CHAT_PATH, MESSAGES_PATH, chat_body, send_raw_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway

PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]
PAUSING_MODEL = "mock?chunks=4&chunk_ms=150&first_ms=200"
GATEWAY_HEADERS = {"x-gateway-provider": "mock"}


@pytest.fixture
def running_gateway(gateway: Callable[..., Gateway]) -> Gateway:
    running_gateway = gateway({"server": {"heartbeat_seconds": 0.05}})
    for path in (CHAT_PATH, MESSAGES_PATH):
        body = send_raw_request(running_gateway.base_url, path, chat_body(PAUSING_MODEL, stream=True)).body
        assert body.count(b": keep-alive\n\n") >= 4, body
    return running_gateway


def test_openai_sdk_sees_only_the_chunks(running_gateway: Gateway):
    with (
        openai.OpenAI(
            base_url=f"{running_gateway.base_url}/v1", api_key="k", default_headers=GATEWAY_HEADERS, max_retries=0
        ) as client,
        client.chat.completions.create(model=PAUSING_MODEL, messages=PROMPT_MESSAGES, stream=True) as stream,
    ):
        chunks = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
    assert len([part for part in chunks if part]) == 4


def test_anthropic_sdk_sees_only_the_events(running_gateway: Gateway):
    with (
        anthropic.Anthropic(
            base_url=running_gateway.base_url, api_key="k", default_headers=GATEWAY_HEADERS, max_retries=0
        ) as client,
        client.messages.stream(model=PAUSING_MODEL, max_tokens=64, messages=PROMPT_MESSAGES) as stream,
    ):
        assert len(list(stream.text_stream)) == 4
        assert stream.get_final_message().stop_reason == "end_turn"
