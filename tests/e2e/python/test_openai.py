"""Official OpenAI SDK for Python through the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gateway import Gateway, Mock

KEY = "pk-e2e-0123456789"
PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]


@pytest.fixture
def running_gateway(gateway: Callable[..., Gateway]) -> Gateway:
    return gateway({"keys": [{"name": "e2e", "key": KEY}]})


@pytest.fixture
def client(running_gateway: Gateway) -> Iterator[openai.OpenAI]:
    headers = {"x-gateway-provider": "mock", "x-gateway-api-key": KEY}
    with openai.OpenAI(
        base_url=f"{running_gateway.base_url}/v1",
        api_key="provider-key",
        default_headers=headers,
        max_retries=0,
        timeout=10,
    ) as client:
        yield client


def test_creates_a_chat_completion(client: openai.OpenAI, mock: Mock):
    response = client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES)
    assert response.choices[0].message.content
    assert response.choices[0].finish_reason == "stop"
    assert response.usage
    assert response.usage.total_tokens > 0
    (received,) = mock.ledger()
    assert (received["method"], received["path"], received["outcome"]) == ("POST", "/v1/chat/completions", "complete")


def test_streams_a_chat_completion(client: openai.OpenAI):
    with client.chat.completions.create(model="mock?chunks=12", messages=PROMPT_MESSAGES, stream=True) as stream:
        chunks = [
            chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content
        ]
    assert len(chunks) == 12


def test_creates_an_embedding(client: openai.OpenAI):
    response = client.embeddings.create(model="mock", input="a short text")
    assert response.data[0].embedding


def test_lists_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()]


def test_sets_gateway_response_headers(client: openai.OpenAI):
    raw = client.chat.completions.with_raw_response.create(model="mock", messages=PROMPT_MESSAGES)
    assert raw.headers["x-gateway-provider"] == "mock"
    assert raw.headers["x-gateway-trace-id"]
    assert raw.headers["x-gateway-retry-attempt-count"] == "0"


def test_provider_error_raises_the_sdks_error(client: openai.OpenAI):
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="mock?fault=429&retry_after=7", messages=PROMPT_MESSAGES)
    assert caught.value.response.headers["retry-after"] == "7"


def test_rejects_a_wrong_gateway_key(client: openai.OpenAI, mock: Mock):
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(
            model="mock", messages=PROMPT_MESSAGES, extra_headers={"x-gateway-api-key": "pk-wrong"}
        )
    assert mock.ledger() == []


def test_does_not_forward_the_gateway_key(client: openai.OpenAI, mock: Mock):
    client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES)
    assert KEY not in str(mock.ledger())


def test_writes_one_record_per_call(client: openai.OpenAI, running_gateway: Gateway):
    client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES)
    with client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES, stream=True) as stream:
        assert list(stream)
    assert len(running_gateway.records(2)) == 2
    assert "provider-key" not in running_gateway.records_file.read_text()
