"""Propagation delay of a saved config and of a revoked key to every worker of two nodes, with and without Redis."""

from __future__ import annotations

import re
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client, expect_ok
from tests.integration.nodes import create_node_folders, wait_for_redis
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, RawConnection, chat_body, send_raw_request
from tests.integration.serving import BackgroundThread, edge_pids, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.raw_http import Response
    from tests.postgres import Postgres
    from tests.redis_server import RedisServer

pytestmark = [pytest.mark.figures, pytest.mark.timeout(180)]

CHANGE_COUNT = 100
# Seconds between two changes, and connections to each node.
PAUSE, CONNECTIONS = 0.12, 10


class TwoNodeSetup(NamedTuple):
    """Two nodes with two workers each, and persistent connections that reach all workers."""

    admin: Client
    nodes: list[Gateway]
    connections: list[RawConnection]
    workspace_id: str
    is_shared: bool

    @property
    def max_seconds(self) -> float:
        return 1.0 if self.is_shared else 5.0


@pytest.fixture(params=["with Redis", "without Redis"])
def scenario(
    request: pytest.FixtureRequest, tmp_path: Path, provider: Mock, postgres: Postgres
) -> Iterator[TwoNodeSetup]:
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": postgres.create_database(),
        "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "=",
    }
    is_shared = request.param == "with Redis"
    if is_shared:
        redis: RedisServer = request.getfixturevalue("redis")
        env["REDIS_URL"] = redis.url
    tables = {"server": {"workers": 2}, "mock": {"host": provider.url}, "metrics": {"enabled": True}}
    first_node, second_node = create_node_folders(tmp_path)
    run_init(first_node, env)
    with (
        run_gateway(first_node, tables, env=env) as first,
        run_gateway(second_node, tables, env=env) as second,
        ExitStack() as stack,
    ):
        for node in (first, second):
            edge_pids(node, 2)
            if is_shared:
                wait_for_redis(node, workers=2)
        admin = Client(first)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        connections = [
            stack.enter_context(RawConnection(node.base_url)) for _ in range(CONNECTIONS) for node in (first, second)
        ]
        yield TwoNodeSetup(admin, [first, second], connections, workspace["id"], is_shared)


def count_requests_by_worker(node: Gateway) -> dict[str, float]:
    """Returns the number of requests that each worker has handled."""
    text = send_raw_request(node.base_url, "/metrics", headers={}).body.decode()
    actual: dict[str, float] = {}
    for worker, count in re.findall(
        r'^penstock_requests_total\{[^}]*worker="(\d+)"[^}]*\} ([\d.]+)', text, re.MULTILINE
    ):
        actual[worker] = actual.get(worker, 0) + float(count)
    return actual


class ChangeThread(BackgroundThread):
    """Makes changes in the background and notes when the response to each change arrived."""

    def __init__(self, change: Callable[[int], str]) -> None:
        super().__init__()
        self.when: list[tuple[str, float]] = []
        self._change = change

    def _run(self) -> None:
        for number in range(CHANGE_COUNT):
            if self._ended.is_set():
                return
            name = self._change(number)
            self.when.append((name, time.monotonic()))
            time.sleep(PAUSE)


def measure_propagation_seconds(
    scenario: TwoNodeSetup, change: Callable[[int], str], fields: Callable[[str], Mapping[str, str]], expected: int
) -> list[float]:
    """Makes the changes; returns the sorted seconds from the response to each change until the last worker applied it."""
    last: dict[str, float] = {}
    remaining: dict[str, list[RawConnection]] = {}
    began, used = {}, 0
    with ChangeThread(change) as changes:
        deadline = time.monotonic() + 90
        while len(last) < CHANGE_COUNT:
            assert time.monotonic() < deadline, f"{len(last)} of {CHANGE_COUNT}"
            for name, moment in changes.when[used:]:
                began[name], remaining[name] = moment, list(scenario.connections)
                used += 1
            for name, connections in list(remaining.items()):
                remaining[name] = [
                    connection
                    for connection in connections
                    if connection.request(CHAT_PATH, chat_body(), {**JSON_HEADERS, **fields(name)}).status != expected
                ]
                if not remaining[name]:
                    last[name] = time.monotonic() - began[name]
                    del remaining[name]
            time.sleep(0.005)
    return sorted(last.values())


def check_propagation_seconds(label: str, seconds: list[float], scenario: TwoNodeSetup) -> None:
    p99 = seconds[int(len(seconds) * 0.99) - 1]
    median = statistics.median(seconds)
    print(f"{label} {'with' if scenario.is_shared else 'without'} Redis: median {median:.3f} s, p99 {p99:.3f} s")
    assert p99 <= scenario.max_seconds, (median, p99, seconds[-1])
    # Every worker was tested: a connection stays with its worker.
    for node in scenario.nodes:
        wait_for("figures of both workers", lambda node=node: len(count_requests_by_worker(node)) == 2 or None, 5)
        assert min(count_requests_by_worker(node).values()) >= CHANGE_COUNT


def test_every_worker_uses_each_saved_config_soon(scenario: TwoNodeSetup):
    inside = {"workspace_id": scenario.workspace_id}
    key = scenario.admin.with_new_key(scopes=["completions.write"], **inside).key
    fields = {"x-gateway-api-key": key}

    def save_config(number: int) -> str:
        body = {"name": f"c{number}", "config": {"provider": "mock"}, **inside}
        return scenario.admin.create("/v1/configs", body)["slug"]

    def is_authenticated(response: Response) -> bool:
        return response.status != 401

    for connection in scenario.connections:
        wait_for(
            "the key",
            lambda connection=connection: (
                is_authenticated(connection.request(CHAT_PATH, chat_body(), {**JSON_HEADERS, **fields})) or None
            ),
            6,
        )
    check_propagation_seconds(
        "a config is used",
        measure_propagation_seconds(scenario, save_config, lambda slug: {**fields, "x-gateway-config": slug}, 200),
        scenario,
    )


def test_every_worker_rejects_each_deleted_key_soon(scenario: TwoNodeSetup):
    body = {"name": "k", "scopes": ["completions.write"], "workspace_id": scenario.workspace_id}
    created = [scenario.admin.create("/v1/api-keys/workspace/service", body) for _ in range(CHANGE_COUNT)]
    fields = {"x-gateway-provider": "mock"}
    for connection in scenario.connections:
        for key in (created[0], created[-1]):
            headers = {**JSON_HEADERS, **fields, "x-gateway-api-key": key["key"]}
            wait_for(
                "the keys",
                lambda connection=connection, headers=headers: (
                    connection.request(CHAT_PATH, chat_body(), headers).status == 200 or None
                ),
                6,
            )

    def delete_key(number: int) -> str:
        expect_ok(scenario.admin.delete(f"/v1/api-keys/{created[number]['id']}"))
        return created[number]["key"]

    check_propagation_seconds(
        "a key is dead",
        measure_propagation_seconds(scenario, delete_key, lambda key: {**fields, "x-gateway-api-key": key}, 401),
        scenario,
    )
