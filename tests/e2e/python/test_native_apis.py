"""Google's and Cohere's SDKs at the parts of their APIs that the gateway forwards. The gateway restores the API version
that its own paths omit, and continues uploads without a key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.bootstrapped_store import ADMIN_KEY
from tests.e2e.python.google_provider import GoogleProvider
from tests.e2e.python.packages import run_sdk_script
from tests.integration.management_client import Client, expect_ok
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.bootstrapped_store import DatabaseTemplates
    from tests.gateway import Gateway

UPLOAD_BYTES = 9 * 1024 * 1024
PROVIDER_KEY = "AIza-0123456789abcdefghij"
EXPECTED_RESULTS = {
    "upload": "files/f-1",
    "get_file": "files/f-1",
    "list_files": ["files/f-1"],
    "delete_file": True,
    "get_batch": "batches/b-1",
    "list_batches": ["batches/b-1"],
    "create_batch": "batches/b-1",
    "create_cache": "cachedContents/c-1",
    "create_interaction": "i-1",
}


@pytest.fixture
def google() -> Iterator[GoogleProvider]:
    with GoogleProvider() as provider:
        yield provider


def start_gateway(
    gateway: Callable[..., Gateway],
    store_templates: DatabaseTemplates,
    folder: Path,
    kind: str,
    address: str,
    provider_key: str = PROVIDER_KEY,
) -> tuple[Gateway, str]:
    """Starts a gateway with a store; returns it with a key whose config names the provider at this address."""
    tables: dict[str, Any] = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": store_templates.copy("sqlite", folder)}
    running_gateway = gateway(tables, env=env)
    admin = Client(running_gateway)
    workspace = admin.create("/v1/workspaces", {"name": "w"})["id"]
    body = {"name": "p", "slug": "p", "ai_provider_id": kind, "key": provider_key, "workspace_id": workspace}
    admin.create("/v1/integrations", body | {"configurations": {"custom_host": address}})
    config = admin.create("/v1/configs", {"name": "c", "config": {"provider": "@p"}, "workspace_id": workspace})["slug"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"], defaults={"config_id": config}).key
    wait_for("the key", lambda: Client(running_gateway, key).get("/v1/models").status == 200 or None, 3)
    return running_gateway, key


def test_google_sdk_reaches_its_own_api(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path, google: GoogleProvider
):
    running_gateway, key = start_gateway(gateway, store_templates, tmp_path, "google", google.url)
    received = run_sdk_script("own_apis.py", running_gateway, ["v1", "v1beta"], key=key)
    for version in ("v1", "v1beta"):
        assert {call: actual for (name, call), actual in received.items() if name == version} == EXPECTED_RESULTS
    assert [len(content) for content in google.uploads.values()] == [UPLOAD_BYTES] * 2
    requests = [(target, headers) for _, target, headers in google.requests if target.startswith("/upload/")]
    # Two uploads, each with a request that starts it and two parts.
    assert len(requests) == 6
    for target, headers in requests:
        assert "token" not in target
        assert headers["x-goog-api-key"] == PROVIDER_KEY
        assert not [name for name in headers if name.startswith(("x-gateway-", "x-portkey-"))]
    records = [record for record in running_gateway.records(24) if "/upload/" in record["request_url"]]
    assert len(records) == 6
    assert {record["response_status_code"] for record in records} == {200}
    assert len({record["api_key_id"] for record in records}) == 1
    assert not any("token" in json.dumps(record) for record in records)


@pytest.mark.parametrize("provider_key", [PROVIDER_KEY, "short"])
def test_upload_url_is_valid_only_for_its_upload(
    gateway: Callable[..., Gateway],
    store_templates: DatabaseTemplates,
    tmp_path: Path,
    google: GoogleProvider,
    provider_key: str,
):
    running_gateway, key = start_gateway(gateway, store_templates, tmp_path, "google", google.url, provider_key)
    command = "x-goog-upload-command"
    started = httpx2.post(
        f"{running_gateway.base_url}/upload/v1/files", headers={"x-goog-api-key": key, command: "start"}, content=b"{}"
    )
    url = started.headers["x-goog-upload-url"]
    assert url.startswith(f"{running_gateway.base_url}/upload/v1/files?upload_id=id-0&")

    def send(target: str, value: str = "upload, finalize", **headers: str) -> int:
        return httpx2.post(target, headers={command: value, **headers}, content=b"x").status_code

    refused = [
        send(url.partition("&gateway")[0]),
        send(url.replace("upload_id=id-0", "upload_id=id-1")),
        send(url.replace("/upload/v1/", "/upload/v1beta/")),
        send(url, "start"),
        send(url[:-2]),
        send(url, **{"x-goog-api-key": "pk-unknown-0123456789"}),
    ]
    assert refused == [401] * len(refused)
    assert google.uploads == {"id-0": b""}
    assert send(url) == 200
    assert google.uploads == {"id-0": b"x"}
    (actual,) = [
        row["id"] for row in Client(running_gateway).read("/v1/api-keys")["data"] if row["name"] == "key of a test"
    ]
    expect_ok(Client(running_gateway).delete(f"/v1/api-keys/{actual}"))
    wait_for("the end of the key", lambda: send(url) == 401 or None, 3)


def test_cohere_sdk_reaches_its_first_api(
    gateway: Callable[..., Gateway], store_templates: DatabaseTemplates, tmp_path: Path, google: GoogleProvider
):
    running_gateway, key = start_gateway(gateway, store_templates, tmp_path, "cohere", google.url)
    received = run_sdk_script("own_apis.py", running_gateway, [], key=key)
    assert received == {
        ("cohere", "tokenize"): [1, 2],
        ("cohere", "datasets"): ["d-1"],
        ("cohere", "embed_jobs"): [],
        ("cohere", "chat"): "hello",
    }
    assert google.paths() == ["POST /v1/tokenize", "GET /v1/datasets", "GET /v1/embed-jobs", "POST /v1/chat"]
