"""CLI commands of analytics: graphs, groups, bars, and models without a price."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from penstock.commands.analytics import GROUPS, MEASURES
from penstock.commands.terminal_output import BAR_WIDTH
from penstock.resources._analytics_graphs import GRAPHS
from penstock.resources._log_groups import GROUPS as API_GROUPS
from tests.unit.cli_api import PretendedApi, pretended_api

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = [f"2026-11-20T{hour:02}:00:00.000Z" for hour in range(6)]
ERRORS = [{"response_status_code": 429, "count": 3}, {"response_status_code": 500, "count": 1}]


def respond(_method: str, path: str, _body: Any) -> Any:  # noqa: PLR0911 - one line per kind of response
    name = path.rpartition("/")[2]
    if "/groups/" in path:
        key = {"users": "user", "prompt-versions": "prompt_version"}.get(name, name)
        key = "metadata_value" if "metadata" in path else key
        row = {
            key: "a",
            **dict.fromkeys(("requests", "error_count", "total_tokens", "avg_input_tokens", "avg_output_tokens"), 4),
            **dict.fromkeys(("avg_latency", "p95_latency", "p99_latency", "success_rate", "cache_hit_rate"), 50),
            "cost": "800",
            "unpriced_requests": 2,
            **({"passed": 3, "failed": 0, "denied": 1} if name == "guardrail" else {}),
        }
        return {"data": [row, {**row, key: "b", "cost": "400"}], "total": 3, "object": "list", "partial": True}
    if name == "unpriced":
        received = {"first_seen": TIMES[0], "last_seen": TIMES[1]}
        row = {"ai_org": "openai", "ai_model": "new", "requests": 1200, "total_units": 5, **received}
        return {"data": [row], "total": 1, "requests": 1200, "object": "list"}
    if name == "cache":
        return {"summary": {"hits": 2, "cache_speedup": 12.5}, "object": "analytics-summary"}
    if name == "stacks":
        points = [{"timestamp": time, "stats": ERRORS if time == TIMES[2] else []} for time in TIMES]
        return {"summary": {"total": 4}, "data_points": points, "object": "analytics-graph"}
    if name == "status-codes":
        return {"summary": {"total_errors": 4}, "data_points": [{"status_code": 429, "count": 4}]}
    if name == "ai-models":
        return {"summary": {}, "data_points": []}
    values = [0, 100, 50, 0, 0, 0]
    points = [{"timestamp": time, "total": value, "avg": value / 2} for time, value in zip(TIMES, values, strict=True)]
    summary = {"total": 150, "avg": 37.5, **({"unpriced": 3} if name == "cost" else {})}
    return {"summary": summary, "data_points": points, "object": "analytics-graph"}


@pytest.fixture
def api() -> Iterator[PretendedApi]:
    with pretended_api(respond) as actual:
        yield actual


def test_every_graph_and_group_of_the_api_is_reachable():
    assert {measure.graph for measure in MEASURES.values()} == {graph.name for graph in GRAPHS}
    # `ai-models` has the same rows as `model`, and `workspaces` is another spelling.
    assert set(GROUPS.values()) == set(API_GROUPS) - {"ai-models", "workspaces"}


def test_graph_is_drawn_with_bars_and_without_empty_times(api: PretendedApi):
    done = api.run("analytics", "cost", "--since", "7d", "--rollup", "1h", "--time-zone", "Asia/Tokyo")
    assert done.exit_code == 0, done.output
    summary, line, head, *rows = done.stdout.splitlines()
    assert summary.split("  ") == ["total: $1.50", "avg: $0.3750", "unpriced: 3"]
    assert line == " █▅"
    assert head.split() == ["time", "(Asia/Tokyo)", "total", "avg", "total"]
    assert rows[1].split()[:4] == ["2026-11-20", "10:00:00", "$1.00", "$0.5000"]
    assert [row.count("█") for row in rows] == [0, BAR_WIDTH, BAR_WIDTH // 2, 0]
    assert "3 times nothing" in rows[-1]
    assert "3 requests have no price" in done.stderr
    assert api.query["rollup"] == ["1h"]
    assert (api.query["time_zone"], urlsplit(api.paths[-1]).path) == (["Asia/Tokyo"], "/v1/analytics/graphs/cost")


def test_groups_of_guardrails_have_their_verdicts(api: PretendedApi):
    done = api.run("analytics", "requests", "--by", "guardrail")
    head, first, *_ = done.stdout.splitlines()
    assert head.split() == ["guardrail", "requests", "success_rate", "passed", "failed", "denied"]
    assert first.split()[:6] == ["a", "4", "50%", "3", "0", "1"]


def test_every_group_is_shown(api: PretendedApi):
    for group in GROUPS:
        assert api.run("analytics", "requests", "--by", group).exit_code == 0, group


@pytest.mark.parametrize("measure", sorted(MEASURES))
def test_every_measure_is_shown(api: PretendedApi, measure: str):
    done = api.run("analytics", measure)
    assert done.exit_code == 0, done.output
    assert urlsplit(api.paths[-1]).path == f"/v1/analytics/graphs/{MEASURES[measure].graph}"
    assert json.loads(api.run("analytics", measure, "--json").stdout)


def test_lists_in_points_become_columns(api: PretendedApi):
    done = api.run("analytics", "errors-stacks")
    head, *rows = done.stdout.splitlines()[2:]
    assert "status 429  status 500" in head
    assert [row.split()[2:4] for row in rows if "02:00" in row] == [["3", "1"]]


@pytest.mark.parametrize(
    ("group", "path"),
    [("model", "model"), ("user", "users"), ("status", "status_code"), ("metadata.team", "metadata/team")],
)
def test_groups_are_drawn_with_bars(api: PretendedApi, group: str, path: str):
    done = api.run("analytics", "cost", "--by", group)
    assert done.exit_code == 0, done.output
    assert urlsplit(api.paths[-1]).path == f"/v1/analytics/groups/{path}"
    assert (api.query["columns"], api.query["order_by"]) == (["cost,requests"], ["cost"])
    head, *rows = done.stdout.splitlines()
    assert head.split() == [group, "cost", "requests", "unpriced"]
    assert [line.split()[:4] for line in rows] == [["a", "$8.00", "4", "2"], ["b", "$4.00", "4", "2"]]
    assert "1 more groups" in done.stderr
    assert "4 requests have no price" in done.stderr
    assert "one node only" in done.stderr


@pytest.mark.parametrize("measure", sorted(name for name, actual in MEASURES.items() if actual.columns))
def test_every_measure_with_columns_has_groups(api: PretendedApi, measure: str):
    assert api.run("analytics", measure, "--by", "model").exit_code == 0
    assert api.query["order_by_type"] == ["asc" if measure == "errors-rate" else "desc"]


def test_last_times_are_shown(api: PretendedApi):
    done = api.run("analytics", "requests", "-n", "2")
    assert len(done.stdout.splitlines()) == 5
    assert "2 earlier rows are not shown" in done.stderr
    assert "nothing in this range" in api.run("analytics", "feedbacks-ai-models").stderr


def test_unpriced_models_and_the_cache_are_shown(api: PretendedApi):
    done = api.run("analytics", "unpriced")
    assert done.stdout.splitlines()[1].split()[:4] == ["openai", "new", "1,200", "5"]
    assert "penstock rerate" in done.stderr
    assert "cache_speedup: 12.5" in api.run("analytics", "cache").stdout


@pytest.mark.parametrize(
    "words",
    [("cost", "--by", "colour"), ("users", "--by", "model"), ("unpriced", "--by", "model"), ("taste",)],
)
def test_wrong_options_are_reported(api: PretendedApi, words: tuple[str, ...]):
    done = api.run("analytics", *words)
    assert done.exit_code == 2
    assert "Error: Invalid value" in done.stderr


@pytest.mark.parametrize("words", [("cost", "--by", "model"), ("cache",), ("unpriced",)])
def test_rollup_is_for_graphs_over_time(api: PretendedApi, words: tuple[str, ...]):
    done = api.run("analytics", *words, "--rollup", "1h")
    assert done.exit_code == 2
    assert "--rollup is for graphs over time" in done.stderr
