"""Saved prompts, from the management API to the data plane and the logs."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import Response, send_raw_request
from tests.integration.serving import control_pid, edge_pids, run_gateway
from tests.processes import wait_for
from tests.unit.resources.test_log_pages import read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
SCOPES = [
    *("completions.write", "prompts.create", "prompts.read", "prompts.list", "prompts.update", "prompts.publish"),
    *("prompts.delete", "prompts.render", "logs.list", "logs.view", "logs.write", "analytics.view"),
]
MESSAGES = [{"role": "system", "content": "{{>tone}}"}, {"role": "user", "content": "Greet {{name}}"}]
WORKERS = 2
PAGES = ("docs/prompts.md", "docs/prompt-comparison.md")
PROMPT: dict[str, Any] = {"string": json.dumps(MESSAGES), "parameters": {"max_tokens": 9}, "virtual_key": "mine"}


@pytest.fixture(scope="module")
def running_gateway(
    provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("prompts")
    tables = {
        "mock": {"host": provider.url},
        "server": {"workers": WORKERS},
        "log_store": {"enabled": True},
        "records": {"bodies": True},
    }
    with run_gateway(folder, tables, env=new_store(folder)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(running_gateway: Gateway) -> Client:
    return Client(running_gateway)


@pytest.fixture(scope="module")
def team(admin: Client) -> Client:
    """Returns a client with a key of a workspace that has a saved provider."""
    workspace = admin.create("/v1/workspaces", {"name": "prompting"})["id"]
    integration = admin.create("/v1/integrations", {"name": "mock", "ai_provider_id": "mock", "slug": "of-prompts"})[
        "slug"
    ]
    body = {"workspaces": [{"id": workspace, "enabled": True}]}
    expect_ok(admin.put(f"/v1/integrations/{integration}/workspaces", body))
    admin.create(
        "/v1/providers", {"name": "mine", "slug": "mine", "integration_id": integration, "workspace_id": workspace}
    )
    client = admin.with_new_key(workspace_id=workspace, scopes=SCOPES)
    client.create("/v1/prompts/partials", {"name": "Tone", "slug": "tone", "string": "Be {{mood}}."})
    return client


def create_prompt(team: Client, name: str, **fields: object) -> str:
    return team.create("/v1/prompts", {"name": name, "model": "mock", **PROMPT, **fields})["slug"]


def call_prompt(team: Client, reference: str, action: str = "render", **fields: object) -> Response:
    body = {"variables": {"name": "Ann", "mood": "kind"}, **fields}
    path = f"/v1/prompts/{reference}/{action}"
    return send_raw_request(team.gateway.base_url, path, json.dumps(body).encode(), headers_of(team))


def rendered_messages(team: Client, reference: str) -> list[str] | None:
    """Returns the texts of the messages; `None` if the data plane does not know the prompt yet."""
    answer = call_prompt(team, reference)
    if answer.status != 200:
        assert answer.status == 404, answer
        return None
    return [message["content"] for message in answer.json()["data"]["messages"]]


def wait_for_messages(team: Client, reference: str, expected: list[str]) -> None:
    """Waits until each worker renders these messages. The requests are spread over the workers."""
    count = 0

    def is_everywhere() -> bool | None:
        nonlocal count
        count = count + 1 if rendered_messages(team, reference) == expected else 0
        return count >= 20 or None

    wait_for(f"{expected} of {reference}", is_everywhere, 10)


def test_prompt_runs_at_its_provider_and_is_logged(team: Client, provider: Mock):
    slug = create_prompt(team, "Greeting")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    answer = call_prompt(team, slug, "completions", temperature=0.5)
    assert answer.status == 200, answer
    assert answer.json()["choices"][0]["message"]["content"]
    sent = provider.ledger()[-1]
    assert (sent["path"], sent["model"]) == ("/v1/chat/completions", "mock")
    stream = call_prompt(team, slug, "completions", stream=True)
    assert stream.events[-1] == b"data: [DONE]"

    def find_logs() -> list[dict[str, Any]] | None:
        actual = team.read(f"/v1/logs?prompt_slug={slug}")["data"]
        return actual if len(actual) == 2 else None

    (log, _) = wait_for("the logs", find_logs, 15)
    detail = team.read(f"/v1/logs/{log['id']}")
    metrics = detail["metrics"]
    assert (metrics["prompt_slug"], metrics["prompt_version"], metrics["prompt_label"]) == (slug, 1, None)
    assert detail["details"]["prompt_variables"] == {"name": "Ann", "mood": "kind"}
    (group,) = team.read("/v1/analytics/groups/prompt")["data"]
    assert (group["prompt"], group["requests"]) == (slug, 2)


def test_log_without_contents_has_only_the_names_of_the_variables(team: Client):
    slug = create_prompt(team, "Private")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    body = json.dumps({"variables": {"name": "Ann", "mood": "kind"}}).encode()
    headers = {"x-gateway-api-key": team.key, "content-type": "application/json", "x-gateway-debug": "false"}
    path = f"/v1/prompts/{slug}/completions"
    assert send_raw_request(team.gateway.base_url, path, body, headers).status == 200
    actual = wait_for("the log", lambda: team.read(f"/v1/logs?prompt_slug={slug}")["data"] or None, 15)
    details = team.read(f"/v1/logs/{actual[0]['id']}")["details"]
    assert details["prompt_variables"] == {"name": None, "mood": None}


def test_label_and_default_version_move_on_all_workers(team: Client):
    slug = create_prompt(team, "Moved")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    for number in (2, 3):
        expect_ok(team.put(f"/v1/prompts/{slug}", {"patch": True, "string": f"version {number} for {{{{name}}}}"}))
    versions = {row["prompt_version"]: row["id"] for row in team.read(f"/v1/prompts/{slug}/versions")["data"]}

    def texts(reference: str) -> str | None:
        answer = call_prompt(team, reference)
        return answer.json()["data"].get("prompt") if answer.status == 200 else None

    def wait_for_text(reference: str, text: str) -> None:
        wait_for(f"{text} of {reference}", lambda: all(texts(reference) == text for _ in range(10)) or None, 10)

    wait_for_text(f"{slug}@latest", "version 3 for Ann")
    # A version that has no label is not in the snapshot; the edge worker requests it from the control process.
    wait_for_text(f"{slug}@2", "version 2 for Ann")
    expect_ok(team.put(f"/v1/prompts/{slug}/versions/{versions[2]}", {"label_id": "staging"}))
    wait_for_text(f"{slug}@staging", "version 2 for Ann")
    expect_ok(team.put(f"/v1/prompts/{slug}/versions/{versions[3]}", {"label_id": "staging"}))
    wait_for_text(f"{slug}@staging", "version 3 for Ann")
    expect_ok(team.put(f"/v1/prompts/{slug}/makeDefault", {"version": 2}))
    wait_for_text(slug, "version 2 for Ann")
    unknown = call_prompt(team, f"{slug}@nowhere")
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "prompt_version_not_found")


def test_partial_changes_the_prompts_that_include_it(team: Client):
    team.create("/v1/prompts/partials", {"name": "Rule", "slug": "rule", "string": "one"})
    slug = create_prompt(team, "Ruled", string=json.dumps([{"role": "user", "content": "{{>rule}} {{name}}"}]))
    wait_for_messages(team, slug, ["one Ann"])
    expect_ok(team.put("/v1/prompts/partials/rule", {"string": "two"}))
    expect_ok(team.put("/v1/prompts/partials/rule/makeDefault", {"version": 2}))
    wait_for_messages(team, slug, ["two Ann"])


def test_prompts_work_while_the_control_process_is_stopped(team: Client):
    slug = create_prompt(team, "Lasting")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    edge_pids(team.gateway, WORKERS)
    control = control_pid(team.gateway, WORKERS)
    os.kill(control, signal.SIGSTOP)
    try:
        for _ in range(5):
            assert rendered_messages(team, slug) == ["Be kind.", "Greet Ann"]
            assert call_prompt(team, slug, "completions").status == 200
    finally:
        os.kill(control, signal.SIGCONT)


def test_limit_of_a_prompt_counts_only_its_requests(admin: Client, team: Client):
    slug, other = create_prompt(team, "Limited"), create_prompt(team, "Free")
    wait_for_messages(team, other, ["Be kind.", "Greet Ann"])
    workspace = admin.read(f"/v1/prompts/{slug}")["prompt_owning_workspace_id"]
    policy = {"name": "p", "type": "requests", "unit": "rpd", "value": 2, "workspace_id": workspace}
    conditions = {"conditions": [{"key": "prompt", "value": slug}], "group_by": [{"key": "api_key"}]}
    admin.create("/v1/policies/rate-limits", {**policy, **conditions})

    def is_limited() -> bool | None:
        return call_prompt(team, slug, "completions").get_header("ratelimit") is not None or None

    wait_for("the limit", is_limited, 5)
    statuses = [call_prompt(team, slug, "completions").status for _ in range(4)]
    assert statuses[-1] == 429
    assert call_prompt(team, other, "completions").status == 200


def test_deleted_prompt_is_gone(team: Client):
    slug = create_prompt(team, "Gone")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    expect_ok(team.delete(f"/v1/prompts/{slug}"))
    wait_for("the deletion", lambda: rendered_messages(team, slug) is None or None, 5)


def test_requests_of_the_page_run_and_render(team: Client):
    requests = [request for page in PAGES for request in read_requests(page)]
    requested = {path.rpartition("/")[2]: body for _, path, body in requests}
    slug = create_prompt(
        team, "Page", string=requested["prompts"]["string"], parameters=requested["prompts"]["parameters"]
    )
    expected = ["Answer in French.", ""]

    def is_rendered() -> bool | None:
        answer = call_prompt(team, slug, "render", **requested["render"])
        return answer.status == 200 or None

    wait_for("the prompt of the page", is_rendered, 10)
    prompt = call_prompt(team, slug, "render", **requested["render"]).json()
    assert [message["content"] for message in prompt["data"]["messages"]] == expected
    assert (prompt["success"], prompt["missing_variables"], prompt["data"]["max_tokens"]) == (True, ["question"], 200)
    assert prompt["unknown_variables"] == []
    # The usual variables of these tests are not in the prompt of the page.
    assert call_prompt(team, slug).json()["unknown_variables"] == ["name", "mood"]
    assert call_prompt(team, slug, "completions", **requested["completions"]).status == 200
    compared = call_prompt(team, slug, "compare", **requested["compare"])
    assert [len(run["results"]) for run in compared.json()["runs"]] == [2, 2]
    (path,) = [path for _, path, _ in read_requests("docs/prompts.md") if path.startswith("analytics/")]

    def find_version() -> dict[str, Any] | None:
        rows = team.read(f"/v1/{path}")["data"]
        return next((row for row in rows if row["prompt_version"] == f"{slug}@1"), None)

    row = wait_for("the version in analytics", find_version, 15)
    # Requests of the comparison are not counted.
    assert row["requests"] == 1
    assert row["total_tokens"] > 0
    assert {"cost", "avg_latency", "avg_weighted_feedback"} <= row.keys()


def test_feedback_is_counted_for_the_version_of_its_prompt(team: Client):
    slug = create_prompt(team, "Rated")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    expect_ok(team.put(f"/v1/prompts/{slug}", {"patch": True, "string": "second {{name}}"}))
    wait_for("the second version", lambda: call_prompt(team, f"{slug}@2").status == 200 or None, 10)
    for version, value in ((1, 2), (2, 8)):
        body = json.dumps({"variables": {"name": "Ann"}}).encode()
        headers = {**headers_of(team), "x-gateway-trace-id": f"rated-{version}"}
        path = f"/v1/prompts/{slug}@{version}/completions"
        assert send_raw_request(team.gateway.base_url, path, body, headers).status == 200
        team.create("/v1/feedback", {"trace_id": f"rated-{version}", "value": value})

    def find_ratings() -> dict[str, Any] | None:
        query = f"columns=avg_weighted_feedback,requests_with_feedback&prompt_slug={slug}"
        rows = team.read(f"/v1/analytics/groups/prompt-versions?{query}")["data"]
        feedback = {
            row["prompt_version"]: (row["avg_weighted_feedback"], row["requests_with_feedback"]) for row in rows
        }
        return feedback if sum(count for _, count in feedback.values()) == 2 else None

    assert wait_for("the ratings", find_ratings, 15) == {f"{slug}@1": (2, 1), f"{slug}@2": (8, 1)}


def test_key_with_one_scope_either_renders_or_runs(admin: Client, team: Client):
    slug = create_prompt(team, "Scoped")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    workspace = admin.read(f"/v1/prompts/{slug}")["prompt_owning_workspace_id"]
    render_key = admin.with_new_key(workspace_id=workspace, scopes=["prompts.render"])
    run_key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])

    def statuses(client: Client) -> list[int]:
        return [call_prompt(client, slug, action).status for action in ("render", "completions", "compare")]

    wait_for("the key that renders", lambda: statuses(render_key) == [200, 403, 403] or None, 10)
    # 400, because the body lacks the fields of a comparison.
    wait_for("the key that runs", lambda: statuses(run_key) == [403, 200, 400] or None, 10)
    refused = call_prompt(run_key, slug, "render").json()["data"]["message"]
    assert refused == "this key may not render prompts: it lacks the scope prompts.render"
    assert render_key.get("/v1/prompts").status == 403


def test_comparison_runs_both_versions_and_is_logged(team: Client):
    slug = create_prompt(team, "Compared", string="first {{name}}")
    expect_ok(team.put(f"/v1/prompts/{slug}", {"patch": True, "string": "second {{name}}, and some more words"}))
    body = {"versions": [1, "latest"], "variables": [{"name": "Ann"}, {"name": "Bo"}]}

    def compare() -> dict[str, Any] | None:
        path = f"/v1/prompts/{slug}/compare"
        answer = send_raw_request(team.gateway.base_url, path, json.dumps(body).encode(), headers_of(team))
        return answer.json() if answer.status == 200 else None

    actual = wait_for("the second version", compare, 10)
    assert [version["version"] for version in actual["versions"]] == [1, 2]
    for run in actual["runs"]:
        assert all(result["output"] and result["time_ms"] > 0 for result in run["results"]), run
    for side, version in enumerate(actual["versions"]):
        tokens = [run["results"][side]["output_tokens"] for run in actual["runs"]]
        assert version["output_tokens"] == sum(tokens) > 0

    def find_logs() -> list[dict[str, Any]] | None:
        rows = team.read(f"/v1/logs?prompt_slug={slug}")["data"]
        return rows if len(rows) == 4 else None

    ids = {result["log_id"] for run in actual["runs"] for result in run["results"]}
    assert {row["id"] for row in wait_for("the logs", find_logs, 15)} == ids


def test_render_leaves_no_log(team: Client):
    slug = create_prompt(team, "Unlogged")
    wait_for_messages(team, slug, ["Be kind.", "Greet Ann"])
    assert call_prompt(team, f"{slug}@9").status == 404
    assert call_prompt(team, slug, "completions").status == 200
    actual = wait_for("the log", lambda: team.read(f"/v1/logs?prompt_slug={slug}")["data"] or None, 15)
    assert len(actual) == 1


def headers_of(client: Client) -> dict[str, str]:
    return {"x-gateway-api-key": client.key, "content-type": "application/json"}
