"""Live tail: filters, the bounded rate, and subscribers that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.logs.query import LogFilters, Restriction
from penstock.logs.tail import MAX_PER_SECOND, LiveTail, matches_filters

RECORD = {
    "organisation_id": "o",
    "workspace_id": "w",
    "user_id": "u",
    "api_key_id": "k",
    "ai_org": "openai",
    "ai_model": "gpt",
    "response_status_code": 200,
    "total_units": 10,
    "cost_nanodollars": 25_000_000,
    "metadata": {"team": "red"},
    "config": "c",
    "config_id": "c-1",
    "is_success": True,
    "retry_success_count": 0,
    "hook_results": {"before_request_hooks": [{"id": "pg-a"}], "after_request_hooks": []},
    "decisions": [
        {"step": "tried", "at": "config.targets[0]", "status": 503},
        {"step": "chose", "at": "config", "strategy": "fallback", "target": 1},
    ],
}


@pytest.mark.parametrize(
    ("filters", "matches"),
    [
        ({}, True),
        ({"organisation_id": "other"}, False),
        ({"workspace_ids": ["w", "x"]}, True),
        ({"workspace_ids": []}, False),
        ({"status_code": [500]}, False),
        ({"configs": ["c-1"]}, True),
        ({"restricted_to": Restriction(user_ids=["u"])}, True),
        ({"restricted_to": Restriction(user_ids=["v"])}, False),
        ({"restricted_to": Restriction(api_key_ids=["k"])}, True),
        ({"ai_org_model": ["openai__"]}, True),
        ({"ai_org_model": ["openai__gpt", "x__y"]}, True),
        ({"ai_org_model": ["openai__other"]}, False),
        ({"metadata": {"team": ["red", "blue"]}}, True),
        ({"metadata": {"team": ["green"]}}, False),
        ({"metadata": {"absent": ["None"]}}, False),
        ({"total_units_min": 10, "total_units_max": 10}, True),
        ({"total_units_min": 11}, False),
        ({"prompt_token_max": 5}, False),
        ({"cost_min": 2.5, "cost_max": 2.5}, True),
        ({"cost_max": 2.4}, False),
        ({"weighted_feedback_min": 0}, False),
        ({"rescued": ["retry", "fallback"]}, True),
        ({"rescued": ["retry"]}, False),
        ({"guardrails": ["pg-a", "pg-none"]}, True),
        ({"guardrails": ["pg-none"]}, False),
    ],
)
def test_filters(filters: dict[str, Any], matches: bool):
    assert matches_filters(RECORD, LogFilters(**{"organisation_id": "o", **filters})) is matches


@pytest.mark.parametrize(
    ("changes", "rescues"),
    [
        ({"is_success": False}, set[str]()),
        ({"decisions": None, "retry_success_count": 2}, {"retry"}),
        ({"decisions": [{"step": "chose", "at": "config", "strategy": "fallback", "target": 0}]}, set[str]()),
        ({"decisions": [{"step": "chose", "at": "config", "strategy": "loadbalance", "target": 1}]}, set[str]()),
        ({"retry_success_count": 1}, {"retry", "fallback"}),
    ],
)
def test_rescues_are_those_of_the_log_store(changes: dict[str, Any], rescues: set[str]):
    record = {**RECORD, **changes}
    matching = {
        way for way in ("retry", "fallback") if matches_filters(record, LogFilters(organisation_id="o", rescued=[way]))
    }
    assert matching == rescues


def test_rate_is_bounded_and_dropped_records_are_counted():
    now = [100.0]
    tail = LiveTail(clock=lambda: now[0])
    lines = [msgspec.json.encode({**RECORD, "number": number}) for number in range(MAX_PER_SECOND + 7)]

    async def scenario() -> None:
        events = tail.subscribe(LogFilters(organisation_id="o"), 0.01)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        tail.publish(lines)
        received = [await first, *[await anext(events) for _ in range(MAX_PER_SECOND - 1)]]
        assert [event["log"]["number"] for event in received] == list(range(MAX_PER_SECOND))
        assert await anext(events) == {"dropped": 7}
        assert await anext(events) == {"heartbeat": True}
        tail.publish(lines[:1])
        now[0] += 1
        tail.publish(lines[:1])
        assert [await anext(events), (await anext(events))["log"]["number"]] == [{"dropped": 1}, 0]
        await events.aclose()
        assert tail.subscribers == 0
        tail.publish(lines)

    asyncio.run(scenario())
