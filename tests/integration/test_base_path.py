"""Gateway behind a proxy that keeps the path below which it serves the gateway: each kind of request has this path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from websockets.sync.client import connect

from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True
BASE_PATH = "/tools/gateway"
TABLES = {"server": {"base_path": BASE_PATH}}


def send_below(admin: Client, path: str, *, base: str = BASE_PATH) -> Response:
    return send_raw_request(admin.gateway.base_url, base + path, b"", {"x-gateway-api-key": admin.key}, method="GET")


def test_serves_models_below_the_base_path(admin: Client):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    headers = {**JSON_HEADERS, "x-gateway-api-key": key, "x-gateway-provider": "mock", "authorization": "Bearer sk"}

    def send_chat(base: str) -> Response | None:
        response = send_raw_request(admin.gateway.base_url, base + CHAT_PATH, chat_body(), headers)
        return response if response.status == 200 else None

    first = wait_for("the key", lambda: send_chat(BASE_PATH))
    assert first.json()["choices"][0]["message"]["content"]
    # Programs on the same machine do not pass the proxy.
    assert send_chat("")
    wrong = send_raw_request(admin.gateway.base_url, f"{BASE_PATH}s{CHAT_PATH}", chat_body(), headers)
    assert wrong.status == 404


def test_opens_websockets_below_the_base_path(admin: Client):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    headers = {"x-gateway-api-key": key, "x-gateway-provider": "mock", "authorization": "Bearer sk"}
    url = f"{admin.gateway.base_url.replace('http://', 'ws://')}{BASE_PATH}/v1/realtime?model=gpt-realtime"
    with connect(url, additional_headers=headers, open_timeout=10, close_timeout=5, proxy=None) as socket:
        assert json.loads(socket.recv(timeout=10))["session"]["model"] == "gpt-realtime"


def test_serves_the_management_api_and_the_console_below_the_base_path(admin: Client):
    assert expect_ok(send_below(admin, "/v1/workspaces")) == admin.read("/v1/workspaces")
    page, plain = send_below(admin, "/console/logs"), send_below(admin, "/console/logs", base="")
    assert (page.status, page.body) == (200, plain.body)
    redirect = send_below(admin, "/console")
    # The browser completes the relative address with that of the request, which has the base path.
    assert (redirect.status, redirect.get_header("location")) == (302, "console/")
    assert send_below(admin, "/ready").status == 200


def test_links_have_the_base_path(admin: Client):
    body = {"email": "ada@example.com", "role": "member", "workspaces": []}
    link = admin.create("/v1/admin/users/invites", body)["invite_link"]
    path = link.partition("gateway.test")[2] or link.partition(str(admin.gateway.port))[2]
    assert path.startswith(f"{BASE_PATH}/v1/auth/invites?token=")
    assert send_below(admin, path.removeprefix(BASE_PATH)).status == 200
