"""Realtime sessions and responses over WebSockets with the official OpenAI SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gateway import Gateway

KEY = "pk-e2e-0123456789"


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


def test_runs_a_realtime_session(client: openai.OpenAI, running_gateway: Gateway):
    with client.realtime.connect(model="gpt-realtime") as connection:
        connection.session.update(session={"type": "realtime", "instructions": "be brief"})
        connection.response.create()
        words, used = "", 0
        for event in connection:
            if event.type == "response.output_text.delta":
                words += event.delta
            elif event.type == "response.done":
                assert event.response.usage
                used = event.response.usage.total_tokens or 0
                break
    assert (words, used) == ("Hello from mock", 20)
    (record,) = running_gateway.records(1)
    assert (record["operation"], record["outcome"], record["total_units"]) == ("realtime", "complete", 20)


def test_creates_a_response_over_a_websocket(client: openai.OpenAI, running_gateway: Gateway):
    with client.responses.connect() as connection:
        connection.response.create(model="mock", input="say something")
        kinds: list[str] = []
        for event in connection:
            kinds.append(event.type)
            if event.type == "response.completed":
                break
    assert kinds[0] == "response.created"
    (record,) = running_gateway.records(1)
    assert (record["operation"], record["total_units"]) == ("createModelResponse", 20)
