"""The page at `/schema` in a browser: required fields, allowed values, authentication, examples and curl commands."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import send_raw_request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: the page does not depend on the database.
ONE_STORE = True
RENDER_MS = 20_000


@pytest.fixture(scope="module")
def page(admin: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Document of the page once its script has run."""
    browser = shutil.which("chromium-headless-shell")
    if browser is None:
        pytest.skip("chromium-headless-shell is not installed")
    folder: Path = tmp_path_factory.mktemp("browser")
    command = [
        browser,
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}",
        f"--virtual-time-budget={RENDER_MS}",
        "--dump-dom",
        f"{admin.gateway.base_url}/schema",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return html.unescape(done.stdout)


def operation(page: str, method: str, path: str) -> str:
    """Returns the part of the page about one operation."""
    (actual,) = re.findall(
        rf"<details><summary><b>{method}</b><code>{re.escape(path)}</code>.*?(?=<details><summary><b>|</section>)",
        page,
        re.DOTALL,
    )
    return actual


def test_page_explains_authentication(page: str):
    assert "x-gateway-api-key" in page.partition("<main>")[0]
    assert "penstock_session" in page.partition("<main>")[0]


def test_data_plane_shows_required_fields_values_and_a_curl_command(page: str, admin: Client, running_gateway: Gateway):
    displayed = operation(page, "POST", "/v1/chat/completions")
    assert '<code>messages[]</code><span class="required"> required</span>' in displayed
    assert '"system", "developer", "user", "assistant", "tool"' in displayed
    (command,) = re.findall(r"<h4>curl</h4><pre>(.*?)</pre>", displayed, re.DOTALL)
    assert command.startswith(f'curl -sS -X POST "{admin.gateway.base_url}/v1/chat/completions"')
    (body,) = re.findall(r"-d '(.*)'", command)
    headers = {"content-type": "application/json", "x-gateway-provider": "mock"}
    response = send_raw_request(running_gateway.base_url, "/v1/chat/completions", body.encode(), headers)
    assert response.status == 200


def test_management_shows_enums_required_fields_and_other_paths(page: str):
    displayed = operation(page, "POST", "/v1/api-keys/{kind}/{sub_kind}")
    assert '<code>kind</code><span class="required"> required</span>' in displayed
    assert '"organisation", "workspace"' in displayed
    assert '<code>name</code><span class="required"> required</span>' in displayed
    # The page also shows fields of objects that may be null, and of objects in lists.
    assert "<code>usage_limits.type</code>" in displayed
    assert '"cost", "tokens", "requests"' in displayed
    assert '<code>rate_limits.unit</code><span class="required"> required</span>' in displayed
    assert "<code>defaults.config_id</code>" in displayed
    assert "Also at" in displayed
    assert "/v1/api-keys/organisation/service" in displayed
    assert "Refusals" not in page


def test_documents_are_served_without_a_key(admin: Client):
    for name in ("data-plane.json", "openapi.json"):
        response = send_raw_request(admin.gateway.base_url, f"/schema/{name}", b"", {}, method="GET")
        assert response.status == 200
        assert json.loads(response.body)["openapi"].startswith("3.1")
