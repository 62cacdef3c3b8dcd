"""Limits of three nodes that share Redis and PostgreSQL. A hard budget is never exceeded, even if workers are killed
during streams. The ledger and the records have the same costs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.nodes import wait_for_redis
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, Response, send_raw_request
from tests.integration.serving import edge_pids, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.postgres import Postgres
    from tests.redis_server import RedisServer

NODES = 3
NANODOLLARS = 1_000_000_000
# One token costs 0.02 cents, so that a dollar is 5,000 tokens.
PRICE = {"price": 0.02}
PRICES = [
    {"provider": "mock", "model": "mock", "pay_as_you_go": {"request_token": PRICE, "response_token": PRICE}},
    {
        "provider": "mock",
        "model": "mock?chunk_ms=40",
        "pay_as_you_go": {"request_token": PRICE, "response_token": PRICE},
    },
]


@pytest.fixture
def nodes(tmp_path: Path, provider: Mock, postgres: Postgres, redis: RedisServer) -> Iterator[list[Gateway]]:
    with run_nodes(tmp_path, provider, postgres, redis) as nodes:
        for node in nodes:
            wait_for_redis(node)
        yield nodes


@contextmanager
def run_nodes(
    tmp_path: Path, provider: Mock, postgres: Postgres, redis: RedisServer, workers: int = 1
) -> Iterator[list[Gateway]]:
    """Starts nodes that share PostgreSQL and Redis, each with this number of workers."""
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": postgres.create_database(),
        "PENSTOCK_STORE_MASTER_KEY": "A" * 43 + "=",
        "REDIS_URL": redis.url,
    }
    tables = {
        "server": {"workers": workers},
        "mock": {"host": provider.url},
        "metrics": {"enabled": True},
        "prices": PRICES,
    }
    folders = [tmp_path / f"node-{number}" for number in range(NODES)]
    for folder in folders:
        folder.mkdir()
    run_init(folders[0], env)
    with (
        run_gateway(folders[0], tables, env=env) as item,
        run_gateway(folders[1], tables, env=env) as two,
        run_gateway(folders[2], tables, env=env) as three,
    ):
        for node in (item, two, three):
            edge_pids(node, workers)
        yield [item, two, three]


def send_chat(
    node: Gateway, key: str, *, tokens: int, stream: bool = False, model: str = "mock", choices: int = 1
) -> Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream}
    return send_json(node, key, CHAT_PATH, {**body, "n": choices})


def send_json(node: Gateway, key: str, path: str, body: object) -> Response:
    headers = {"x-gateway-api-key": key, "x-gateway-provider": "mock", **JSON_HEADERS}
    return send_raw_request(node.base_url, path, json.dumps(body).encode(), headers)


def wait_for_key(nodes: list[Gateway], key: str) -> None:
    """Waits until all nodes know a key. An invalid body is rejected after the key is checked, and counts for no limit."""
    headers = {"x-gateway-api-key": key, "x-gateway-provider": "mock", **JSON_HEADERS}
    for node in nodes:
        url = node.base_url
        wait_for("the key", lambda url=url: send_raw_request(url, CHAT_PATH, b"{", headers).status == 400 or None, 20)


def list_costs(nodes: list[Gateway], policy: str) -> dict[str, int]:
    """Returns the cost of each record that counts for the policy, by id."""
    costs: dict[str, int] = {}
    for node in nodes:
        for record in node.records(0) if node.records_file.exists() else []:
            budgets = (record.get("limits") or {}).get("budgets", [])
            if any(budget["id"] == policy and not budget.get("is_failed_attempt") for budget in budgets):
                costs[record["id"]] = record.get("cost_nanodollars") or 0
    return costs


def test_hard_budget_of_three_nodes_is_never_exceeded(nodes: list[Gateway]):
    admin = Client(nodes[0])
    (workspace,) = admin.read("/v1/workspaces")["data"]
    inside = {"workspace_id": workspace["id"]}
    caller = admin.with_new_key(scopes=["completions.write"], **inside)
    policy = admin.create(
        "/v1/policies/usage-limits",
        {
            "name": "one dollar",
            "conditions": [{"key": "model", "value": "mock*"}],
            "group_by": [{"key": "workspace_id"}],
            "type": "cost",
            "credit_limit": 1,
            "enforcement": "hard",
            **inside,
        },
    )["id"]
    for node in nodes:
        wait_for("the policy", lambda node=node: send_chat(node, caller.key, tokens=1).get_header("ratelimit"), 20)
    rng = random.Random(5)  # noqa: S311 - not a secret
    sizes = [rng.randrange(5, 60) for _ in range(600)]

    def send(number: int) -> int:
        node = nodes[number % NODES]
        is_stream = number % 4 == 0
        try:
            if number % 6 == 5:
                return send_json(node, caller.key, "/v1/embeddings", {"model": "mock", "input": "hi " * 5}).status
            return send_chat(
                node,
                caller.key,
                tokens=sizes[number],
                stream=is_stream,
                model="mock?chunk_ms=40" if is_stream else "mock",
                choices=2 if number % 6 == 3 else 1,
            ).status
        except (OSError, AssertionError, ValueError):
            # The worker was killed.
            return 0

    with ThreadPoolExecutor(24) as pool:
        first = list(pool.map(send, range(200)))
        (victim,) = edge_pids(nodes[1], 1)
        running = pool.map(send, range(200, 400))
        os.kill(victim, signal.SIGKILL)
        second = list(running)
        edge_pids(nodes[1], 1)
        wait_for_redis(nodes[1])
        third = list(pool.map(send, range(400, 600)))
    # Nodes return the parts of the budget that they reserved in advance within a second.
    wait_for("more requests", lambda: [send(number) for number in range(20)].count(200) < 2 or None, 30)
    statuses = set(first + second + third)
    assert statuses <= {200, 412, 0, 502, 503}, statuses
    assert 412 in third

    def read_usage() -> Any:
        usage = admin.read(f"/v1/policies/usage-limits/{policy}?include_usage=true")["value_key_usage_map"]
        (row,) = usage.values()
        spent, recorded = round(row["current_usage"] * NANODOLLARS), sum(list_costs(nodes, policy).values())
        return (spent, recorded) if spent == recorded else None

    spent, recorded = wait_for("the ledger", read_usage, 20)
    operations = {record["operation"] for node in nodes for record in node.records(0)}
    assert {"chatComplete", "embed"} <= operations, operations
    assert spent == recorded
    assert spent <= NANODOLLARS, spent
    # The part that the killed worker had reserved comes back after a minute. A request reserves its highest possible
    # cost.
    assert spent > NANODOLLARS // 2, spent


def test_rate_limit_of_three_nodes_admits_exactly_its_value(nodes: list[Gateway], redis: RedisServer):
    admin = Client(nodes[0])
    (workspace,) = admin.read("/v1/workspaces")["data"]
    caller = admin.with_new_key(
        scopes=["completions.write"],
        workspace_id=workspace["id"],
        rate_limits=[{"type": "requests", "unit": "rpd", "value": 90}],
    )

    wait_for_key(nodes, caller.key)
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda at: send_chat(nodes[at % NODES], caller.key, tokens=5).status, range(200)))
    assert statuses.count(200) <= 90
    assert set(statuses) == {200, 429}

    def admitted_in_all() -> bool | None:
        # A node returns the part of the limit that it reserved in advance after a second.
        statuses.extend(send_chat(node, caller.key, tokens=5).status for node in nodes)
        return statuses.count(200) == 90 or None

    wait_for("the rest", admitted_in_all, 10)
    # Redis restarts without its counters. The limit is still used up, so no request is admitted.
    redis.stop()
    redis.start()
    for node in nodes:
        wait_for_redis(node)
    statuses = [send_chat(nodes[at % NODES], caller.key, tokens=5).status for at in range(30)]
    assert set(statuses) == {429}


@pytest.mark.slow(18)
def test_nodes_that_start_without_redis_share_limits(
    tmp_path: Path, provider: Mock, postgres: Postgres, redis: RedisServer
):
    redis.stop()
    try:
        with run_nodes(tmp_path, provider, postgres, redis) as nodes:

            def know_each_other() -> bool | None:
                files = list(tmp_path.glob("**/members"))
                members = [file.read_text().split() for file in files]
                return (len(files) == NODES and all(count == str(NODES) for count, _, _ in members)) or None

            wait_for("the number of workers", know_each_other, 30)
            admin = Client(nodes[0])
            (workspace,) = admin.read("/v1/workspaces")["data"]
            caller = admin.with_new_key(
                scopes=["completions.write"],
                workspace_id=workspace["id"],
                rate_limits=[{"type": "requests", "unit": "rps", "value": 9}],
            )
            wait_for_key(nodes, caller.key)
            admitted: Counter[int] = Counter()

            def use_second() -> int | None:
                """Sends requests to all nodes; returns the number admitted in this second if more than one node admits."""
                sent = int(time.time())
                for node in nodes:
                    response = send_chat(node, caller.key, tokens=5)
                    assert response.status in {200, 429}
                    # A request at the border of two seconds may belong to either.
                    admitted[sent] += response.status == 200 and int(time.time()) == sent
                assert "penstock-share" in (response.get_header("ratelimit-policy") or "")
                return admitted[sent] if admitted[sent] > 3 else None

            # A node that has just started admits nothing until all nodes know it. After that it has a share of each
            # second.
            wait_for("a second that is shared", use_second, 120)
            for _ in range(30):
                use_second()
            assert max(admitted.values()) <= 9, admitted
    finally:
        redis.start()
