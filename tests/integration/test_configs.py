"""Configs over HTTP, on both databases; and that what is saved is what requests are served by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import ADMIN_KEY, Client
from tests.integration.serving import running
from tests.integration.wire import CHAT, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock


MOCKED = {"provider": "mock", "name": "a"}
NAMED = {"mode": "conditional", "conditions": [{"query": {"params.model": "m"}, "then": "a"}], "default": "a"}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.made("/v1/admin/workspaces", {"name": "Configs"})["id"]


@pytest.fixture
def config(admin: Client, workspace: str) -> dict[str, Any]:
    body = {"name": "My config", "config": {"provider": "mock"}, "workspace_id": workspace}
    return admin.made("/v1/configs", body)


def test_a_config_is_read_back_as_json_in_a_text(admin: Client, workspace: str, config: dict[str, Any]):
    assert config["slug"].startswith("pc-my-con-")
    shown = admin.shown(f"/v1/configs/{config['slug']}")
    assert json.loads(shown["config"]) == {"provider": "mock"}
    expected = {"name": "My config", "workspace_id": workspace, "is_default": 0, "status": "active", "format": "json"}
    assert expected.items() <= shown.items()
    assert shown == admin.shown(f"/v1/configs/{config['id']}")
    assert shown["version_id"] == config["version_id"]


def test_what_is_saved_is_what_requests_are_served_by(
    admin: Client, workspace: str, config: dict[str, Any], provider: Mock
):
    key = admin.made(
        "/v1/api-keys/workspace/service", {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace}
    )["key"]
    headers = {"x-gateway-api-key": key, "x-gateway-config": config["slug"], "content-type": "application/json"}
    answer = wait(
        "the key",
        lambda: found if (found := ask(admin.gateway.base_url, CHAT, asked(), headers)).status == 200 else None,
        2,
    )
    assert answer.status == 200
    assert len(provider.ledger()) == 1


def test_a_config_of_many_targets_is_saved_and_every_problem_of_another_is_told(admin: Client, workspace: str):
    target = {"provider": "mock", "retry": {"attempts": 2}}
    config = {"strategy": {"mode": "fallback"}, "targets": [target, {**target, "override_params": {"model": "m"}}]}
    made = admin.made("/v1/configs", {"name": "Fallback", "config": config, "workspace_id": workspace})
    assert json.loads(admin.shown(f"/v1/configs/{made['slug']}")["config"]) == config
    config["targets"] = [{"provider": "mock", "retry": {"attempts": 6}}, {"weight": -1, "onStatusCodes": [429]}]
    body = {"name": "Bad", "config": config, "workspace_id": workspace}
    refused = admin.post("/v1/configs", body)
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == [
        "config.targets[0].retry.attempts",
        "config.targets[1].weight",
        "config.targets[1].onStatusCodes",
    ]


def test_more_targets_than_allowed_are_not_saved(admin: Client, workspace: str):
    config = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "mock"}] * 101}
    refused = admin.post("/v1/configs", {"name": "Many", "config": config, "workspace_id": workspace})
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == ["config.targets"]


def test_the_operators_limits_hold_when_saving(tmp_path: Path, provider: Mock):
    limits = {
        "MAX_ROOT_CONFIG_TARGETS": "2",
        "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS": "3",
        "MAX_NESTED_CONFIG_TARGETS": "1",
    }
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", **limits}
    with running(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.shown("/v1/workspaces")["data"]
        body = {"name": "Config", "workspace_id": workspace["id"]}

        def wrong(strategy: dict[str, Any], *targets: dict[str, Any]) -> list[str]:
            """Save it, and give the places of what is wrong."""
            answer = admin.post("/v1/configs", {**body, "config": {"strategy": strategy, "targets": targets}})
            assert answer.status in {200, 201, 400}, answer
            return [error["path"] for error in answer.json()["data"]["errors"]] if answer.status == 400 else []

        single, falls = {"mode": "single"}, {"mode": "fallback"}
        assert (wrong(falls, *[MOCKED] * 2), wrong(falls, *[MOCKED] * 3)) == ([], ["config.targets"])
        assert (wrong(NAMED, *[MOCKED] * 3), wrong(NAMED, *[MOCKED] * 4)) == ([], ["config.targets"])
        one, two = ({"strategy": falls, "targets": [MOCKED] * count} for count in (1, 2))
        assert (wrong(single, one), wrong(single, two)) == ([], ["config.targets[0]"])
