"""Feedback: created one by one or in a list, updated, and visible in analytics and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ids import new_id
from tests.unit.resources.logged import RANGE, LocalLogs, open_workspace, run_logged

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

SCOPES = {"scopes": ["logs.write", "analytics.view", "logs.view"]}


def test_feedback_counts_until_it_is_updated(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        log_id = logs.record(**home, trace_id="t")
        item = await client.request_ok("POST", "feedback", {"trace_id": "t", "value": 5, "weight": 0.5})
        assert (item["status"], len(item["feedback_ids"])) == ("success", 1)
        items = [{"trace_id": "t", "value": 10, "metadata": {"by": "ann"}}, {"trace_id": "none", "value": -10}]
        many = await client.request_ok("POST", "feedback", items)
        assert len(set(many["feedback_ids"])) == 2

        async def read_weighted_score() -> float:
            graph = await client.request_ok("GET", f"analytics/graphs/feedbacks/weighted?{RANGE}")
            return graph["summary"]["avg"]

        assert await read_weighted_score() == (2.5 + 10) / 2
        feedback_id = item["feedback_ids"][0]
        updated = await client.request_ok("PUT", f"feedback/{feedback_id}", {"value": -4})
        assert (updated["status"], updated["feedback_ids"]) == ("success", [feedback_id])
        # The default of the weight is 1 in an update, too.
        assert await read_weighted_score() == (-4 + 10) / 2
        await client.request_ok("PUT", f"feedback/{feedback_id}", {"value": -4, "weight": 0.25})
        assert await read_weighted_score() == (-1 + 10) / 2
        await client.request_ok("PUT", f"feedback/{many['feedback_ids'][0]}", {"value": 1, "metadata": None})
        fetched = {row["id"]: row for row in (await client.request_ok("GET", f"logs/{log_id}"))["feedback"]}
        assert fetched.keys() == {feedback_id, many["feedback_ids"][0]}
        assert fetched[many["feedback_ids"][0]]["metadata"] == {}
        assert {type(row["value"]) for row in fetched.values()} == {int}
        scores = await client.request_ok("GET", f"analytics/graphs/feedbacks/scores?{RANGE}")
        assert scores["data_points"] == [{"score": -4, "total": 1}, {"score": 1, "total": 1}]

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_feedback_of_another_workspace_cannot_be_updated(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, other = await open_workspace(api), await open_workspace(api, "other")
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        _, other_client = await api.create_key("workspace/service", workspace_id=other["workspace_id"], **SCOPES)
        logs.record(**home, trace_id="t")
        (feedback_id,) = (await client.request_ok("POST", "feedback", {"trace_id": "t", "value": 5}))["feedback_ids"]
        for unknown in (feedback_id, "x"):
            await other_client.expect_error(404, "no feedback", "PUT", f"feedback/{unknown}", {"value": 1})
        graph = await client.request_ok("GET", f"analytics/graphs/feedbacks/weighted?{RANGE}")
        assert graph["summary"]["avg"] == 5

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_problems_of_feedback_are_reported(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], **SCOPES)
        status, response, _ = await client(
            "POST", "feedback", [{"value": 11, "weight": 2}, {"trace_id": "", "value": 1}]
        )
        assert status == 400
        paths = {problem["path"] for problem in response["data"]["errors"]}
        assert paths == {"[0].trace_id", "[0].value", "[0].weight", "[1].trace_id"}
        await client.expect_error(400, "expected 1 to 1000", "POST", "feedback", [])
        await client.expect_error(400, "value", "PUT", f"feedback/{new_id()}", {"weight": 1})
        old = "0199aaaa-0000-7000-8000-000000000001"
        await client.expect_error(404, "no feedback", "PUT", f"feedback/{old}", {"value": 1})

    run_logged(bootstrapped_url, tmp_path, scenario)
