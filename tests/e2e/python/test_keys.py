"""Authentication through the official SDKs: one key in the SDK's own header, and how each SDK reports a rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

KEY, STORED = "pk-gateway-0123456789", "sk-stored-0123456789"
PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]
TABLES = {
    "keys": [{"name": "k", "id": "k-1", "key": KEY}],
    "providers": [{"slug": "mine", "provider": "mock", "api_key": STORED}],
}
SAVED_PROVIDER_HEADERS = {"x-gateway-provider": "@mine"}


@pytest.fixture
def running_gateway(gateway: Callable[..., Gateway]) -> Gateway:
    return gateway(TABLES)


def openai_client(running_gateway: Gateway, key: str, headers: dict[str, str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running_gateway.base_url}/v1", api_key=key, default_headers=headers, max_retries=0)


def anthropic_client(running_gateway: Gateway, key: str, headers: dict[str, str]) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=running_gateway.base_url, api_key=key, default_headers=headers, max_retries=0)


def azure_client(running_gateway: Gateway, key: str, headers: dict[str, str]) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        base_url=f"{running_gateway.base_url}/v1",
        api_key=key,
        api_version="2024-10-21",
        default_headers=headers,
        max_retries=0,
    )


def test_client_needs_only_the_gateway_key(running_gateway: Gateway, mock: Mock):
    # Azure's client uses its own paths, which pass through.
    for make in (openai_client, azure_client):
        with make(running_gateway, KEY, SAVED_PROVIDER_HEADERS) as client:
            client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES)
    with anthropic_client(running_gateway, KEY, SAVED_PROVIDER_HEADERS) as client:
        assert client.messages.create(model="mock", max_tokens=8, messages=PROMPT_MESSAGES).content
    for entry in mock.ledger():
        assert entry["headers"]["authorization"] == f"Bearer {STORED}"
        assert KEY not in str(entry)
    assert [record["api_key_id"] for record in running_gateway.records(3)] == ["k-1"] * 3


def test_portkey_headers_get_portkey_response_headers(running_gateway: Gateway, mock: Mock):
    headers = {"x-portkey-api-key": KEY, "x-portkey-provider": "@mine", "x-portkey-trace-id": "t-1"}
    with openai_client(running_gateway, "OPENAI_API_KEY", headers) as client:
        response = client.chat.completions.with_raw_response.create(model="mock", messages=PROMPT_MESSAGES)
    assert response.headers["x-portkey-trace-id"] == "t-1"
    assert not [name for name in response.headers if name.startswith("x-gateway-")]
    assert mock.ledger()[0]["headers"]["authorization"] == f"Bearer {STORED}"


def test_wrong_key_raises_the_sdks_error_with_all_fields(running_gateway: Gateway, mock: Mock):
    with (
        openai_client(running_gateway, "sk-wrong", SAVED_PROVIDER_HEADERS) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES)
    error = refused.value
    assert (error.code, error.type, error.request_id) == (
        "03",
        "authentication_error",
        running_gateway.refused_records(1)[0]["id"],
    )
    with (
        anthropic_client(running_gateway, "sk-wrong", SAVED_PROVIDER_HEADERS) as client,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        client.messages.create(model="mock", max_tokens=8, messages=PROMPT_MESSAGES)
    request_id = running_gateway.refused_records(2)[1]["id"]
    assert refused.value.request_id == request_id
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "authentication_error",
            "message": "no valid gateway key: send it in x-gateway-api-key. Error Code: 03",
        },
        "request_id": request_id,
    }
    assert not mock.ledger()
