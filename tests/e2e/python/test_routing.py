"""Fallbacks, retries and kept answers as the official SDKs see them, with the SDKs' own retries left on."""

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

ASK = [{"role": "user", "content": "say something"}]
QUICK = {"routing": {"retry_backoff_ms": 1}}


def target(behaviour: str, **more: object) -> dict[str, Any]:
    return {"provider": "mock", "override_params": {"model": f"mock?{behaviour}"}, **more}


def fallback(*targets: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"strategy": {"mode": "fallback"}, "targets": list(targets), **more}


def shared(chosen: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": {"mode": "loadbalance"}, "targets": [chosen, {**other, "weight": 0}]}


def open_ai(served: Gateway, config: object) -> openai.OpenAI:
    """Make a client that retries as it does by default."""
    headers = {"x-gateway-config": config if isinstance(config, str) else json.dumps(config)}
    return openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="k", default_headers=headers, timeout=10)


def claude(served: Gateway, config: object) -> anthropic.Anthropic:
    headers = {"x-gateway-config": json.dumps(config)}
    return anthropic.Anthropic(base_url=served.base_url, api_key="k", default_headers=headers, timeout=10)


def test_a_fallback_answers_both_sdks_whole_and_streamed(gateway: Callable[..., Gateway], mock: Mock):
    served = gateway()
    config = fallback(target("status=503"), target("chunks=3"))
    with open_ai(served, config) as client:
        raw = client.chat.completions.with_raw_response.create(model="mock", messages=ASK)
        assert raw.headers["x-gateway-last-used-option-index"] == "config.targets[1]"
        assert raw.parse().choices[0].message.content
        with client.chat.completions.create(model="mock", messages=ASK, stream=True) as stream:
            assert len([chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content]) == 3
    with (
        claude(served, config) as client,
        client.messages.stream(model="mock", max_tokens=9, messages=ASK) as stream,
    ):
        assert stream.get_final_message().stop_reason == "end_turn"
    assert len(mock.ledger()) == 6


@pytest.mark.parametrize(
    ("config", "attempts"),
    [
        (target("status=503", retry={"attempts": 2}), 3),
        (fallback(target("status=503"), target("status=429")), 2),
        (fallback(target("status=500"), target("status=500"), retry={"attempts": 1}), 4),
        (fallback(target("fault=reset"), target("fault=reset")), 2),
        (target("status=503", retry={"attempts": 0}), 1),
        (shared(target("status=503", retry={"attempts": 1}), target("status=503")), 2),
    ],
)
def test_one_permanent_failure_costs_no_more_attempts_than_the_config_asks_for(
    gateway: Callable[..., Gateway], mock: Mock, config: dict[str, Any], attempts: int
):
    served = gateway(QUICK)
    with open_ai(served, config) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="mock", messages=ASK)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(mock.ledger()) == attempts
    with claude(served, config) as client, pytest.raises(anthropic.APIStatusError):
        client.messages.create(model="mock", max_tokens=9, messages=ASK)
    assert len(mock.ledger()) == 2 * attempts


def test_without_a_config_the_sdks_retries_are_its_own(gateway: Callable[..., Gateway], mock: Mock):
    headers = {"x-gateway-provider": "mock"}
    with (
        openai.OpenAI(base_url=f"{gateway().base_url}/v1", api_key="k", default_headers=headers, timeout=10) as client,
        pytest.raises(openai.APIStatusError),
    ):
        client.chat.completions.create(model="mock?fault=429&retry_after=0.01", messages=ASK)
    assert len(mock.ledger()) == 3


def test_a_target_of_which_the_config_says_nothing_leaves_retries_to_the_sdks(
    gateway: Callable[..., Gateway], mock: Mock
):
    served = gateway(QUICK)
    config = shared(target("fault=429&retry_after=0.01"), target("status=503", retry={"attempts": 2}))
    with open_ai(served, config) as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="mock", messages=ASK)
    assert "x-should-retry" not in caught.value.response.headers
    assert len(mock.ledger()) == 3
    with claude(served, config) as client, pytest.raises(anthropic.RateLimitError):
        client.messages.create(model="mock", max_tokens=9, messages=ASK)
    assert len(mock.ledger()) == 6


def test_the_timeout_of_an_sdk_bounds_all_that_a_config_tries(gateway: Callable[..., Gateway], mock: Mock):
    served = gateway(QUICK)
    config = fallback(*[target("fault=silence")] * 3, retry={"attempts": 2}, request_timeout=20_000)
    for client in (open_ai(served, config), claude(served, config)):
        began, before = time.monotonic(), len(mock.ledger())
        with client, pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            client.with_options(timeout=4).post(
                "/chat/completions" if isinstance(client, openai.OpenAI) else "/v1/messages",
                cast_to=object,
                body={"model": "mock", "max_tokens": 9, "messages": ASK},
            )
        assert caught.value.status_code == 408
        assert 3 < time.monotonic() - began < 6
        assert len(mock.ledger()) == before + 1


def test_a_saved_config_keeps_answers_for_both_kinds_of_asking(gateway: Callable[..., Gateway], mock: Mock):
    config = {"provider": "mock", "cache": {"mode": "simple", "max_age": 60}}
    served = gateway({"configs": [{"slug": "pc-kept", "config": config}]})
    with open_ai(served, "pc-kept") as client:
        create = client.chat.completions.with_raw_response.create
        answers = [create(model="mock", messages=ASK) for _ in range(2)]
        assert [answer.headers["x-gateway-cache-status"] for answer in answers] == ["MISS", "HIT"]
        assert answers[0].parse() == answers[1].parse()
        texts: list[str] = []
        for _ in range(2):
            with client.chat.completions.create(model="mock", messages=ASK, stream=True) as stream:
                pieces = (chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
                texts.append("".join(pieces))
        assert texts[0] == texts[1]
    assert len(mock.ledger()) == 2


def test_a_condition_on_what_the_client_says_chooses_the_target(gateway: Callable[..., Gateway], mock: Mock):
    conditions = [{"query": {"params.model": {"$regex": "^gpt-"}}, "then": "small"}]
    config = {
        "strategy": {"mode": "conditional", "conditions": conditions, "default": "large"},
        "targets": [target("chunks=1", name="small"), target("chunks=2", name="large")],
    }
    with open_ai(gateway(), config) as client:
        for model in ("gpt-5", "o3"):
            client.chat.completions.create(model=model, messages=ASK)
    assert [seen["model"] for seen in mock.ledger()] == ["mock?chunks=1", "mock?chunks=2"]


def test_every_problem_of_a_config_is_told_with_its_place(gateway: Callable[..., Gateway], mock: Mock):
    config = fallback(target("chunks=1", retry={"attempts": 9}), {"provider": "mock", "request_timeout": "soon"})
    with open_ai(gateway(), config) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mock", messages=ASK)
    errors = caught.value.response.json()["errors"]
    assert [error.split(",")[0] for error in errors] == [
        "path: targets[0].retry.attempts",
        "path: targets[1].request_timeout",
    ]
    assert mock.ledger() == []
