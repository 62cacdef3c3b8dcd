"""Prompts with the portkey-ai SDKs of Python and Node against a running gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bootstrapped_store import ADMIN_KEY
from tests.doc_examples import page_examples
from tests.e2e.python.test_routes import OLD_SDKS_DIR, run_sdk_calls
from tests.e2e.test_node import run_node_test
from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bootstrapped_store import DatabaseTemplates
    from tests.gateway import Gateway

SCOPES = ["completions.write", "prompts.create", "prompts.read", "prompts.render"]


@pytest.fixture
def prompt_gateway(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path
) -> tuple[Gateway, dict[str, str]]:
    """Returns a gateway with a prompt, and the environment that names the prompt and a key."""
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": store_templates.copy("sqlite", tmp_path)}
    running_gateway = gateway(env=env)
    admin = Client(running_gateway)
    workspace = admin.create("/v1/workspaces", {"name": "Sdk"})["id"]
    integration = admin.create("/v1/integrations", {"name": "mock", "ai_provider_id": "mock"})["slug"]
    enabled = {"workspaces": [{"id": workspace, "enabled": True}]}
    expect_ok(admin.put(f"/v1/integrations/{integration}/workspaces", enabled))
    saved = {"name": "mine", "slug": "mine", "integration_id": integration, "workspace_id": workspace}
    admin.create("/v1/providers", saved)
    client = admin.with_new_key(workspace_id=workspace, scopes=SCOPES)
    messages = json.dumps([{"role": "user", "content": "Greet {{name}}"}])
    prompt = {"name": "Greeting", "string": messages, "parameters": {}, "virtual_key": "mine", "model": "mock"}
    slug = client.create("/v1/prompts", prompt)["slug"]
    headers = {"x-gateway-api-key": client.key}
    path = f"/v1/prompts/{slug}/completions"
    wait_for(
        "the prompt", lambda: send_raw_request(running_gateway.base_url, path, b"{}", headers).status == 200 or None, 5
    )
    return running_gateway, {"KEY": client.key, "PROMPT": slug}


def test_portkey_sdk_runs_prompts(prompt_gateway: tuple[Gateway, dict[str, str]]):
    running_gateway, names = prompt_gateway
    version, calls = run_sdk_calls("portkey_prompts.py", "portkey-ai-2", running_gateway, **names)
    assert version.startswith("2.")
    actual = dict(calls)
    assert actual == {**dict.fromkeys(actual, True), "prompts.render": "Greet Ann"}


def test_portkey_sdk_example_of_the_page_runs(prompt_gateway: tuple[Gateway, dict[str, str]]):
    running_gateway, names = prompt_gateway
    (example,) = page_examples("docs/prompts.md", "py")
    reference = "pp-greeting-1f2e3d@production"
    assert reference in example.text
    lines = [
        f"key, url = {names['KEY']!r}, {running_gateway.base_url!r}",
        # No version of the new prompt has a label, so the example requests the latest version.
        example.text.replace(reference, f"{names['PROMPT']}@latest"),
        "print(answer.choices[0].message.content)",
    ]
    done = subprocess.run(
        [sys.executable, "-S", "-W", "ignore", "-c", "\n".join(lines)],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(OLD_SDKS_DIR / "portkey-ai-2")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_portkey_sdk_for_node_runs_prompts(prompt_gateway: tuple[Gateway, dict[str, str]]):
    running_gateway, names = prompt_gateway
    run_node_test("prompts.test.mjs", GATEWAY=running_gateway.base_url, **names)
