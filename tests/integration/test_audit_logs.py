"""Audit log over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

TABLES = {"security": {"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]}}
CANARY = "sk-canary-of-the-log-123"


@pytest.fixture(scope="module")
def span(admin: Client) -> str:
    now = datetime.now(UTC)
    span = {name: (now + timedelta(hours=hours)).isoformat() for name, hours in (("start_time", -1), ("end_time", 1))}
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    query = "&".join(f"{name}={moment.replace('+', '%2B')}" for name, moment in span.items())
    return f"/v1/audit-logs?{query}&organisation_id={organisation}"


def test_changes_are_logged_with_before_and_after_but_no_secret(admin: Client, span: str):
    workspace = admin.create("/v1/workspaces", {"name": "audited"})["id"]
    key = admin.create("/v1/virtual-keys", {"name": "vk", "provider": "mock", "key": CANARY, "workspace_id": workspace})
    expect_ok(admin.put(f"/v1/virtual-keys/{key['slug']}", {"name": "new", "key": f"{CANARY}-2"}))
    created = admin.create(
        "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["configs.list"], "workspace_id": workspace}
    )
    rotated = admin.create(f"/v1/api-keys/{created['id']}/rotate", {})
    expect_ok(admin.delete(f"/v1/api-keys/{created['id']}"))
    config = admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace})
    behind_a_proxy = Client(admin.gateway, headers={"x-forwarded-for": "192.0.2.7, 192.0.2.8, 10.0.0.3"})
    expect_ok(behind_a_proxy.put(f"/v1/configs/{config['slug']}", {"name": "d"}))
    expect_ok(admin.delete(f"/v1/configs/{config['slug']}"))
    log = admin.read(f"{span}&page_size=100&workspace_id={workspace}")
    received = [(row["resource_type"], row["action"], row["method"]) for row in log["records"]][::-1]
    assert received == [
        ("workspaces", "create", "POST"),
        ("integrations", "create", "POST"),
        ("virtual_keys", "create", "POST"),
        ("integrations", "update", "PUT"),
        ("virtual_keys", "update", "PUT"),
        ("workspace_service_api_keys", "create", "POST"),
        ("workspace_service_api_keys", "rotate", "POST"),
        ("workspace_service_api_keys", "delete", "DELETE"),
        ("configs", "create", "POST"),
        ("configs", "update", "PUT"),
        ("configs", "delete", "DELETE"),
    ]
    assert (log["total"], log["object"]) == (11, "analytics-graph")
    renamed: dict[str, Any] = log["records"][1]
    assert (renamed["before"]["name"], renamed["after"]["name"]) == ("c", "d")
    assert renamed["uri"] == f"/v1/configs/{config['slug']}"
    assert json.loads(renamed["request_body"])["name"] == "d"
    assert renamed["client_ip"] == "192.0.2.8"
    assert renamed["user_type"] == "api_key"
    text = json.dumps(log)
    assert not [secret for secret in (CANARY, created["key"], rotated["key"], admin.key) if secret in text]


def test_rejected_change_is_not_logged(admin: Client, span: str):
    before = admin.read(span)["total"]
    expect_error(admin.post("/v1/workspaces", {"name": ""}), 400, "AB01")
    assert admin.read(span)["total"] == before


def test_rows_are_filtered_and_paged(admin: Client, span: str):
    admin.create("/v1/workspaces", {"name": "filtered"})
    (row,) = admin.read(f"{span}&resource_type=workspaces&action=create&page_size=1&current_page=0")["records"]
    assert row["after"]["name"] == "filtered"
    assert admin.read(f"{span}&method=DELETE&resource_type=workspaces")["total"] == 0
    assert admin.read(f"{span}&request_id={row['request_id']}")["total"] >= 1
    for filtered in (
        "user_id=nobody",
        "user_type=user",
        "response_status_code=500",
        "client_ip=x",
        "country=x",
        "uri=/x",
    ):
        assert admin.read(f"{span}&{filtered}")["total"] == 0
    expect_error(admin.get(f"{span}&page_size=101"), 400, "AB01", "page_size")
    expect_error(admin.get(f"{span}&method=TRACE"), 400, "AB01", "method")
    # Without parameters, all changes of the caller's organisation are listed.
    assert admin.read("/v1/audit-logs")["total"] >= admin.read(span)["total"]
    expect_error(admin.get(span.replace("start_time=", "start_time=x")), 400, "AB01", "start_time")


def test_audit_log_requires_an_organisation_scope(admin: Client, span: str):
    workspace = admin.create("/v1/workspaces", {"name": "w"})["id"]
    inside = admin.with_new_key(workspace_id=workspace, scopes=["configs.list"])
    expect_error(inside.get(span), 403, "AB03", "audit_logs.list")
    expect_error(Client(admin.gateway, "nobody").get(span), 401, "AB05")
    other = span.rpartition("=")[0] + "=other"
    expect_error(admin.get(other), 403, "AB03", "other")
