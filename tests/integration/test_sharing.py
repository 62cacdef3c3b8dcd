"""Sharing through Redis: workers and nodes share cached responses, circuit breakers and change notifications. Without
Redis each node works alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.nodes import CACHED_CONFIG, breaker_config, create_node_folders, send_with_config, wait_for_redis
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body, send_raw_request
from tests.integration.serving import edge_pids, read_metrics, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.postgres import Postgres
    from tests.redis_server import RedisServer

BREAKER_CONFIG = breaker_config(3)


@pytest.fixture
def nodes(tmp_path: Path, provider: Mock, redis: RedisServer) -> Iterator[list[Gateway]]:
    """Runs two gateways with two workers each, connected to the same Redis."""
    tables = {"server": {"workers": 2}, "mock": {"host": provider.url}, "metrics": {"enabled": True}}
    first_node, second_node = create_node_folders(tmp_path)
    env = {"REDIS_URL": redis.url}
    with run_gateway(first_node, tables, env=env) as first, run_gateway(second_node, tables, env=env) as second:
        for node in (first, second):
            edge_pids(node, 2)
            wait_for_redis(node, workers=2)
        yield [first, second]


def seeded_chat_body(number: int) -> bytes:
    return chat_body("mock?chunks=1", seed=number)


@pytest.mark.figures
def test_all_workers_share_cached_responses_and_circuit_breakers(
    nodes: list[Gateway], provider: Mock, redis: RedisServer
):
    assert send_with_config(nodes[0], CACHED_CONFIG, seeded_chat_body(1)).get_header("x-gateway-cache-status") == "MISS"

    def is_shared() -> bool | None:
        # Each request may reach any worker; twenty connections reach all of them.
        responses = [send_with_config(node, CACHED_CONFIG, seeded_chat_body(1)) for node in nodes for _ in range(10)]
        return all(response.get_header("x-gateway-cache-status") == "HIT" for response in responses) or None

    wait_for("the answer at all workers", is_shared)
    before = len(provider.ledger())
    assert before <= 2
    for turn in range(40):
        response = send_with_config(nodes[turn % 2], BREAKER_CONFIG)
        assert (response.status, response.get_header("x-gateway-last-used-option-index")) == (200, "config.targets[1]")
        # A result of one worker reaches the others with a delay, longer on a busy machine.
        time.sleep(0.05)
    failed = [entry for entry in provider.ledger() if entry["model"] == "mock?status=503"]
    # Three failures open the breaker, and each other worker may have one request in flight. Breakers per worker would
    # give twelve.
    assert 3 <= len(failed) <= 6
    wait_for("it is open everywhere", lambda: all(count_open_breakers(node) == 2 for node in nodes) or None)
    figures = read_metrics(nodes[1])
    assert figures["penstock_redis_lookups_total"] >= figures["penstock_redis_hits_total"] >= 1
    assert figures["penstock_cache_hits_total"] >= 10
    assert figures["penstock_circuit_breaker_skips_total"] >= 10
    for node in nodes:
        assert redis.PASSWORD not in node.program.read_output()


def count_open_breakers(node: Gateway) -> float:
    return read_metrics(node).get("penstock_circuit_breakers_open", 0)


@pytest.fixture
def save_config(
    tmp_path: Path, provider: Mock, postgres: Postgres, redis: RedisServer
) -> Iterator[Callable[[str], float]]:
    """Returns a function that saves a config at one node, and waits until the other uses it; it returns the seconds
    that this took.
    """
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": postgres.create_database(),
        "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "=",
        "REDIS_URL": redis.url,
    }
    tables = {"mock": {"host": provider.url}}
    first_node, second_node = create_node_folders(tmp_path)
    run_init(first_node, env)
    with run_gateway(first_node, tables, env=env) as first, run_gateway(second_node, tables, env=env) as second:
        admin = Client(first)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        inside = {"workspace_id": workspace["id"]}
        caller = admin.with_new_key(scopes=["completions.write"], **inside)

        def is_usable(slug: str) -> bool | None:
            headers = {"x-gateway-api-key": caller.key, "x-gateway-config": slug, **JSON_HEADERS}
            return send_raw_request(second.base_url, CHAT_PATH, chat_body(), headers).status == 200 or None

        def save_and_measure_seconds(name: str) -> float:
            slug = admin.create("/v1/configs", {"name": name, "config": {"provider": "mock"}, **inside})["slug"]
            began = time.monotonic()
            wait_for(f"{name} at the other node", lambda: is_usable(slug), 20)
            return time.monotonic() - began

        yield save_and_measure_seconds


def test_saved_config_reaches_the_other_node(save_config: Callable[[str], float], redis: RedisServer):
    save_config("with")
    redis.stop()
    save_config("without")


@pytest.mark.figures
def test_saved_config_reaches_the_other_node_at_once_with_redis(
    save_config: Callable[[str], float], redis: RedisServer
):
    save_config("first")
    durations = [save_config(f"config {number}") for number in range(8)]
    # The other node polls once a second, so eight delays under half a second cannot be chance.
    assert max(durations) < 0.5, durations
    redis.stop()
    assert save_config("without") < 5
