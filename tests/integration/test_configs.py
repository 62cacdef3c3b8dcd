"""Configs over HTTP, on both databases; and that what is saved is what requests are served by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.wire import CHAT, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from tests.gateway import Mock
    from tests.integration.managed import Client


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
