"""Fallbacks, retries and cached responses as the official SDKs see them. The SDKs' own retries stay enabled."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

MESSAGES = [{"role": "user", "content": "say something"}]
FAST_RETRIES = {"routing": {"retry_backoff_ms": 1}}


def target(behaviour: str, **more: object) -> dict[str, Any]:
    return {"provider": "mock", "override_params": {"model": f"mock?{behaviour}"}, **more}


def fallback_config(*targets: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"strategy": {"mode": "fallback"}, "targets": list(targets), **more}


def load_balanced_config(chosen: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": {"mode": "loadbalance"}, "targets": [chosen, {**other, "weight": 0}]}


def openai_client(running_gateway: Gateway, config: object) -> openai.OpenAI:
    """Creates a client with the SDK's default retries."""
    headers = {"x-gateway-config": config if isinstance(config, str) else json.dumps(config)}
    return openai.OpenAI(base_url=f"{running_gateway.base_url}/v1", api_key="k", default_headers=headers, timeout=10)


def anthropic_client(running_gateway: Gateway, config: object) -> anthropic.Anthropic:
    headers = {"x-gateway-config": json.dumps(config)}
    return anthropic.Anthropic(base_url=running_gateway.base_url, api_key="k", default_headers=headers, timeout=10)


def test_both_sdks_get_fallback_responses_complete_and_streamed(gateway: Callable[..., Gateway], mock: Mock):
    running_gateway = gateway()
    config = fallback_config(target("status=503"), target("chunks=3"))
    with openai_client(running_gateway, config) as client:
        raw = client.chat.completions.with_raw_response.create(model="mock", messages=MESSAGES)
        assert raw.headers["x-gateway-last-used-option-index"] == "config.targets[1]"
        assert raw.parse().choices[0].message.content
        with client.chat.completions.create(model="mock", messages=MESSAGES, stream=True) as stream:
            assert len([chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content]) == 3
    with (
        anthropic_client(running_gateway, config) as client,
        client.messages.stream(model="mock", max_tokens=9, messages=MESSAGES) as stream,
    ):
        assert stream.get_final_message().stop_reason == "end_turn"
    assert len(mock.ledger()) == 6


@pytest.mark.parametrize(
    ("config", "attempts"),
    [
        (target("status=503", retry={"attempts": 2}), 3),
        (fallback_config(target("status=503"), target("status=429")), 2),
        (fallback_config(target("status=500"), target("status=500"), retry={"attempts": 1}), 4),
        (fallback_config(target("fault=reset"), target("fault=reset")), 2),
        (target("status=503", retry={"attempts": 0}), 1),
        (load_balanced_config(target("status=503", retry={"attempts": 1}), target("status=503")), 2),
    ],
)
def test_permanent_failure_takes_only_the_configured_attempts(
    gateway: Callable[..., Gateway], mock: Mock, config: dict[str, Any], attempts: int
):
    running_gateway = gateway(FAST_RETRIES)
    with openai_client(running_gateway, config) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="mock", messages=MESSAGES)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(mock.ledger()) == attempts
    with anthropic_client(running_gateway, config) as client, pytest.raises(anthropic.APIStatusError):
        client.messages.create(model="mock", max_tokens=9, messages=MESSAGES)
    assert len(mock.ledger()) == 2 * attempts


def test_without_config_sdks_retry_themselves(gateway: Callable[..., Gateway], mock: Mock):
    headers = {"x-gateway-provider": "mock"}
    with (
        openai.OpenAI(base_url=f"{gateway().base_url}/v1", api_key="k", default_headers=headers, timeout=10) as client,
        pytest.raises(openai.APIStatusError),
    ):
        client.chat.completions.create(model="mock?fault=429&retry_after=0.01", messages=MESSAGES)
    assert len(mock.ledger()) == 3


def test_target_without_retry_setting_leaves_retries_to_the_sdk(gateway: Callable[..., Gateway], mock: Mock):
    running_gateway = gateway(FAST_RETRIES)
    config = load_balanced_config(target("fault=429&retry_after=0.01"), target("status=503", retry={"attempts": 2}))
    with openai_client(running_gateway, config) as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="mock", messages=MESSAGES)
    assert "x-should-retry" not in caught.value.response.headers
    assert len(mock.ledger()) == 3
    with anthropic_client(running_gateway, config) as client, pytest.raises(anthropic.RateLimitError):
        client.messages.create(model="mock", max_tokens=9, messages=MESSAGES)
    assert len(mock.ledger()) == 6


def test_sdk_timeout_bounds_all_attempts_of_a_config(gateway: Callable[..., Gateway], mock: Mock):
    running_gateway = gateway(FAST_RETRIES)
    config = fallback_config(*[target("fault=silence")] * 3, retry={"attempts": 2}, request_timeout=20_000)
    for client in (openai_client(running_gateway, config), anthropic_client(running_gateway, config)):
        began, before = time.monotonic(), len(mock.ledger())
        with client, pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            client.with_options(timeout=4).post(
                "/chat/completions" if isinstance(client, openai.OpenAI) else "/v1/messages",
                cast_to=object,
                body={"model": "mock", "max_tokens": 9, "messages": MESSAGES},
            )
        assert caught.value.status_code == 408
        assert time.monotonic() - began > 3
        assert len(mock.ledger()) == before + 1


def test_saved_config_caches_complete_and_streamed_responses(gateway: Callable[..., Gateway], mock: Mock):
    config = {"provider": "mock", "cache": {"mode": "simple", "max_age": 60}}
    running_gateway = gateway({"configs": [{"slug": "pc-kept", "config": config}]})
    with openai_client(running_gateway, "pc-kept") as client:
        create = client.chat.completions.with_raw_response.create
        responses = [create(model="mock", messages=MESSAGES) for _ in range(2)]
        assert [response.headers["x-gateway-cache-status"] for response in responses] == ["MISS", "HIT"]
        assert responses[0].parse() == responses[1].parse()
        texts: list[str] = []
        for _ in range(2):
            with client.chat.completions.create(model="mock", messages=MESSAGES, stream=True) as stream:
                chunks = (chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
                texts.append("".join(chunks))
        assert texts[0] == texts[1]
    assert len(mock.ledger()) == 2


def test_condition_on_a_request_parameter_selects_the_target(gateway: Callable[..., Gateway], mock: Mock):
    conditions = [{"query": {"params.model": {"$regex": "^gpt-"}}, "then": "small"}]
    config = {
        "strategy": {"mode": "conditional", "conditions": conditions, "default": "large"},
        "targets": [target("chunks=1", name="small"), target("chunks=2", name="large")],
    }
    with openai_client(gateway(), config) as client:
        for model in ("gpt-5", "o3"):
            client.chat.completions.create(model=model, messages=MESSAGES)
    assert [received["model"] for received in mock.ledger()] == ["mock?chunks=1", "mock?chunks=2"]


def test_reports_every_config_error_with_its_path(gateway: Callable[..., Gateway], mock: Mock):
    config = fallback_config(target("chunks=1", retry={"attempts": 9}), {"provider": "mock", "request_timeout": "soon"})
    with openai_client(gateway(), config) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mock", messages=MESSAGES)
    errors = caught.value.response.json()["errors"]
    assert [error.split(",")[0] for error in errors] == [
        "path: targets[0].retry.attempts",
        "path: targets[1].request_timeout",
    ]
    assert mock.ledger() == []
