"""Bodies of management requests by authenticated callers that stall. Each ends with 408, and others are served meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.bootstrapped_store import ADMIN_KEY
from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import RawConnection, encode_request, send_raw_request
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
HEADERS = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
# Parts of requests that never continue.
STALLED_REQUESTS = {
    "no byte": encode_request("POST", "/v1/workspaces", {**HEADERS, "content-length": "100"}),
    "half a body": encode_request("POST", "/v1/workspaces", {**HEADERS, "content-length": "100"}, b'{"name": "x'),
    "half a large body": encode_request(
        "PUT", "/v1/workspaces/w", {**HEADERS, "content-length": "900000"}, b" " * 500_000
    ),
    "no last chunk": encode_request("POST", "/v1/configs", {**HEADERS, "transfer-encoding": "chunked"}, b"2\r\n{}\r\n"),
}
STALLED_COUNT = 24


@pytest.fixture(scope="module")
def running_gateway(new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("management-bodies")
    tables = {"server": {"workers": 1}, "limits": {"body_idle_ms": 1500, "body_grace_ms": 1500}}
    with run_gateway(folder, tables, env=new_store(folder)) as gateway:
        yield gateway


@pytest.mark.parametrize("name", STALLED_REQUESTS)
def test_stalled_management_bodies_time_out_and_hold_no_worker(running_gateway: Gateway, name: str):
    admin = Client(running_gateway)
    with ExitStack() as opened:
        connections = [opened.enter_context(RawConnection(running_gateway.base_url)) for _ in range(STALLED_COUNT)]
        for connection in connections:
            connection.send(STALLED_REQUESTS[name])
        # All of them are open while others are served by the same worker and the same control process.
        workspace = admin.create("/v1/workspaces", {"name": f"beside {name}"})
        expect_ok(admin.get(f"/v1/workspaces/{workspace['id']}"))
        assert send_raw_request(running_gateway.base_url, "/live", method="GET").status == 200
        for connection in connections:
            response = connection.read_response()
            assert response.status == 408
            assert "limits.body_idle_ms is 1500" in response.json()["error"]["message"]
            assert connection.is_closed()
    # None of the stalled requests was saved.
    names = [item["name"] for item in admin.read("/v1/workspaces?page_size=100")["data"]]
    assert "x" not in names
    assert f"beside {name}" in names
