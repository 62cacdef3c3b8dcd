"""Whoever was answered that something changed meets it at once, at each worker of the node, on both databases."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.managed import Client, good
from tests.integration.wire import CHAT, MOCK, ask, asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway

TABLES = {"server": {"workers": 2}, "metrics": {"enabled": True}}
# Connections are dealt out among the workers by chance.
TRIES = 6


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.made("/v1/workspaces", {"name": "Mine"})["id"]


def figure(gateway: Gateway, name: str) -> int:
    lines = ask(gateway.base_url, "/metrics").body.decode().splitlines()
    return next(int(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def statuses(client: Client, **headers: str) -> set[int]:
    fields = {**MOCK, "x-gateway-api-key": client.key, **headers}
    return {ask(client.gateway.base_url, CHAT, asked(), fields).status for _ in range(TRIES)}


def test_what_was_acknowledged_holds_for_the_very_next_request_at_every_worker(admin: Client, workspace: str):
    for _ in range(5):
        made = admin.made(
            "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
        )
        app = Client(admin.gateway, made["key"])
        assert statuses(app) == {200}
        config = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace}
        slug = admin.made("/v1/configs", config)["slug"]
        assert statuses(app, **{"x-gateway-config": slug, "x-gateway-provider": ""}) == {200}
        good(admin.put(f"/v1/configs/{slug}", {"status": "archived"}))
        assert 200 not in statuses(app, **{"x-gateway-config": slug, "x-gateway-provider": ""})
        good(admin.delete(f"/v1/api-keys/{made['id']}"))
        assert statuses(app) == {401}
    assert figure(admin.gateway, "penstock_publish_waits_total") >= 20
    assert figure(admin.gateway, "penstock_publish_waits_given_up_total") == 0


def test_writes_that_come_together_wait_together(admin: Client, workspace: str):
    body = {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace}

    def timed(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def write(_number: int = 0) -> None:
        admin.made("/v1/configs", body)

    alone = statistics.median(timed(write) for _ in range(10))
    with ThreadPoolExecutor(10) as pool:
        together = timed(lambda: list(pool.map(write, range(50))))
    print(f"a write alone {alone * 1e3:.1f} ms, of fifty by ten at once {together * 1e3 / 50:.1f} ms each")
    assert together < 50 * alone
    assert figure(admin.gateway, "penstock_publish_waits_given_up_total") == 0
