"""Defaults that API keys apply on the data plane: a config, metadata, and whether a request may override the config."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, Response, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    created = admin.create("/v1/admin/workspaces", {"name": "Defaults", "defaults": {"metadata": {"team": "blue"}}})
    return created["id"]


@pytest.fixture(scope="module")
def config(admin: Client, workspace: str) -> dict[str, Any]:
    body = {"name": "own", "config": {"provider": "mock", "api_key": "sk-of-config"}, "workspace_id": workspace}
    return admin.create("/v1/configs", body)


def send_chat(client: Client, **headers: str) -> Response:
    sent = {"x-gateway-api-key": client.key, "content-type": "application/json", **headers}
    return send_raw_request(client.gateway.base_url, CHAT_PATH, chat_body(), sent)


def create_key_with_defaults(admin: Client, workspace: str, **defaults: object) -> Client:
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"], defaults=defaults)
    wait_for("the key", lambda: send_chat(key, **{"x-gateway-provider": "mock"}).status == 200 or None, 3)
    return key


def test_key_config_applies_if_none_is_sent(admin: Client, workspace: str, config: dict[str, Any], provider: Mock):
    key = create_key_with_defaults(admin, workspace, config_id=config["slug"])
    provider.clear_ledger()
    assert send_chat(key).status == 200
    assert provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-of-config"
    assert send_chat(key, **{"x-gateway-config": '{"provider":"mock","api_key":"sk-own"}'}).status == 200
    assert provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-own"


def test_key_can_forbid_a_config_override(admin: Client, workspace: str, config: dict[str, Any], provider: Mock):
    key = create_key_with_defaults(admin, workspace, config_id=config["id"], allow_config_override=False)
    provider.clear_ledger()
    assert send_chat(key, **{"x-gateway-config": config["slug"]}).status == 200
    for other in ('{"provider":"mock","api_key":"sk-own"}', "pc-other"):
        response = send_chat(key, **{"x-gateway-config": other})
        assert response.status == 400
        assert "config_override_not_allowed" in response.body.decode()
    response = send_chat(key, **{"x-gateway-nitro-mode": "true"})
    assert (response.status, "config_override_not_allowed" in response.body.decode()) == (400, True)
    # A provider header does not replace the config's provider either.
    assert send_chat(key, **{"x-gateway-provider": "openai"}).status == 200
    assert {entry["headers"]["authorization"] for entry in provider.ledger()} == {"Bearer sk-of-config"}


def test_workspace_metadata_overrides_key_then_request(admin: Client, workspace: str):
    key = create_key_with_defaults(admin, workspace, metadata={"team": "red", "app": "a"})
    before = len(admin.gateway.records(1))
    sent = {"team": "green", "app": "b", "mine": "c"}
    assert send_chat(key, **{"x-gateway-provider": "mock", "x-gateway-metadata": json.dumps(sent)}).status == 200
    record = admin.gateway.records(before + 1)[-1]
    content = record["metadata"]
    assert content == {"mine": "c", "app": "a", "team": "blue"}


def test_config_header_accepts_an_id(admin: Client, workspace: str, config: dict[str, Any]):
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    wait_for("the config", lambda: send_chat(key, **{"x-gateway-config": config["id"]}).status == 200 or None, 3)


def test_changed_default_takes_effect_at_once(admin: Client, workspace: str, config: dict[str, Any]):
    created = admin.create(
        "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
    )
    key = Client(admin.gateway, created["key"])
    wait_for("the key", lambda: send_chat(key, **{"x-gateway-provider": "mock"}).status == 200 or None, 3)
    assert send_chat(key).status == 400
    expect_ok(admin.put(f"/v1/api-keys/{created['id']}", {"defaults": {"config_id": config["slug"]}}))
    wait_for("the default", lambda: send_chat(key).status == 200 or None, 3)


def test_any_key_name_reaches_the_data_plane_intact(admin: Client, workspace: str, config: dict[str, Any]):
    """The snapshot is one JSON text; a name that broke its encoding would invalidate all keys."""
    odd = "a \"b\" \\ 'c' %s {d} \u00e9 \U0001f511 :x, null"
    scopes = ["completions.write"]
    body = {"name": odd, "scopes": scopes, "workspace_id": workspace, "defaults": {"metadata": {"n": odd}}}
    names = Client(admin.gateway, admin.create("/v1/api-keys/workspace/service", body)["key"])
    wait_for("the key", lambda: send_chat(names, **{"x-gateway-config": config["slug"]}).status == 200 or None, 3)

    def has_metadata_record() -> bool | None:
        return any(odd in record.get("metadata", {}).values() for record in admin.gateway.records(0)) or None

    wait_for("its metadata in a record", has_metadata_record)
