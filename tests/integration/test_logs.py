"""Logs of real requests: from the engine through the spool and the log worker to the routes of logs and analytics."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import signal
import subprocess
import sys
import urllib.parse
import uuid
from typing import Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, Response, send_raw_request
from tests.integration.serving import edge_pids, log_worker_pid
from tests.processes import wait_for

ONE_STORE = True

PROVIDER_KEY = "sk-of-the-provider-0123456789"
SCOPES = ["completions.write", "logs.list", "logs.view", "logs.write", "analytics.view", "virtual_keys.list"]
TABLES = {"metrics": {"enabled": True}, "log_store": {"enabled": True}}
VISIBLE_SECONDS = 20


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Logged"})


@pytest.fixture(scope="module")
def key(admin: Client, workspace: dict[str, Any]) -> Client:
    """Returns a client with a key of the workspace that may also read logs."""
    created = admin.with_new_key(workspace_id=workspace["id"], name="app", scopes=SCOPES)
    wait_for("the key", lambda: send_chat(created).status == 200 or None, VISIBLE_SECONDS)
    return created


@pytest.fixture(scope="module")
def saved_provider(admin: Client, workspace: dict[str, Any]) -> str:
    """Creates a saved provider, and returns its slug."""
    slug = "mock-logged"
    body = {
        "name": "logged",
        "ai_provider_id": "mock",
        "key": PROVIDER_KEY,
        "workspace_id": workspace["id"],
        "slug": "i-logged",
        "default_provider_slug": slug,
    }
    admin.create("/v1/integrations", body)
    return slug


@pytest.fixture(scope="module")
def config(admin: Client, workspace: dict[str, Any], saved_provider: str) -> dict[str, Any]:
    body = {
        "name": "two targets",
        "workspace_id": workspace["id"],
        "config": {
            "strategy": {"mode": "fallback"},
            "targets": [
                {"provider": "mock", "api_key": PROVIDER_KEY, "override_params": {"model": "mock?status=503"}},
                {"provider": f"@{saved_provider}", "override_params": {"model": "mock"}},
            ],
        },
    }
    return admin.create("/v1/configs", body)


def send_chat(client: Client, model: str = "mock", text: object = "hello", **headers: str) -> Response:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    if headers.pop("stream", None):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = {
        "x-gateway-api-key": client.key,
        "content-type": "application/json",
        "x-gateway-provider": "mock",
        **headers,
    }
    return send_raw_request(client.gateway.base_url, CHAT_PATH, json.dumps(body).encode(), sent)


def query_logs(client: Client, **filters: object) -> list[dict[str, Any]]:
    return client.read(f"/v1/logs?{urllib.parse.urlencode(filters)}")["data"]


def wait_for_logs(client: Client, count: int = 1, **filters: object) -> list[dict[str, Any]]:
    def find() -> list[dict[str, Any]] | None:
        logs = query_logs(client, **filters)
        return logs if len(logs) >= count else None

    return wait_for(f"{count} logs with {filters}", find, VISIBLE_SECONDS)


def test_request_is_found_by_its_id_with_what_went_in_and_out(key: Client, workspace: dict[str, Any]):
    response = send_chat(
        key,
        text="a question about herons",
        **{"x-gateway-metadata": '{"_user":"ann","team":"red"}', "x-stainless-lang": "python"},
    )
    assert response.status == 200
    name = response.get_header("x-gateway-request-id")
    (listed,) = wait_for_logs(key, trace_id=name)
    assert (listed["id"], listed["response_status_code"], listed["metadata"]) == (
        name,
        200,
        {"_user": "ann", "team": "red"},
    )
    actual = key.read(f"/v1/logs/{name}")
    assert actual["request"]["body"]["messages"] == [{"role": "user", "content": "a question about herons"}]
    assert actual["response"]["body"] == response.json()
    metrics = actual["metrics"]
    assert (metrics["workspace_slug"], metrics["ai_org"], metrics["total_units"]) == (
        workspace["slug"],
        "mock",
        response.json()["usage"]["total_tokens"],
    )
    assert (metrics["metadata.key"], metrics["metadata.value"]) == (["_user", "team"], ["ann", "red"])
    assert actual["details"]["outcome"] == "complete"
    assert [attempt["status"] for attempt in actual["details"]["attempts"]] == [200]


def test_words_of_request_and_response_are_searched(key: Client):
    name = send_chat(key, text="the quokka sleeps").get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    assert [log["id"] for log in query_logs(key, q="quokka")] == [name]
    assert query_logs(key, q="quokka walrus") == []


def test_stream_is_logged_with_its_chunks_and_usage(key: Client):
    response = send_chat(key, stream="yes", text="count to three")
    assert response.status == 200
    name = response.get_header("x-gateway-request-id")
    (listed,) = wait_for_logs(key, trace_id=name)
    assert listed["total_units"] > 0
    actual = key.read(f"/v1/logs/{name}")
    assert "data: [DONE]" in actual["response"]["body"]
    assert actual["metrics"]["stream_mode"] == 1


def test_fallback_shows_each_attempt_and_the_config(key: Client, config: dict[str, Any], saved_provider: str):
    response = send_chat(key, **{"x-gateway-config": config["slug"], "x-gateway-provider": ""})
    assert response.status == 200, response.body
    name = response.get_header("x-gateway-request-id")
    (listed,) = wait_for_logs(key, trace_id=name)
    assert listed["config"] == config["slug"]
    actual = key.read(f"/v1/logs/{name}")
    attempts = [
        (attempt["target"], attempt.get("virtual_key"), attempt["model"], attempt["status"])
        for attempt in actual["details"]["attempts"]
    ]
    assert attempts == [
        ("config.targets[0]", None, "mock?status=503", 503),
        ("config.targets[1]", saved_provider, "mock", 200),
    ]
    steps = [(step["step"], step.get("status")) for step in actual["details"]["decisions"]]
    assert steps == [("tried", 503), ("chose", None), ("tried", 200)]
    assert PROVIDER_KEY not in json.dumps(actual)
    start = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)).isoformat()
    query = urllib.parse.urlencode({"time_of_generation_min": start, "trace_id": name})
    rescued = key.read(f"/v1/analytics/graphs/requests/rescued?{query}")
    assert sum(point["fallback"] for point in rescued["data_points"]) == 1, rescued
    assert [log["id"] for log in query_logs(key, trace_id=name, rescued="fallback")] == [name]
    assert query_logs(key, trace_id=name, rescued="retry") == []


def test_failed_requests_are_counted_in_the_graphs(key: Client):
    name = send_chat(key, model="mock?status=429").get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    assert [log["id"] for log in query_logs(key, trace_id=name, status_code="4xx,5xx")] == [name]
    assert not query_logs(key, trace_id=name, status_code="5xx,200")
    expect_error(key.get("/v1/logs?status_code=6xx"), 400, "AB01", "4xx or 5xx")
    now = dt.datetime.now(dt.UTC)
    span = urllib.parse.urlencode(
        {
            "time_of_generation_min": (now - dt.timedelta(hours=1)).isoformat(),
            "time_of_generation_max": (now + dt.timedelta(minutes=1)).isoformat(),
        }
    )
    stored = query_logs(key, page_size=1000)
    requests = key.read(f"/v1/analytics/graphs/requests?{span}")
    assert requests["summary"]["total"] == len(stored)
    assert sum(point["total"] for point in requests["data_points"]) == len(stored)
    errors = key.read(f"/v1/analytics/graphs/errors?{span}")
    assert errors["summary"]["total"] == sum(log["response_status_code"] >= 400 for log in stored)
    tokens = key.read(f"/v1/analytics/graphs/tokens?{span}")
    assert tokens["summary"]["total"] == sum(log["total_units"] or 0 for log in stored)
    groups = key.read(f"/v1/analytics/groups/ai-models?{span}")
    assert sum(int(group["requests"]) for group in groups["data"]) == len(stored)
    by_team = key.read(f"/v1/analytics/groups/metadata/team?{span}")
    teams = [(log.get("metadata") or {}).get("team") for log in stored]
    counts = {group["metadata_value"]: int(group["requests"]) for group in by_team["data"]}
    assert counts == {team: teams.count(team) for team in teams if team}


@pytest.mark.parametrize("extra", [{}, {"api_key": PROVIDER_KEY}], ids=["config", "config with a credential"])
def test_record_names_the_user_the_saved_provider_and_the_config(
    admin: Client, key: Client, workspace: dict[str, Any], extra: dict[str, str]
):
    (user,) = admin.read("/v1/admin/users?role=owner")["data"]
    admin.post(f"/v1/workspaces/{workspace['id']}/users", {"users": [{"id": user["id"], "role": "member"}]})
    target_workspace = {"workspace_id": workspace["id"]}
    virtual_key = admin.create(
        "/v1/virtual-keys", {"name": "Mock", "provider": "mock", "key": PROVIDER_KEY, **target_workspace}
    )
    saved = admin.read(f"/v1/providers/{virtual_key['id']}")
    content = {"provider": f"@{virtual_key['slug']}", **extra}
    config = admin.create("/v1/configs", {"name": "default", "config": content, **target_workspace})
    own = {"user_id": user["id"], "scopes": SCOPES, "defaults": {"config_id": config["id"]}, **target_workspace}
    mine = admin.with_new_key(kind="workspace/user", **own)

    def send_until_known() -> Response | None:
        sent = send_chat(mine, **{"x-gateway-provider": ""})
        return sent if sent.status == 200 else None

    response = wait_for("the key", send_until_known, 3)
    name = response.get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    metrics = key.read(f"/v1/logs/{name}")["metrics"]
    assert (metrics["virtual_key"], metrics["config"]) == (virtual_key["slug"], config["slug"])
    assert (metrics["config_id"], metrics["config_version_id"]) == (config["id"], config["version_id"])
    # The file of records is written beside the log store, so it may be later.
    (record,) = wait_for(
        "the record", lambda: [line for line in key.gateway.records() if line["id"] == name], VISIBLE_SECONDS
    )
    assert (record["user_id"], record["provider_id"]) == (user["id"], virtual_key["id"])
    # The API shows only the slug of the integration that a virtual key makes.
    assert saved["integration_id"].startswith("mock-")
    assert uuid.UUID(record["integration_id"]).version == 7


def test_image_is_stored_as_its_digest(key: Client):
    image = os.urandom(30_000)
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    name = send_chat(key, text=content).get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    actual = key.read(f"/v1/logs/{name}")["request"]["body"]["messages"][0]["content"]
    digest = hashlib.sha256(image).hexdigest()
    assert actual[1]["image_url"] == {"url": f"[base64 image/png, 30000 bytes, sha256 {digest}]"}
    assert [log["id"] for log in query_logs(key, q=digest)] == [name]


def test_feedback_belongs_to_the_trace(key: Client):
    trace = "trace-with-feedback"
    send_chat(key, **{"x-gateway-trace-id": trace})
    (log,) = wait_for_logs(key, trace_id=trace)
    sent = key.create("/v1/feedback", {"trace_id": trace, "value": 5, "weight": 0.5, "metadata": {"by": "ann"}})
    assert len(sent["feedback_ids"]) == 1
    actual = wait_for("the feedback", lambda: key.read(f"/v1/logs/{log['id']}")["feedback"] or None, VISIBLE_SECONDS)
    assert [(item["value"], item["weight"]) for item in actual] == [(5, 0.5)]


def test_custom_log_is_listed_beside_the_others(key: Client):
    item = {
        "request": {"url": "https://api.openai.com/v1/chat/completions", "body": {"model": "gpt-4o", "messages": []}},
        "response": {"body": {"usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}}},
        "metadata": {"trace_id": "custom-1", "team": "blue"},
    }
    (name,) = key.create("/v1/logs", item)["ids"]
    (listed,) = wait_for_logs(key, trace_id="custom-1")
    assert (listed["id"], listed["ai_org"], listed["total_units"]) == (name, "openai", 1010)
    assert listed["cost"] > 0


def test_bodies_are_left_out_if_the_client_asks_so(key: Client):
    response = send_chat(key, text="do not keep this", **{"x-gateway-debug": "false"})
    name = response.get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    actual = key.read(f"/v1/logs/{name}")
    assert (actual["request"]["body"], actual["response"]["body"]) == (None, None)
    assert query_logs(key, q="do not keep this") == []


def test_other_workspaces_do_not_see_the_log(admin: Client, key: Client):
    name = send_chat(key).get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    other = admin.create("/v1/admin/workspaces", {"name": "Other"})
    other_client = admin.with_new_key(workspace_id=other["id"], scopes=SCOPES)
    assert other_client.get(f"/v1/logs/{name}").status == 404
    assert query_logs(other_client, trace_id=name) == []


def test_no_credential_is_stored(admin: Client, key: Client, config: dict[str, Any]):
    name = send_chat(
        key,
        **{
            "x-gateway-config": config["slug"],
            "x-gateway-provider": "",
            "authorization": "Bearer sk-canary-of-a-client",
        },
    ).get_header("x-gateway-request-id")
    wait_for_logs(key, trace_id=name)
    for path in admin.gateway.folder.rglob("*"):
        if path.is_file() and "store" in path.parts:
            content = path.read_bytes()
            for secret in (PROVIDER_KEY, key.key, "sk-canary-of-a-client"):
                assert secret.encode() not in content, path


def test_request_of_a_killed_worker_is_logged_as_killed(key: Client):
    before = {log["id"] for log in query_logs(key, page_size=1000)}
    body = {"model": "mock?first_ms=6000", "messages": [{"role": "user", "content": "never answered"}]}
    code = (
        "import httpx2, json, sys; url, key, body = sys.argv[1:]\n"
        "headers = {'x-gateway-api-key': key, 'x-gateway-provider': 'mock', 'content-type': 'application/json'}\n"
        "httpx2.post(url, content=body, headers=headers)"
    )
    command = [sys.executable, "-c", code, f"{key.gateway.base_url}{CHAT_PATH}", key.key, json.dumps(body)]
    client = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for("the request at the engine", lambda: is_spooled(key, b"never answered") or None, 5)
        os.kill(edge_pids(key.gateway)[0], signal.SIGKILL)
        actual = wait_for(
            "the log of the killed request",
            lambda: [log for log in query_logs(key, page_size=1000) if log["id"] not in before] or None,
            15,
        )
    finally:
        client.wait(10)
    (killed,) = actual
    displayed = expect_ok(key.get(f"/v1/logs/{killed['id']}"))
    assert displayed["details"]["outcome"] == "killed"
    assert displayed["request"]["body"] == body
    assert displayed["response"]["body"] is None
    # Its tokens are counted, but nobody knows what the provider bills.
    metrics = displayed["metrics"]
    assert (metrics["req_units"], metrics["res_units"], metrics["cost"]) == (metrics["total_units"], 0, None)
    assert metrics["total_units"] > 0
    assert killed["units_estimated"]
    codes = key.read("/v1/analytics/graphs/errors/status-codes")["data_points"]
    assert {"status_code": 0, "count": 1} in codes
    stacks = key.read("/v1/analytics/graphs/errors/stacks")["data_points"]
    assert [stat["count"] for point in stacks for stat in point["stats"] if not stat["response_status_code"]] == [1]
    assert killed["ai_model"] in [row["ai_model"] for row in key.read("/v1/analytics/unpriced")["data"]]


def is_spooled(client: Client, text: bytes) -> bool:
    folder = client.gateway.folder / "store" / "spool"
    return any(text in path.read_bytes() for path in folder.glob("*/*.seg"))


def test_logs_survive_a_kill_of_the_log_worker(key: Client):
    names = []
    for _ in range(3):
        names += [send_chat(key).get_header("x-gateway-request-id") for _ in range(5)]
        os.kill(log_worker_pid(key.gateway), signal.SIGKILL)

    def read_all() -> list[str] | None:
        response = key.get("/v1/logs?page_size=1000")
        stored = [log["id"] for log in response.json()["data"]] if response.status == 200 else []
        return stored if set(names) <= set(stored) else None

    stored = wait_for("all logs", read_all, 20)
    assert len(stored) == len(set(stored))
