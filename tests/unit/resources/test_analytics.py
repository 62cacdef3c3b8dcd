"""Analytics: graphs, groups and the cache summary, over records of a real log store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.resources._analytics_graphs import GRAPHS
from penstock.resources._log_groups import COLUMNS, GROUPS
from tests.unit.logs.samples import UNKNOWN_OF_KILLED
from tests.unit.resources.logged import RANGE, LocalLogs, open_workspace, run_logged

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

SCOPES = {"scopes": ["analytics.view", "logs.list"]}


async def read_graph(api: ManagementClient, name: str, query: str = "") -> Any:
    return await api.request_ok("GET", f"analytics/graphs/{name}?{RANGE}&{query}")


def test_every_graph_answers_under_every_spelling(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        logs.record(**home, metadata={"_user": "ann", "team": "red"}, user="ann")
        logs.record(**home, response_status_code=500, is_success=False, after=timedelta(hours=1), cost_nanodollars=None)
        logs.record(**home, cache_status="hit", cost_nanodollars=0, retry_success_count=2, response_time=10)
        for graph in GRAPHS:
            result = await read_graph(reader, graph.name)
            assert result["object"] == "analytics-graph"
            assert result["summary"].keys() == set(graph.summary.__struct_fields__)
            for point in result["data_points"]:
                assert point.keys() == set(graph.point.__struct_fields__)
            for alias in graph.aliases:
                assert await read_graph(reader, alias) == result

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_figures_have_the_units_of_the_description(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        logs.record(**home, cost_nanodollars=15_000_000, response_time=100)
        logs.record(**home, cost_nanodollars=5_000_000, response_time=300, after=timedelta(hours=2))
        logs.record(**home, is_success=False, response_status_code=429, cost_nanodollars=0, response_time=200)
        cost = await read_graph(reader, "cost")
        # 20,000,000 nano-dollars are 2 cents.
        assert cost["summary"] == {"total": 2, "avg": pytest.approx(2 / 3), "unpriced": 0}
        assert (await read_graph(reader, "requests"))["summary"] == {"total": 3}
        assert (await read_graph(reader, "tokens"))["summary"] == {"total": 45, "avg": 15}
        assert (await read_graph(reader, "latency"))["summary"] == {
            "avg": 200,
            "p50": 200,
            "p90": pytest.approx(280),
            "p99": pytest.approx(298),
        }
        assert (await read_graph(reader, "errors/rate"))["summary"]["rate"] == pytest.approx(100 / 3)
        codes = await read_graph(reader, "errors/status-codes")
        assert codes["data_points"] == [{"status_code": 429, "count": 1}]
        assert (await read_graph(reader, "requests", "cost_min=1"))["summary"] == {"total": 1}
        assert (await read_graph(reader, "requests", "status_code=429,500"))["summary"] == {"total": 1}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_groups_have_the_requested_columns_and_pages(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        for model, count in (("a", 1), ("b", 3), ("c", 2)):
            for _ in range(count):
                logs.record(**home, ai_model=model, metadata={"team": f"team-{model}"})
        first = await reader.request_ok("GET", f"analytics/groups/model?{RANGE}&page_size=2")
        assert (first["object"], first["total"]) == ("list", 3)
        assert first["data"] == [
            {"model": "b", "requests": 3, "object": "analytics-group"},
            {"model": "c", "requests": 2, "object": "analytics-group"},
        ]
        last = await reader.request_ok("GET", f"logs/groups/model?{RANGE}&page_size=2&current_page=1&columns=cost")
        assert last["data"] == [
            {"model": "a", "requests": 1, "cost": 2, "unpriced_requests": 0, "object": "analytics-group"}
        ]
        by_cost = f"order_by=cost&order_by_type=asc&columns=cost,avg_latency,success_rate&include_total=true&{RANGE}"
        actual = await reader.request_ok("GET", f"analytics/groups/ai_service?{by_cost}")
        assert actual["data"] == [
            {
                "ai_service": "openai",
                "requests": 6,
                "cost": 12,
                "avg_latency": 100,
                "success_rate": 100,
                "unpriced_requests": 0,
                "object": "analytics-group",
            }
        ]
        teams = await reader.request_ok("GET", f"analytics/groups/metadata/team?{RANGE}")
        assert [(row["metadata_value"], row["requests"]) for row in teams["data"]] == [
            ("team-b", 3),
            ("team-c", 2),
            ("team-a", 1),
        ]
        await reader.expect_error(404, "users, workspace", "GET", f"analytics/groups/colour?{RANGE}")
        await reader.expect_error(400, "columns 'taste'", "GET", f"analytics/groups/model?{RANGE}&columns=taste")
        await reader.expect_error(400, "order_by 'taste'", "GET", f"analytics/groups/model?{RANGE}&order_by=taste")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_requests_without_a_price_are_counted_and_listed(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        logs.record(**home, cost_nanodollars=30_000_000)
        logs.record(**home, ai_model="new", cost_nanodollars=None)
        logs.record(**home, ai_model="new", cost_nanodollars=None, after=timedelta(hours=1))
        logs.record(**home, ai_model="draw", cost_nanodollars=None, total_units=None, usage={"images": 2})
        # A failed request without usage has no cost, so it does not count as unpriced.
        logs.record(**home, is_success=False, response_status_code=500, total_units=None, cost_nanodollars=None)
        summary = (await read_graph(reader, "cost"))["summary"]
        assert summary == {"total": 3, "avg": 1.5, "unpriced": 3}
        groups = await reader.request_ok("GET", f"analytics/groups/model?{RANGE}&columns=cost")
        assert {row["model"]: (row["cost"], row["unpriced_requests"]) for row in groups["data"]} == {
            "gpt-5": (3, 0),
            "new": (0, 2),
            "draw": (0, 1),
        }
        actual = await reader.request_ok("GET", f"analytics/unpriced?{RANGE}")
        assert (actual["object"], actual["total"], actual["requests"]) == ("list", 2, 3)
        assert actual["data"] == [
            {
                "ai_org": "openai",
                "ai_model": "new",
                "requests": 2,
                "total_units": 30,
                "first_seen": "2026-11-20T12:00:00.000Z",
                "last_seen": "2026-11-20T13:00:00.000Z",
            },
            {
                "ai_org": "openai",
                "ai_model": "draw",
                "requests": 1,
                "total_units": 0,
                "first_seen": "2026-11-20T12:00:00.000Z",
                "last_seen": "2026-11-20T12:00:00.000Z",
            },
        ]

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_killed_requests_and_requests_without_a_model_are_in_every_answer(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        scopes = [*SCOPES["scopes"], "logs.view", "logs.write"]
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=scopes)
        killed = {**dict.fromkeys(UNKNOWN_OF_KILLED), "is_success": False, "outcome": "killed"}
        log_id = logs.record(**home, **killed, trace_id="killed")
        logs.record(**home, **killed, ai_org=None, ai_model=None, trace_id="none")
        logs.record(**home, is_success=False, response_status_code=500, ai_org="", ai_model="", trace_id="empty")
        for trace_id in ("killed", "none", "empty"):
            await reader.request_ok("POST", "feedback", {"trace_id": trace_id, "value": 5})
        graphs = {graph.name: await read_graph(reader, graph.name) for graph in GRAPHS}
        stacks = [stat for point in graphs["errors/stacks"]["data_points"] for stat in point["stats"]]
        assert stacks == [{"response_status_code": 0, "count": 2}, {"response_status_code": 500, "count": 1}]
        assert graphs["errors/status-codes"]["data_points"] == [
            {"status_code": 0, "count": 2},
            {"status_code": 500, "count": 1},
        ]
        assert graphs["feedbacks"]["summary"] == {"total": 3}
        assert [point["ai_model"] for point in graphs["feedbacks/ai-models"]["data_points"]] == ["gpt-5"]
        for name in GROUPS:
            await reader.request_ok("GET", f"analytics/groups/{name}?{RANGE}&columns={','.join(COLUMNS)}")
        codes = await reader.request_ok("GET", f"analytics/groups/status_code?{RANGE}")
        assert [(row["status_code"], row["requests"]) for row in codes["data"]] == [(0, 2), (500, 1)]
        for path in ("analytics/unpriced", "analytics/summary/cache", "logs"):
            await reader.request_ok("GET", f"{path}?{RANGE}")
        assert (await reader.request_ok("GET", f"logs/{log_id}"))["response"]["status"] is None

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_cache_summary_compares_hits_with_other_requests(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        logs.record(**home, cache_status="hit", response_time=10)
        logs.record(**home, response_time=100)
        actual = await reader.request_ok("GET", f"analytics/summary/cache?{RANGE}")
        assert actual == {
            "summary": {"hits": 1, "avg_latency": 10, "total_requests": 2, "cache_speedup": 10},
            "object": "analytics-summary",
        }

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_all_problems_of_filters_are_reported(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        bad = f"status_code=2xy,404&ai_org_model=gpt-5&metadata={quote('[1]')}&cost_min=3&cost_max=2&virtual_keys=,"
        status, response, _ = await api("GET", f"analytics/graphs/requests?{bad}")
        assert (status, response["data"]["errorCode"]) == (400, "AB01")
        assert {problem["path"] for problem in response["data"]["errors"]} == {
            "status_code",
            "ai_org_model",
            "metadata",
            "cost_min",
            "virtual_keys",
        }
        await api.expect_error(
            400, "weighted_feedback_min '11'", "GET", "analytics/graphs/cost?weighted_feedback_min=11"
        )
        too_long = "time_of_generation_min=1990-01-01T00:00:00Z"
        await api.expect_error(400, "3660 days", "GET", f"analytics/graphs/cost?{too_long}")
        many = quote("{" + ",".join(f'"k{number}": "v"' for number in range(21)) + "}")
        await api.expect_error(400, "21 keys", "GET", f"analytics/graphs/cost?metadata={many}")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_failures_of_the_log_store_have_their_status(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        logs.failure = QueryTooLargeError("the query took longer than 20 seconds")
        await api.expect_error(422, "shorter range of time", "GET", "analytics/graphs/cost")
        logs.failure = LogEngineError("it is not open")
        status, _, headers = await api("GET", "analytics/graphs/cost")
        assert (status, headers["retry-after"]) == (503, "1")

    run_logged(bootstrapped_url, tmp_path, scenario)
