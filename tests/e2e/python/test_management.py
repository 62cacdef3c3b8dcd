"""Management of a gateway with the portkey-ai SDK. The SDK parses responses strictly, including those with limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bootstrapped_store import ADMIN_KEY
from tests.e2e.python.test_routes import run_sdk_calls
from tests.integration.management_client import Client, expect_ok

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bootstrapped_store import DatabaseTemplates
    from tests.gateway import Gateway

EXPECTED_RESULTS = {
    "workspaces.retrieve": "Sdk",
    "users.retrieve": "owner",
    "users.list": 1,
    "workspaces.users.list": 0,
    "invites.retrieve": "pending",
    "invites.list": 1,
    "integrations.create": "shared",
    "integrations.list": ["shared"],
    "integrations.workspaces.list": [[10, 7]],
    "providers.create": "p",
    "providers.list": [["p", 7], ["shared", None]],
    "providers.retrieve": 7,
    "providers.update": "p",
    "configs.list": 1,
    "configs.retrieve": "C",
    "api_keys.retrieve": 7,
    "collections.retrieve": "F",
    "collections.list": 2,
    "labels.retrieve": "canary",
    "labels.list": 4,
    "prompts.partials.retrieve": "t",
    "prompts.partials.list": 1,
    "prompts.partials.versions.list": 2,
    "prompts.retrieve": "{{b}}",
    "prompts.list": 1,
    "prompts.versions.list": 2,
    "prompts.versions.retrieve": "canary",
}


def start_managed_gateway(gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, folder: Path) -> Gateway:
    url = store_templates.copy("sqlite", folder)
    return gateway(env={"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url})


def test_portkey_sdk_understands_every_call(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path
):
    running_gateway = start_managed_gateway(gateway, store_templates, tmp_path)
    version, calls = run_sdk_calls("portkey_management.py", "portkey-ai-2", running_gateway, KEY=ADMIN_KEY)
    assert version.startswith("2.")
    actual = dict(calls)
    virtual = actual.pop("virtual_keys.create")
    assert virtual, actual
    # Calls without an entry here only have to return something.
    assert actual == {name: EXPECTED_RESULTS.get(name, True) for name in actual}
    assert set(EXPECTED_RESULTS) <= set(actual)


def test_limits_are_lists_for_all_other_clients(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path
):
    running_gateway = start_managed_gateway(gateway, store_templates, tmp_path)
    admin = Client(running_gateway)
    rate = {"type": "requests", "unit": "rpm", "value": 7}
    workspace = admin.create("/v1/workspaces", {"name": "w"})["id"]
    admin.create("/v1/virtual-keys", {"name": "v", "provider": "mock", "workspace_id": workspace, "rate_limits": rate})
    body = {"name": "i", "slug": "i", "ai_provider_id": "mock"}
    admin.create("/v1/integrations", body)
    expect_ok(
        admin.put(
            "/v1/integrations/i/workspaces", {"workspaces": [{"id": workspace, "enabled": True, "rate_limits": [rate]}]}
        )
    )
    node = {"x-portkey-package-version": "portkey-3.1.0", "x-portkey-runtime": "node"}
    python = {"x-portkey-package-version": "portkey-2.3.4", "x-portkey-runtime": "CPython"}
    for headers, displayed in (({}, [rate]), (node, [rate]), (python, rate)):
        client = Client(running_gateway, headers=headers)
        listed = client.read(f"/v1/virtual-keys?workspace_id={workspace}")["data"]
        assert [row["rate_limits"] for row in listed if row["rate_limits"]] == [displayed]
        assert client.read("/v1/integrations/i/workspaces")["workspaces"][0]["rate_limits"] == displayed
