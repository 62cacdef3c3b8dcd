"""Saved guardrails, from the management API to requests and the logs."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, expect_error, expect_ok
from tests.integration.serving import run_gateway
from tests.integration.wire import CHAT_PATH, MOCK_HEADERS, Response
from tests.processes import free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
SCOPES = ["completions.write", "logs.list", "logs.view", "guardrails.create", "guardrails.update", "guardrails.read"]
CHECKS = [{"id": "default.contains", "parameters": {"words": ["canary"], "operator": "none"}}]


@pytest.fixture(scope="module")
def served(provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("guardrails")
    tables = {"mock": {"host": provider.url}, "server": {"workers": 2}, "log_store": {"enabled": True}}
    with run_gateway(folder, tables, env=new_store(folder)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(served: Gateway) -> Client:
    return Client(served)


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/workspaces", {"name": "guarded"})["id"]


@pytest.fixture(scope="module")
def team(admin: Client, workspace: str) -> Client:
    """Returns a client with a key of the workspace."""
    body = {"name": "k", "workspace_id": workspace, "scopes": SCOPES}
    made = admin.create("/v1/api-keys/workspace/service", body)
    return Client(admin.gateway, made["key"])


def ask(client: Client, text: str, **fields: str) -> Response:
    caller = Client(client.gateway, client.key, {**MOCK_HEADERS, **fields})
    return caller.post(CHAT_PATH, {"model": "mock", "messages": [{"role": "user", "content": text}]})


def set_defaults(admin: Client, workspace: str, names: list[str]) -> None:
    expect_ok(admin.put(f"/v1/workspaces/{workspace}", {"defaults": {"input_guardrails": names}}))


def test_default_guardrail_denies_requests_until_it_is_changed(
    admin: Client, workspace: str, team: Client, provider: Mock
):
    made = team.create("/v1/guardrails", {"name": "No canary", "checks": CHECKS, "actions": {"deny": True}})
    assert ask(team, "a canary").status == 200
    set_defaults(admin, workspace, [made["slug"]])
    provider.clear_ledger()
    denied = ask(team, "a canary")
    (result,) = denied.json()["hook_results"]["before_request_hooks"]
    assert (denied.status, result["id"], result["deny"]) == (446, made["slug"], True)
    assert provider.ledger() == []
    assert ask(team, "hello").status == 200

    def find_log() -> dict[str, Any] | None:
        rows = team.read("/v1/logs?time_of_generation_min=2020-01-01T00:00:00Z&page_size=10")["data"]
        return next((row for row in rows if row["response_status_code"] == 446), None)

    row = wait_for("the log of the denied request", find_log)
    recorded = team.read(f"/v1/logs/{row['id']}")["details"]["hook_results"]["before_request_hooks"]
    assert [(one["id"], one["verdict"]) for one in recorded] == [(made["slug"], False)]
    # A new version applies to the next request.
    expect_ok(team.put(f"/v1/guardrails/{made['slug']}", {"actions": {"deny": False}}))
    assert ask(team, "a canary").status == 246
    in_use = admin.delete(f"/v1/guardrails/{made['slug']}")
    assert in_use.status == 409
    set_defaults(admin, workspace, [])
    assert ask(team, "a canary").status == 200


def test_config_names_a_guardrail(team: Client):
    made = team.create("/v1/guardrails", {"name": "Named", "checks": CHECKS, "actions": {"deny": True}})
    config = '{"provider": "mock", "input_guardrails": ["%s"]}'
    assert ask(team, "a canary", **{"x-gateway-config": config % made["slug"]}).status == 446
    assert ask(team, "hello", **{"x-gateway-config": config % made["slug"]}).status == 200
    unknown = ask(team, "hello", **{"x-gateway-config": config % "pg-none"})
    assert (unknown.status, unknown.json()["error"]["code"]) == (400, "not_found_in_workspace")


def try_saved(team: Client, name: str, **subject: Any) -> dict[str, Any]:
    return expect_ok(team.post(f"/v1/guardrails/{name}/test", subject))


def test_saved_guardrail_is_tried_on_texts_and_bodies(team: Client, provider: Mock):
    made = team.create("/v1/guardrails", {"name": "Tried", "checks": CHECKS, "actions": {"deny": True}})
    provider.clear_ledger()
    denied = try_saved(team, made["slug"], text="a canary")
    assert (denied["verdict"], denied["denied"], denied["results"][0]["checks"][0]["id"]) == (
        False,
        True,
        "default.contains",
    )
    passed = try_saved(team, made["slug"], text="hello")
    assert (passed["verdict"], passed["denied"], passed["texts"]) == (True, False, ["hello"])
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "a canary"}]}]}
    assert try_saved(team, made["slug"], request=body)["denied"]
    response = {"role": "assistant", "content": [{"type": "text", "text": "a canary"}], "type": "message"}
    assert try_saved(team, made["slug"], stage="output", response=response)["denied"]
    assert try_saved(team, made["slug"], stage="output", text="a canary")["denied"]
    assert provider.ledger() == []


def test_checks_are_tried_before_they_are_saved(team: Client):
    checks = [{"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS"], "redact": True}}]
    found = expect_ok(team.post("/v1/guardrails/test", {"checks": checks, "text": "to ann@example.com"}))
    assert (found["transformed"], found["denied"]) == (True, False)
    assert "ann@example.com" not in found["texts"][0]
    assert found["body"]["messages"][0]["content"] == found["texts"][0]


def test_trial_connects_to_no_private_host(team: Client):
    with socket.create_server(("127.0.0.1", free_port())) as private:
        private.setblocking(False)
        url = f"http://127.0.0.1:{private.getsockname()[1]}/hook"
        hook = [{"id": "default.webhook", "parameters": {"webhookURL": url}}]
        found = expect_ok(team.post("/v1/guardrails/test", {"checks": hook, "text": "x"}))
        assert "could not be reached" in found["results"][0]["checks"][0]["error"]["message"]
        with pytest.raises(BlockingIOError):
            private.accept()


@pytest.mark.parametrize(
    ("subject", "path"),
    [
        ({}, "text"),
        ({"stage": "output"}, "text"),
        ({"stage": "output", "request": {}}, "text"),
        ({"text": "x", "request": {}}, "request"),
        ({"text": "x", "response": {}}, "response"),
        ({"request": {}, "response": {}}, "response"),
        ({"stage": "between", "text": "x"}, "stage"),
        ({"text": "x", "checks": []}, "checks"),
        ({"text": "x", "checks": [{"id": "none"}]}, "checks[0].id"),
    ],
)
def test_invalid_trial_names_the_field(team: Client, subject: dict[str, Any], path: str):
    response = team.post("/v1/guardrails/test", {"checks": CHECKS, **subject})
    assert response.status == 400
    assert path in [problem["path"] for problem in response.json()["data"]["errors"]]


@pytest.mark.parametrize("name", ["request", "response"])
def test_trial_names_a_body_that_nests_too_deep(team: Client, name: str):
    def nest(levels: int) -> dict[str, Any]:
        return json.loads('{"a":' * levels + "1" + "}" * levels)

    stage = {"stage": "output"} if name == "response" else {}
    answer = team.post("/v1/guardrails/test", {"checks": CHECKS, **stage, name: nest(127)})
    expect_error(answer, 400, "AB01", "at most 126 levels")
    assert [problem["path"] for problem in answer.json()["data"]["errors"]] == [name]
    assert team.post("/v1/guardrails/test", {"checks": CHECKS, **stage, name: nest(126)}).status == 200


def test_trial_needs_scopes(admin: Client, workspace: str, team: Client):
    made = team.create("/v1/guardrails", {"name": "Scoped", "checks": CHECKS, "actions": {}})
    reader = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.read"])
    assert try_saved(reader, made["slug"], text="x")["verdict"]
    assert reader.post("/v1/guardrails/test", {"checks": CHECKS, "text": "x"}).status == 403
    other = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    assert other.post(f"/v1/guardrails/{made['slug']}/test", {"text": "x"}).status == 403


def test_costly_patterns_do_not_delay_other_requests(team: Client):
    """The work of this pattern grows with the square of the text, without a step back that could be counted."""
    hook = {"id": "slow", "deny": True, "default.regexMatch": {"rule": r"(?=(a+))\1+b"}}
    config = json.dumps({"provider": "mock", "input_guardrails": [hook]})
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(ask, team, "a" * 8_000, **{"x-gateway-config": config}) for _ in range(4)]
        responded = 0
        while not all(one.done() for one in slow):
            assert ask(team, "hello").status == 200
            responded += not any(one.done() for one in slow)
    assert {one.result().status for one in slow} == {446}
    # The others are answered while all of these are still being checked.
    assert responded > 2
