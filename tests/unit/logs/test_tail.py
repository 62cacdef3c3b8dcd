"""Live tail: filters, the bounded rate, and subscribers that leave."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from penstock.logs.query import LogFilters, Restriction
from penstock.logs.tail import (
    MAX_PER_SECOND,
    MAX_SUBSCRIBERS,
    MAX_SUBSCRIBERS_PER_ORGANISATION,
    MAX_SUBSCRIBERS_PER_SCOPE,
    OFFERED_RECORDS,
    LiveTail,
    TooManyTailsError,
    matches_filters,
)

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


def test_killed_requests_have_status_0():
    killed = {name: value for name, value in RECORD.items() if name != "response_status_code"}
    for record, status, matches in ((killed, 0, True), (killed, 200, False), (RECORD, 0, False)):
        assert matches_filters(record, LogFilters(organisation_id="o", status_code=[status])) is matches


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
        with tail.subscribe(LogFilters(organisation_id="o")) as subscriber:
            tail.publish(lines)
            received = [await subscriber.next_event(0.01) for _ in range(MAX_PER_SECOND)]
            assert [event["log"]["number"] for event in received] == list(range(MAX_PER_SECOND))
            assert await subscriber.next_event(0.01) == {"dropped": 7}
            assert await subscriber.next_event(0.01) == {"heartbeat": True}
            tail.publish(lines[:1])
            now[0] += 1
            tail.publish(lines[:1])
            events = [await subscriber.next_event(0.01) for _ in range(2)]
            assert [events[0], events[1]["log"]["number"]] == [{"dropped": 1}, 0]
        assert tail.subscribers == 0
        tail.publish(lines)

    asyncio.run(scenario())


def test_many_records_are_offered_in_their_order_and_leave_time_for_other_work():
    async def scenario() -> None:
        tail = LiveTail(asyncio.get_running_loop())
        with tail.subscribe(LogFilters(organisation_id="o")) as subscriber:
            lines = [msgspec.json.encode({"organisation_id": "x"})] * 50 * OFFERED_RECORDS
            tail.publish([*lines, msgspec.json.encode(RECORD)])
            turns = 0
            event = asyncio.ensure_future(subscriber.next_event(5))
            while not event.done():
                turns += 1
                await asyncio.sleep(0)
            assert event.result()["log"]["config"] == "c"
            assert turns >= 50

    asyncio.run(scenario())


def test_records_that_wait_are_bounded_and_keep_their_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.logs.tail.MAX_WAITING_RECORDS", 3 * OFFERED_RECORDS, raising=False)
    monkeypatch.setattr("penstock.logs.tail.MAX_PER_SECOND", 10 * OFFERED_RECORDS)

    def make_lines(first: int, count: int, **fields: str) -> list[bytes]:
        return [msgspec.json.encode({**RECORD, **fields, "number": first + index}) for index in range(count)]

    async def scenario() -> None:
        tail = LiveTail(asyncio.get_running_loop())
        with (
            tail.subscribe(LogFilters(organisation_id="o", workspace_ids=["w"])) as subscriber,
            tail.subscribe(LogFilters(organisation_id="other")) as other,
        ):
            tail.publish(make_lines(0, 2 * OFFERED_RECORDS))
            tail.publish(make_lines(2 * OFFERED_RECORDS, OFFERED_RECORDS + 7))
            tail.publish([*make_lines(0, 4, workspace_id="x"), *make_lines(0, 2, organisation_id="other")])
            events = [await subscriber.next_event(5) for _ in range(3 * OFFERED_RECORDS)]
            assert [event["log"]["number"] for event in events] == list(range(3 * OFFERED_RECORDS))
            # Each tail reports the dropped records of its own workspace only.
            assert [await each.next_event(0.05) for each in (subscriber, other)] == [{"dropped": 7}, {"dropped": 2}]
            # Afterwards there is room again.
            tail.publish(make_lines(1, 1))
            assert (await subscriber.next_event(5))["log"]["number"] == 1

    asyncio.run(scenario())


def test_one_workspace_leaves_live_tails_to_others():
    tail = LiveTail()

    def subscribe(stack: ExitStack, organisation: str, workspace: str, count: int) -> None:
        for _ in range(count):
            filters = LogFilters(organisation_id=organisation, workspace_ids=[workspace])
            stack.enter_context(tail.subscribe(filters))

    with ExitStack() as stack:
        subscribe(stack, "o", "w1", MAX_SUBSCRIBERS_PER_SCOPE)
        with pytest.raises(TooManyTailsError, match="this workspace has 16"):
            subscribe(stack, "o", "w1", 1)
        subscribe(stack, "o", "w2", MAX_SUBSCRIBERS_PER_SCOPE)
        subscribe(stack, "o", "w3", MAX_SUBSCRIBERS_PER_SCOPE)
        with pytest.raises(TooManyTailsError, match="this organisation has 48"):
            subscribe(stack, "o", "w4", 1)
        subscribe(stack, "p", "w1", MAX_SUBSCRIBERS - MAX_SUBSCRIBERS_PER_ORGANISATION)
        with pytest.raises(TooManyTailsError, match="this node has 64"):
            subscribe(stack, "q", "w1", 1)
    assert tail.subscribers == 0
