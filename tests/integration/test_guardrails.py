"""Saved guardrails, from the management API to requests and the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import Client, expect_ok
from tests.integration.serving import run_gateway
from tests.integration.wire import CHAT_PATH, MOCK_HEADERS, Response
from tests.processes import wait_for

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
