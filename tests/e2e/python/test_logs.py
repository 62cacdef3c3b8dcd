"""Logs, feedback, exports and analytics with the portkey-ai SDK against a running gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bootstrapped_store import ADMIN_KEY
from tests.e2e.python.test_routes import run_sdk_calls
from tests.integration.management_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bootstrapped_store import DatabaseTemplates
    from tests.gateway import Gateway

SCOPES = ["completions.write", "logs.list", "logs.view", "logs.write", "logs.export", "analytics.view"]
# Calls without an entry here only have to return something.
EXPECTED_RESULTS = {
    "feedback.create": "success",
    "feedback.bulk_create": 2,
    "feedback.update": "success",
    "analytics.graphs.requests": 2,
    "analytics.graphs.errors": 0,
    "analytics.groups.users": ["ann"],
    "logs.exports.download": ["custom-of-the-sdk", "trace-of-the-sdk"],
    "logs.exports.list": 1,
}


def test_portkey_sdk_understands_every_call(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path
):
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": store_templates.copy("sqlite", tmp_path)}
    running_gateway = gateway({"log_store": {"enabled": True}}, env=env)
    workspace = Client(running_gateway).create("/v1/admin/workspaces", {"name": "Sdk"})["id"]
    key = Client(running_gateway).with_new_key(workspace_id=workspace, scopes=SCOPES).key
    version, calls = run_sdk_calls("portkey_logs.py", "portkey-ai-2", running_gateway, KEY=key, WORKSPACE=workspace)
    assert version.startswith("2.")
    actual = dict(calls)
    assert actual == {name: EXPECTED_RESULTS.get(name, True) for name in actual}
