"""Groups of analytics against numbers computed in plain Python, on both engines."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, get_args

import pytest

from penstock.logs.query import GroupColumn, GroupName, GroupQuery, ListQuery, LogFilterError, LogFilters
from tests.unit.logs.engines.test_graphs import DAYS, allow_rounding
from tests.unit.logs.samples import Sample, is_hit, is_unpriced, known_times, mean, percentile, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logs.engines.protocol import LogEngine


def requested_prompt(record: dict[str, Any]) -> str | None:
    """Returns the prompt of a record, unless a comparison made the request."""
    return None if record["source"] == "comparison" else record["prompt_slug"]


KEYS: dict[str, tuple[str | Callable[[dict[str, Any]], Any], str]] = {
    "users": ("user", "user"),
    "ai-models": ("ai_model", "ai_model"),
    "ai_service": ("ai_org", "ai_service"),
    "model": ("ai_model", "model"),
    "status_code": (status_of, "status_code"),
    "api_key": ("api_key_id", "api_key"),
    "config": ("config", "config"),
    "workspace": ("workspace_id", "workspace"),
    "provider": ("virtual_key", "provider"),
    "prompt": (requested_prompt, "prompt"),
    "prompt-versions": (
        lambda record: (slug := requested_prompt(record)) and f"{slug}@{record['prompt_version']}",
        "prompt_version",
    ),
}


def ratings(part: list[dict[str, Any]], sample: Sample) -> list[float]:
    return [
        mean([item["value"] * item["weight"] for item in feedback])
        for record in part
        if (feedback := sample.feedback_of(record))
    ]


def measure(part: list[dict[str, Any]], column: str, sample: Sample | None = None) -> Any:
    def average(key: str) -> float:
        return sum(record.get(key) or 0 for record in part) / len(part)

    times = known_times(part)
    return {
        "requests": lambda: len(part),
        "cost": lambda: sum(record.get("cost_nanodollars") or 0 for record in part) / 1e7,
        "total_tokens": lambda: sum(record.get("total_units") or 0 for record in part),
        "avg_tokens": lambda: average("total_units"),
        "avg_input_tokens": lambda: average("req_units"),
        "avg_output_tokens": lambda: average("res_units"),
        "avg_latency": lambda: mean(times),
        "p95_latency": lambda: percentile(times, 0.95),
        "p99_latency": lambda: percentile(times, 0.99),
        "success_rate": lambda: mean(100.0 * record["is_success"] for record in part),
        "error_count": lambda: sum(not record["is_success"] for record in part),
        "cache_hit_rate": lambda: mean(100.0 * is_hit(record) for record in part),
        "last_seen": lambda: max(record["created_at"] for record in part),
        "first_seen": lambda: min(record["created_at"] for record in part),
        "unpriced_requests": lambda: sum(map(is_unpriced, part)),
        "avg_weighted_feedback": lambda: mean(rated) if (rated := ratings(part, sample)) else 0,
        "requests_with_feedback": lambda: len(ratings(part, sample)),
    }[column]()


def group(records: list[dict[str, Any]], key: str | Callable[[dict[str, Any]], Any]) -> dict[Any, list[dict[str, Any]]]:
    parts: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        value = record[key] if isinstance(key, str) else key(record)
        if value not in {None, ""}:
            parts[value].append(record)
    return dict(sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])))


@pytest.mark.parametrize("group_by", sorted(set(get_args(GroupName)) - {"metadata", "guardrail", "guardrail_check"}))
def test_group_with_all_columns_equals_the_reference(sample_engine: LogEngine, sample: Sample, group_by: Any):
    columns = list(get_args(GroupColumn))
    key, name = KEYS[group_by]
    expected = []
    for value, part in group(sample.select(DAYS), key).items():
        item = {
            name: value,
            **{column: measure(part, column, sample) for column in columns},
            "object": "analytics-group",
        }
        if group_by in {"users", "ai-models"}:
            item["requests"] = str(item["requests"])
        expected.append(item)
    result = sample_engine.run(GroupQuery(filters=DAYS, group_by=group_by, columns=columns), 20)
    if group_by == "users":
        for item in result["data"]:
            item["cost"] = float(item["cost"])
    assert result == {"object": "list", "total": len(expected), "data": allow_rounding(expected)}


def find_word(item: dict[str, Any]) -> str:
    """Returns the name of the column that counts the verdict of a guardrail or a check."""
    if item.get("error") is not None:
        return "errors"
    words = (("deny", "denied"), ("would_deny", "would_deny"), ("skipped", "skipped"))
    decided = next((word for field, word in words if item.get(field)), None)
    return decided or ("passed" if item.get("verdict", True) else "failed")


@pytest.mark.parametrize("group_by", ["guardrail", "guardrail_check"])
def test_verdicts_of_guardrails_and_checks_equal_the_reference(sample_engine: LogEngine, sample: Sample, group_by: Any):
    words = ("passed", "failed", "denied", "would_deny", "skipped", "errors")
    used = words[:-1] if group_by == "guardrail" else ("passed", "failed", "errors")
    expected: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("requests", "error_count", *used), 0))
    for record in sample.select(DAYS):
        stages: dict[str, list[dict[str, Any]]] = record.get("hook_results") or {}
        for result in itertools.chain(*stages.values()):
            for item in [result] if group_by == "guardrail" else result.get("checks", []):
                for column, count in (("requests", 1), (find_word(item), 1), ("error_count", not record["is_success"])):
                    expected[item["id"]][column] += count
    query = GroupQuery(filters=DAYS, group_by=group_by, columns=["error_count"], order_by="avg_latency")
    result = sample_engine.run(query, 20)
    assert result["total"] == len(expected) > 1
    rows = {row.pop(group_by): row for row in result["data"]}
    assert all(row.pop("object") == "analytics-group" for row in rows.values())
    assert rows == expected
    assert all(expected[name][word] for name in expected for word in used)
    second = sample_engine.run(GroupQuery(filters=DAYS, group_by=group_by, page_size=1, current_page=1), 20)
    assert (second["total"], len(second["data"])) == (len(expected), 1)


def test_fixed_groups_have_the_fields_of_the_api(sample_engine: LogEngine):
    users = sample_engine.run(GroupQuery(filters=DAYS, group_by="users"), 20)["data"][0]
    models = sample_engine.run(GroupQuery(filters=DAYS, group_by="ai-models"), 20)["data"][0]
    wide = sample_engine.run(GroupQuery(filters=DAYS, group_by="model"), 20)["data"][0]
    unpriced = {"unpriced_requests": int}
    assert {key: type(value) for key, value in users.items()} == unpriced | dict.fromkeys(
        ("user", "requests", "cost", "object"), str
    )
    assert {key: type(value) for key, value in models.items()} == dict.fromkeys(("ai_model", "requests", "object"), str)
    assert {key: type(value) for key, value in wide.items()} == {"model": str, "requests": int, "object": str}


@pytest.mark.parametrize("key", ["team", "_user", "k'\"\\", "missing"])
def test_metadata_group_equals_the_reference(sample_engine: LogEngine, sample: Sample, key: str):
    parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in sample.select(DAYS):
        if key in record["metadata"]:
            parts[record["metadata"][key]].append(record)
    expected = []
    for value, part in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])):
        rated = ratings(part, sample)
        expected.append({
            "metadata_value": value,
            "requests": len(part),
            "cost": measure(part, "cost"),
            "avg_tokens": measure(part, "avg_tokens"),
            "last_seen": measure(part, "last_seen"),
            "unpriced_requests": measure(part, "unpriced_requests"),
            "avg_weighted_feedback": mean(rated),
            "requests_with_feedback": len(rated),
            "object": "analytics-group",
        })  # fmt: skip
    result = sample_engine.run(GroupQuery(filters=DAYS, group_by="metadata", metadata_key=key), 20)
    assert result == {"object": "list", "total": len(expected), "data": allow_rounding(expected)}


@pytest.mark.parametrize("column", ["cost", "avg_latency", "last_seen"])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_groups_are_ordered_and_paged(sample_engine: LogEngine, sample: Sample, column: Any, direction: Any):
    parts = group(sample.select(DAYS), "ai_model")
    expected = sorted(parts, key=lambda name: measure(parts[name], column), reverse=direction == "desc")
    models = []
    for page in range(3):
        query = GroupQuery(
            filters=DAYS, group_by="model", order_by=column, order_by_type=direction, current_page=page, page_size=3
        )
        result = sample_engine.run(query, 20)
        assert result["total"] == 4
        models += [item["model"] for item in result["data"]]
    assert models == expected


def test_metadata_group_needs_a_key(sample_engine: LogEngine):
    with pytest.raises(LogFilterError, match="metadata_key is missing"):
        sample_engine.run(GroupQuery(filters=LogFilters(organisation_id="org"), group_by="metadata"), 20)


def test_killed_requests_of_the_status_group_0_are_those_of_the_filter(sample_engine: LogEngine):
    filters = LogFilters(organisation_id="org")
    groups = sample_engine.run(GroupQuery(filters=filters, group_by="status_code", page_size=100), 20)["data"]
    (count,) = (group["requests"] for group in groups if group["status_code"] == 0)
    filters.status_code = [0]
    listed = sample_engine.run(ListQuery(filters=filters, columns=["outcome"], limit=1000, with_total=True), 20)
    assert listed["total"] == count > 0
    assert {record["outcome"] for record in listed["data"]} == {"killed"}
