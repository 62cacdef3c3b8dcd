"""Read-your-write consistency. An acknowledged change applies to the next request at every worker of the node, on both
databases.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway

# The waits are long enough for a busy machine: a change that is given up would not apply to the next request.
TABLES = {
    "server": {"workers": 2},
    "metrics": {"enabled": True},
    "store": {"publish_wait_ms": 10_000, "acquire_ms": 15_000, "statement_ms": 20_000},
}
# Number of requests, each over a new connection. Connections are distributed among the workers at random.
ATTEMPTS = 6


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/workspaces", {"name": "Mine"})["id"]


def read_metric(gateway: Gateway, name: str) -> int:
    lines = send_raw_request(gateway.base_url, "/metrics").body.decode().splitlines()
    return next(int(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def collect_statuses(client: Client, **headers: str) -> set[int]:
    fields = {**MOCK_HEADERS, "x-gateway-api-key": client.key, **headers}
    return {send_raw_request(client.gateway.base_url, CHAT_PATH, chat_body(), fields).status for _ in range(ATTEMPTS)}


def test_acknowledged_change_applies_to_the_next_request(admin: Client, workspace: str):
    for _ in range(5):
        key = admin.create(
            "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
        )
        app = Client(admin.gateway, key["key"])
        assert collect_statuses(app) == {200}
        config = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace}
        slug = admin.create("/v1/configs", config)["slug"]
        assert collect_statuses(app, **{"x-gateway-config": slug, "x-gateway-provider": ""}) == {200}
        expect_ok(admin.put(f"/v1/configs/{slug}", {"status": "archived"}))
        assert 200 not in collect_statuses(app, **{"x-gateway-config": slug, "x-gateway-provider": ""})
        expect_ok(admin.delete(f"/v1/api-keys/{key['id']}"))
        assert collect_statuses(app) == {401}
    assert read_metric(admin.gateway, "penstock_publish_waits_total") >= 20
    assert read_metric(admin.gateway, "penstock_publish_waits_given_up_total") == 0


@pytest.mark.figures
def test_concurrent_writes_share_their_wait(admin: Client, workspace: str):
    body = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace}

    def measure_seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def create_config(_number: int = 0) -> None:
        admin.create("/v1/configs", body)

    alone = statistics.median(measure_seconds(create_config) for _ in range(10))
    with ThreadPoolExecutor(10) as pool:
        together = measure_seconds(lambda: list(pool.map(create_config, range(50))))
    print(f"a write alone {alone * 1e3:.1f} ms, of fifty by ten at once {together * 1e3 / 50:.1f} ms each")
    assert together < 50 * alone
    assert read_metric(admin.gateway, "penstock_publish_waits_given_up_total") == 0
