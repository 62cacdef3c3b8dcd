"""Rules of limits as the data plane reads them: windows, amounts and periods."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.ids import new_id
from penstock.limits.periods import UsagePeriod, current_period
from penstock.limits.rules import (
    MAX_LIMIT,
    LimitOwner,
    embedded_rules,
    integration_counter_id,
    rate_policy_rule,
    usage_policy_rule,
)
from penstock.schemas import format_timestamp
from tests.unit.test_limit_fields import FakeClock

OWNER = LimitOwner("api_key", "k-1", "app")
POLICY: dict[str, Any] = {
    "id": "p-1",
    "name": "budget",
    "conditions": [
        {"key": "model", "value": "gpt-4o"},
        {"key": "metadata.team", "value": ["a", "b"], "excludes": True},
    ],
    "group_by": [{"key": "api_key"}, {"key": "metadata._user"}],
    "dry_run": True,
    "created_at": 5,
    "last_reset_at": None,
}
USAGE_POLICY: dict[str, Any] = {
    **POLICY,
    "type": "cost",
    "credit_limit": 12.5,
    "alert_threshold": 10.0,
    "periodic_reset": None,
    "periodic_reset_days": None,
    "next_usage_reset_at": None,
    "enforcement": "hard",
}
SHARED_RULE = {
    "id": "p-1",
    "owner": {"kind": "policy", "id": "p-1", "slug": "budget"},
    "conditions": [
        {"key": "model", "values": ["gpt-4o"], "excludes": False},
        {"key": "metadata.team", "values": ["a", "b"], "excludes": True},
    ],
    "group_by": ["api_key", "metadata._user"],
    "dry_run": True,
}


def milliseconds(moment: str) -> int:
    clock = FakeClock.__new__(FakeClock)
    clock.set_time(moment)
    return clock.moment // 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


def test_usage_policy_counts_cost_in_nanodollars():
    assert usage_policy_rule(USAGE_POLICY) == {
        **SHARED_RULE,
        "kind": "usage",
        "type": "cost",
        "limit": 12_500_000_000,
        "alert": 10_000_000_000,
        "period": {"start": 5, "end": None},
        "enforcement": "hard",
    }


def test_rate_policy_has_a_window():
    row = {**POLICY, "name": None, "type": "tokens", "unit": "rpw", "value": 7, "window": "sliding"}
    assert rate_policy_rule(row) == {
        **SHARED_RULE,
        "owner": {"kind": "policy", "id": "p-1", "slug": "p-1"},
        "kind": "rate",
        "type": "tokens",
        "limit": 7,
        "window": {"unit": "week", "sliding": True},
    }


@pytest.mark.usefixtures("clock")
def test_embedded_limits_have_an_id_and_no_conditions():
    due = format_timestamp(milliseconds("2026-11-23T00:00:00"))
    row = {
        "usage_limits": {"credit_limit": 0.000_000_001, "periodic_reset": "weekly", "next_usage_reset_at": due},
        "rate_limits": [
            {"type": "requests", "unit": "rps", "value": 0},
            {"type": "tokens", "unit": "rpd", "value": 10},
        ],
        "last_reset_at": 9,
        "created_at": 5,
    }
    owner, enforcement = OWNER._asdict(), {"enforcement": "soft", "dry_run": False}
    assert list(embedded_rules(OWNER, row)) == [
        {
            "id": "api_key:k-1:usage:cost:",
            "owner": owner,
            "kind": "usage",
            "type": "cost",
            "limit": 1,
            "alert": None,
            "period": {"start": 9, "end": milliseconds("2026-11-23T00:00:00")},
            **enforcement,
        },
        {
            "id": "api_key:k-1:rate:requests:rps",
            "owner": owner,
            "kind": "rate",
            "type": "requests",
            "limit": 0,
            "window": {"unit": "second", "sliding": False},
            "dry_run": False,
        },
        {
            "id": "api_key:k-1:rate:tokens:rpd",
            "owner": owner,
            "kind": "rate",
            "type": "tokens",
            "limit": 10,
            "window": {"unit": "day", "sliding": False},
            "dry_run": False,
        },
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"credit_limit": None, "alert_threshold": 3, "type": "tokens"}, (MAX_LIMIT, 3)),
        ({"credit_limit": 10.9, "type": "requests"}, (10, None)),
        ({"credit_limit": 1e30}, (MAX_LIMIT, None)),
        ({"credit_limit": 0.1}, (100_000_000, None)),
    ],
)
def test_amounts_fit_into_64_bits(limit: dict[str, Any], expected: tuple[int, int | None]):
    row = {"usage_limits": [limit], "rate_limits": None, "last_reset_at": None, "created_at": 5}
    (rule,) = embedded_rules(OWNER, row)
    assert (rule["limit"], rule["alert"]) == expected


def test_row_without_limits_has_no_rules():
    row: dict[str, Any] = {"usage_limits": [], "rate_limits": None, "last_reset_at": None, "created_at": 5}
    assert list(embedded_rules(OWNER, row)) == []


def test_counters_of_an_integration_differ_by_workspace():
    integration, here, there = (new_id() for _ in range(3))
    ids = [integration_counter_id(integration, workspace) for workspace in (here, there, here)]
    assert (ids[0] == ids[2], ids[0] != ids[1]) == (True, True)


# `NOW` is a Wednesday, and `MONDAY` begins its week.
NOW, MONDAY = "2026-11-18T10:00:00", "2026-11-16T00:00:00"


@pytest.mark.parametrize(
    ("period", "due", "start", "end"),
    [
        ({"periodic_reset": "weekly"}, "2026-10-05T00:00:00", MONDAY, "2026-11-23T00:00:00"),
        ({"periodic_reset": "weekly"}, "2026-11-17T00:00:00", "2026-11-17T00:00:00", "2026-11-23T00:00:00"),
        ({"periodic_reset": "monthly"}, "2026-10-05T00:00:00", "2026-11-01T00:00:00", "2026-12-01T00:00:00"),
        ({"periodic_reset_days": 10}, "2026-10-05T00:00:00", "2026-11-14T00:00:00", "2026-11-24T00:00:00"),
        ({"periodic_reset_days": 44}, "2026-10-05T00:00:00", "2026-10-05T00:00:00", "2026-11-18T00:00:00"),
        ({"periodic_reset": "weekly"}, "2026-12-03T00:00:00", None, "2026-12-03T00:00:00"),
        ({}, "2026-10-05T00:00:00", "2026-10-05T00:00:00", None),
        ({}, None, None, None),
    ],
)
def test_period_follows_the_previous_one(
    clock: FakeClock, period: dict[str, Any], due: str | None, start: str | None, end: str | None
):
    # The period of 44 days after `due` ends at midnight today, so the time is one second earlier.
    clock.set_time("2026-11-17T23:59:59" if period.get("periodic_reset_days") == 44 else NOW)
    limit = {**period, "next_usage_reset_at": due and format_timestamp(milliseconds(due))}
    bounds = (milliseconds(start) if start else 5, milliseconds(end) if end else None)
    assert current_period(limit, {"created_at": 5, "last_reset_at": None}) == UsagePeriod(*bounds)
    # A manual reset begins a period, too.
    reset = milliseconds("2026-11-17T12:00:00")
    assert current_period(limit, {"created_at": 5, "last_reset_at": reset}) == UsagePeriod(reset, bounds[1])
