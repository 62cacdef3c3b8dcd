"""Simulation of a policy against stored logs: how many requests it would have rejected, by group.

Follows the data plane: a request is rejected if the limit is exhausted when it begins, and a rejected request uses
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.limits.policies import condition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNIT_MS = {"rps": 1000, "rpm": 60_000, "rph": 3_600_000, "rpd": 86_400_000, "rpw": 7 * 86_400_000}
DAY_MS = 86_400_000
# Monday 1970-01-05 00:00 UTC.
FIRST_MONDAY_MS = 4 * DAY_MS
# Number of parts of a sliding window. The data plane uses the same number.
SLIDING_PARTS = 20
# Maximum number of groups with separate results, and the name of the group for all others.
MAX_GROUPS, OTHER_GROUPS = 100_000, "(others)"
MAX_GROUP_VALUE_BYTES = 256
METADATA_PREFIX = "metadata."
# Columns of a log that a condition compares, by condition key. Grouping by the same key uses the first of them.
KEY_COLUMNS = {
    "api_key": ("api_key_id", "api_key_name"),
    "workspace_id": ("workspace_id", "workspace_slug"),
    "virtual_key": ("virtual_key", "provider_id"),
    "provider": ("ai_org",),
    "config": ("config", "config_id"),
    "prompt": ("prompt_slug", "prompt_id"),
    "model": ("ai_model",),
    "endpoint_type": ("operation",),
}
LOG_COLUMNS = tuple(column for columns in KEY_COLUMNS.values() for column in columns)
AMOUNT_COLUMNS = {"tokens": "total_units", "cost": "cost_nanodollars"}


class SimulatedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a simulation. `limit` is in requests, tokens or nano-dollars; `unit` is that of a rate limit."""

    conditions: Sequence[Mapping[str, Any]]
    group_by: Sequence[str]
    type: str
    limit: int
    unit: str | None = None
    is_sliding: bool = False
    periodic_reset: str | None = None
    periodic_reset_days: int | None = None

    @property
    def metadata_keys(self) -> list[str]:
        """Names of the metadata that conditions and groups refer to."""
        keys = [*(condition["key"] for condition in self.conditions), *self.group_by]
        return sorted({key.removeprefix(METADATA_PREFIX) for key in keys if key.startswith(METADATA_PREFIX)})


class GroupResult(msgspec.Struct, kw_only=True):
    """Result for one group. Times are in milliseconds; 0 means none."""

    requests: int = 0
    refused: int = 0
    # Usage of all requests, including the rejected ones.
    usage: int = 0
    # Highest usage of one window or period, including the rejected requests.
    peak: int = 0
    first_refused: int = 0
    last_refused: int = 0
    window_start: int = -1
    window_usage: int = 0
    # Usage of the requests that were not rejected, by start of the window, or of the part of a sliding window.
    admitted: dict[int, int] = msgspec.field(default_factory=dict[int, int])


class LimitSimulation:
    """Applies a policy to logs, the oldest first. On the day of `start_ms`, the first period begins if
    `periodic_reset_days` is set.
    """

    def __init__(self, policy: SimulatedPolicy, start_ms: int) -> None:
        """Starts without logs."""
        self.policy = policy
        self._start_ms = start_ms
        self._find_window = self._choose_window()
        self.requests = 0
        self.groups: dict[str, GroupResult] = {}

    def add(self, at_ms: int, log: Mapping[str, Any]) -> None:
        """Adds one log. `log` has `LOG_COLUMNS`, the columns of amounts, and `metadata` with the policy's keys."""
        self.requests += 1
        if not self.matches(log):
            return
        name = group_value(self.policy.group_by, log)
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            name = OTHER_GROUPS
        group = self.groups.setdefault(name, GroupResult())
        column = AMOUNT_COLUMNS.get(self.policy.type)
        amount = 1 if column is None else max(log[column] or 0, 0)
        group.requests += 1
        group.usage += amount
        window = self._find_window(at_ms)
        if window != group.window_start:
            group.window_start, group.window_usage = window, 0
        group.window_usage += amount
        group.peak = max(group.peak, group.window_usage)
        if self._admit(group, window, at_ms, amount):
            return
        group.refused += 1
        group.first_refused = group.first_refused or at_ms
        group.last_refused = at_ms

    def matches(self, log: Mapping[str, Any]) -> bool:
        """Returns true if a log meets all conditions."""
        return all(is_condition_met(condition, log) for condition in self.policy.conditions)

    def window_start(self, at_ms: int) -> int:
        """Returns the start of the window or period that contains a moment."""
        return self._find_window(at_ms)

    def _admit(self, group: GroupResult, window: int, at_ms: int, amount: int) -> bool:
        part, oldest = window, window
        if self.policy.unit and self.policy.is_sliding:
            length = UNIT_MS[self.policy.unit] // SLIDING_PARTS
            part = at_ms - at_ms % length
            oldest = part - SLIDING_PARTS * length
        if any(start < oldest for start in group.admitted):
            group.admitted = {start: used for start, used in group.admitted.items() if start >= oldest}
        if sum(group.admitted.values()) >= self.policy.limit:
            return False
        group.admitted[part] = group.admitted.get(part, 0) + amount
        return True

    def _choose_window(self) -> Callable[[int], int]:
        policy = self.policy
        if policy.unit:
            length = UNIT_MS[policy.unit]
            offset = FIRST_MONDAY_MS if policy.unit == "rpw" else 0
            return lambda at: at - (at - offset) % length
        if policy.periodic_reset == "weekly":
            return lambda at: at - (at - FIRST_MONDAY_MS) % (7 * DAY_MS)
        if policy.periodic_reset == "monthly":
            return _month_start
        if policy.periodic_reset_days:
            length, first = policy.periodic_reset_days * DAY_MS, self._start_ms - self._start_ms % DAY_MS
            return lambda at: at - (at - first) % length
        return lambda _at: 0


def _month_start(at_ms: int) -> int:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return round(first.timestamp()) * 1000


def is_condition_met(condition: Mapping[str, Any], log: Mapping[str, Any]) -> bool:
    """Returns true if a log meets a condition of a policy."""
    values = condition_values(condition["value"])
    actual = list(_values_of(condition["key"], log))
    is_found = any(matches_pattern(pattern, value) for pattern in values for value in actual)
    return is_found != bool(condition.get("excludes", False))


def _values_of(key: str, log: Mapping[str, Any]) -> Iterator[str]:
    if key.startswith(METADATA_PREFIX):
        value = log["metadata"].get(key.removeprefix(METADATA_PREFIX))
        if value is not None:
            yield value
        return
    for column in KEY_COLUMNS.get(key, ()):
        if log[column]:
            yield log[column]
    if key == "model" and log["virtual_key"] and log["ai_model"]:
        yield f"@{log['virtual_key']}/{log['ai_model']}"


def matches_pattern(pattern: str, value: str) -> bool:
    """Compares a value with a pattern in which `*` matches any text, in linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return value == first
    if not value.startswith(first):
        return False
    at = len(first)
    for middle in rest[:-1]:
        start = value.find(middle, at)
        if start < 0:
            return False
        at = start + len(middle)
    return len(value) - at >= len(rest[-1]) and value.endswith(rest[-1])


def group_value(keys: Sequence[str], log: Mapping[str, Any]) -> str:
    """Returns the group of a log as the data plane names it. A missing value is empty."""
    values = [_group_part(key, log) for key in keys]
    if len(values) > 1:
        values = ["|".join(value.replace("%", "%25").replace("|", "%7C") for value in values)]
    joined = "".join(values)
    if len(joined.encode()) <= MAX_GROUP_VALUE_BYTES and "\0" not in joined:
        return joined
    return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"


def _group_part(key: str, log: Mapping[str, Any]) -> str:
    if key.startswith(METADATA_PREFIX):
        return log["metadata"].get(key.removeprefix(METADATA_PREFIX)) or ""
    columns = KEY_COLUMNS.get(key, ())
    return (log[columns[0]] or "") if columns else ""
