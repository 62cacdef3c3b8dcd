"""Official Anthropic SDK for Python through the gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anthropic
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gateway import Gateway, Mock

PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]


@pytest.fixture
def client(gateway: Callable[..., Gateway]) -> Iterator[anthropic.Anthropic]:
    running_gateway = gateway()
    with anthropic.Anthropic(
        base_url=running_gateway.base_url,
        api_key="provider-key",
        default_headers={"x-gateway-provider": "mock"},
        max_retries=0,
        timeout=10,
    ) as client:
        yield client


def test_creates_a_message(client: anthropic.Anthropic, mock: Mock):
    response = client.messages.create(model="mock", max_tokens=64, messages=PROMPT_MESSAGES)
    assert response.content[0].type == "text"
    assert response.content[0].text
    assert response.usage.output_tokens > 0
    (received,) = mock.ledger()
    assert (received["method"], received["path"], received["outcome"]) == ("POST", "/v1/messages", "complete")


def test_streams_a_message(client: anthropic.Anthropic):
    with client.messages.stream(model="mock?chunks=12", max_tokens=64, messages=PROMPT_MESSAGES) as stream:
        chunks = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(chunks) == 12
    assert "".join(chunks) == final.content[0].text
    assert final.stop_reason == "end_turn"


def test_provider_error_raises_the_sdks_error(client: anthropic.Anthropic):
    with pytest.raises(anthropic.RateLimitError):
        client.messages.create(model="mock?fault=429", max_tokens=64, messages=PROMPT_MESSAGES)


def test_overloaded_event_raises_the_sdks_error(client: anthropic.Anthropic):
    with (
        pytest.raises(anthropic.APIStatusError, match="overloaded"),
        client.messages.stream(model="mock?fault=overloaded_first", max_tokens=64, messages=PROMPT_MESSAGES) as stream,
    ):
        stream.until_done()


def test_stream_inspection_turns_overloaded_event_into_529(client: anthropic.Anthropic):
    config = json.dumps({"provider": "mock", "anthropic_inspect_stream_for_overloaded_error": True})
    inspecting = client.with_options(default_headers={"x-gateway-config": config})
    with pytest.raises(anthropic.APIStatusError) as refused:
        inspecting.messages.create(
            model="mock?fault=overloaded_first", max_tokens=64, messages=PROMPT_MESSAGES, stream=True
        )
    error = refused.value
    assert (error.status_code, type(error).__name__) == (529, "OverloadedError")
    assert error.response.headers["content-type"] == "application/json"
    with inspecting.messages.stream(model="mock?chunks=12", max_tokens=64, messages=PROMPT_MESSAGES) as stream:
        assert len(list(stream.text_stream)) == 12
