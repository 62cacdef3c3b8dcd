"""Simulation of policies: conditions, groups, and windows next to a plain list of admissions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.limits.simulation import (
    LOG_COLUMNS,
    LimitSimulation,
    SimulatedPolicy,
    group_value,
    matches_pattern,
)

# Wednesday 2026-11-25 00:00 UTC.
NOON_MS = 1_795_564_800_000
ANY_MODEL = [{"key": "model", "value": "*"}]


def make_log(**fields: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(LOG_COLUMNS),
        "ai_model": "m",
        "total_units": 0,
        "cost_nanodollars": None,
        "metadata": {},
        **fields,
    }


def policy(**fields: Any) -> SimulatedPolicy:
    fields_of_policy = {"conditions": ANY_MODEL, "group_by": ["api_key"], "type": "requests", "limit": 3, **fields}
    return SimulatedPolicy(**fields_of_policy)


@pytest.mark.parametrize("unit", ["rpm", "rph"])
def test_sliding_windows_never_hold_more_than_the_limit(unit: str):
    rng = random.Random(7)  # noqa: S311 - not a secret
    length = {"rpm": 60_000, "rph": 3_600_000}[unit]
    simulation = LimitSimulation(policy(unit=unit, is_sliding=True, limit=10), NOON_MS)
    at, admitted, refused = NOON_MS, list[int](), 0
    for _ in range(2000):
        at += rng.randrange(length // 15)
        simulation.add(at, make_log())
        group = simulation.groups[""]
        if group.refused == refused:
            admitted.append(at)
        refused = group.refused
    assert refused > 100
    assert all(sum(start <= other < start + length for other in admitted) <= 10 for start in admitted)


@pytest.mark.parametrize(
    ("fields", "pause_ms", "per_window"),
    [
        ({"unit": "rpm"}, 10_000, 6),
        ({"unit": "rpd"}, 4 * 3_600_000, 6),
        ({"periodic_reset_days": 1}, 4 * 3_600_000, 6),
        ({"periodic_reset": "weekly"}, 86_400_000, 5),
    ],
    ids=["minute", "day", "days", "week"],
)
def test_each_window_admits_the_limit(fields: dict[str, Any], pause_ms: int, per_window: int):
    simulation = LimitSimulation(policy(**fields), NOON_MS)
    # The simulation begins on a Wednesday, so its first week has only five days.
    for number in range(2 * per_window if "periodic_reset" not in fields else 5 + 7):
        simulation.add(NOON_MS + number * pause_ms, make_log())
    group = simulation.groups[""]
    expected = 5 + 7 - 6 if "periodic_reset" in fields else 2 * (per_window - 3)
    assert group.refused == expected
    assert group.first_refused == NOON_MS + 3 * pause_ms


def test_budgets_refuse_once_nothing_is_left():
    simulation = LimitSimulation(policy(type="cost", limit=100, periodic_reset="monthly"), NOON_MS)
    for cost in (60, 60, 5, None):
        simulation.add(NOON_MS, make_log(cost_nanodollars=cost))
    group = simulation.groups[""]
    assert (group.requests, group.refused, group.usage, group.peak) == (4, 2, 125, 125)
    # 2026-12-01.
    simulation.add(NOON_MS + 6 * 86_400_000, make_log(cost_nanodollars=7))
    assert group.refused == 2


def test_conditions_and_groups_are_those_of_the_data_plane():
    log = make_log(
        api_key_id="k-1", virtual_key="prod", ai_model="gpt-4o", operation="embed", metadata={"a": "x|y", "b": "%"}
    )
    conditions = [
        {"key": "model", "value": ["@prod/*", "other"]},
        {"key": "endpoint_type", "value": "embed"},
        {"key": "metadata.a", "value": "z", "excludes": True},
    ]
    groups = ["metadata.a", "metadata.b", "api_key"]
    simulation = LimitSimulation(policy(conditions=conditions, group_by=groups), NOON_MS)
    simulation.add(NOON_MS, log)
    simulation.add(NOON_MS, {**log, "virtual_key": None})
    assert {name: group.requests for name, group in simulation.groups.items()} == {"x%7Cy|%25|k-1": 1}
    assert group_value(["metadata.none"], log) == ""
    # The store accepts neither long values nor U+0000.
    for value in ("x" * 300, "a\0b"):
        assert group_value(["metadata.a"], {**log, "metadata": {"a": value}}).startswith("sha256:")


@pytest.mark.parametrize(
    ("pattern", "value", "is_match"),
    [
        ("a*", "ab", True),
        ("*a", "ba", True),
        ("a*b*c", "a1b2c", True),
        ("a*a", "a", False),
        ("a", "ab", False),
        ("*", "", True),
        ("g*o-m*i", "gpt-4o-mini", True),
        ("gpt-4o-mini*x", "gpt-4o-mini", False),
    ],
)
def test_patterns(pattern: str, value: str, is_match: bool):
    assert matches_pattern(pattern, value) is is_match
