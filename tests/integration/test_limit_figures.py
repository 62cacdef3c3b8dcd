"""Limits of three nodes under heavy load: a hard budget of one dollar is never exceeded, and rate limits admit nearly all
that they allow.

`PENSTOCK_FIGURES_WORKERS` and `PENSTOCK_FIGURES_CLIENTS` set other numbers of workers of a node, and of clients.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client
from tests.integration.nodes import wait_for_redis
from tests.integration.serving import edge_pids
from tests.integration.test_cluster_limits import (
    NANODOLLARS,
    NODES,
    PRICE,
    list_costs,
    run_nodes,
    send_chat,
    wait_for_key,
)
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.postgres import Postgres
    from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow(30), pytest.mark.figures]

WORKERS = int(os.environ.get("PENSTOCK_FIGURES_WORKERS", "2"))
CLIENTS = int(os.environ.get("PENSTOCK_FIGURES_CLIENTS", "60"))
MIN_ADMITTED, MAX_RESET_SECONDS = 0.95, 1.0
# Time when an admitted request was sent, time when its response arrived, and its usage. It was admitted between both.
Admission = tuple[float, float, int]


@pytest.fixture
def nodes(tmp_path: Path, provider: Mock, postgres: Postgres, redis: RedisServer) -> Iterator[list[Gateway]]:
    with run_nodes(tmp_path, provider, postgres, redis, WORKERS) as nodes:
        for node in nodes:
            wait_for_redis(node, WORKERS)
        yield nodes


def create_caller(nodes: list[Gateway], **limits: Any) -> tuple[Client, str]:
    admin = Client(nodes[0])
    (workspace,) = admin.read("/v1/workspaces")["data"]
    caller = admin.with_new_key(scopes=["completions.write"], workspace_id=workspace["id"], **limits)
    wait_for_key(nodes, caller.key)
    return admin, caller.key


class SpendingClients:
    """Clients that spend a budget from all nodes until little is left."""

    def __init__(self, nodes: list[Gateway], key: str) -> None:
        self._nodes, self._key = nodes, key
        self._rng = random.Random(7)  # noqa: S311 - not a secret
        self._is_over = threading.Event()
        self.statuses: list[int] = []

    def _call(self, number: int) -> None:
        while not self._is_over.is_set():
            size, is_stream = self._rng.randrange(5, 60), self._rng.random() < 0.3
            model = "mock?chunk_ms=40" if is_stream else "mock"
            try:
                node = self._nodes[number % NODES]
                self.statuses.append(send_chat(node, self._key, tokens=size, stream=is_stream, model=model).status)
            except (OSError, AssertionError, ValueError):
                # The worker was killed.
                self.statuses.append(0)

    def spend(self, disturb: Callable[[], None] = lambda: None) -> None:
        """Spends until nearly all requests are rejected."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(self._call, number) for number in range(CLIENTS)]
            try:
                disturb()
                wait_for("the end of the budget", lambda: self.statuses[-1000:].count(412) > 980 or None, 120)
            finally:
                self._is_over.set()
            for call in running:
                call.result(60)


def test_budget_of_a_dollar_is_never_exceeded(nodes: list[Gateway]):
    admin, key = create_caller(nodes)
    (workspace,) = admin.read("/v1/workspaces")["data"]
    budget = {"conditions": [{"key": "model", "value": "mock*"}], "group_by": [{"key": "workspace_id"}], "type": "cost"}
    location = "/v1/policies/usage-limits"
    fields = {**budget, "credit_limit": 1, "enforcement": "hard", "workspace_id": workspace["id"]}
    policy = admin.create(location, fields)["id"]
    for node in nodes:
        wait_for("the policy", lambda node=node: send_chat(node, key, tokens=1).get_header("ratelimit"), 20)

    def read_spent(before: int = 0) -> int | None:
        usage = admin.read(f"{location}/{policy}?include_usage=true")["value_key_usage_map"]
        spent = sum(round(row["current_usage"] * NANODOLLARS) for row in usage.values())
        return spent if spent == sum(list_costs(nodes, policy).values()) - before else None

    def kill_and_change_prices() -> None:
        for node in nodes:
            time.sleep(1)
            os.kill(edge_pids(node, WORKERS)[0], signal.SIGKILL)
        # The price of a token doubles while requests are under way.
        time.sleep(2)
        for node in nodes:
            text = node.config_file.read_text()
            assert f"{PRICE['price']}" in text
            node.config_file.write_text(text.replace(f"{PRICE['price']}", f"{2 * PRICE['price']}"))
            node.program.process.send_signal(signal.SIGHUP)

    clients = SpendingClients(nodes, key)
    clients.spend(kill_and_change_prices)
    spent = wait_for("the ledger", read_spent, 60)
    admitted = clients.statuses.count(200)
    print(f"{len(clients.statuses)} requests, {admitted} admitted, ${spent / NANODOLLARS} of $1")
    assert spent <= NANODOLLARS, spent
    # After the reset, the new budget is not exceeded either.
    assert admin.put(f"{location}/{policy}", {"reset_usage_for_value": workspace["id"]}).status == 200
    wait_for("the reset", lambda: send_chat(nodes[0], key, tokens=5).status == 200 or None, 20)
    SpendingClients(nodes, key).spend()
    again = wait_for("the ledger", lambda: read_spent(spent), 60)
    print(f"${again / NANODOLLARS} of $1 after the reset")
    assert again <= NANODOLLARS, again


def test_a_reset_reaches_all_nodes_within_a_second(nodes: list[Gateway]):
    admin, key = create_caller(nodes)
    (workspace,) = admin.read("/v1/workspaces")["data"]
    location = "/v1/policies/usage-limits"
    group = {"conditions": [{"key": "model", "value": "mock*"}], "group_by": [{"key": "workspace_id"}]}
    fields = {**group, "type": "requests", "credit_limit": 6, "workspace_id": workspace["id"]}
    policy = admin.create(location, fields)["id"]
    for node in nodes:
        wait_for("the policy", lambda node=node: send_chat(node, key, tokens=1).get_header("ratelimit"), 20)

    def is_used_up() -> bool:
        for node in nodes:
            send_chat(node, key, tokens=1)
        usage = admin.read(f"{location}/{policy}?include_usage=true")["value_key_usage_map"]
        return any(row["current_usage"] >= fields["credit_limit"] for row in usage.values())

    durations: list[float] = []
    for number in range(6):
        node = nodes[number % NODES]
        wait_for("the end", lambda node=node: send_chat(node, key, tokens=1).status == 412 or None, 20)
        wait_for("the ledger", lambda: is_used_up() or None, 20)
        assert admin.put(f"{location}/{policy}", {"reset_usage_for_value": workspace["id"]}).status == 200
        began = time.monotonic()
        wait_for("the reset", lambda node=node: send_chat(node, key, tokens=1).status == 200 or None, 20)
        durations.append(time.monotonic() - began)
    print(f"a reset takes {max(durations):.2f} s at most")
    assert max(durations) <= MAX_RESET_SECONDS, durations


def send_paced(
    nodes: list[Gateway], key: str, rate: float, seconds: float, amount: Callable[[Any], int]
) -> list[Admission]:
    """Sends requests at a rate. Returns the admitted requests with their times and usage."""
    admitted: list[Admission] = []

    def call(number: int, due: float) -> None:
        time.sleep(max(0.0, due - time.time()))
        sent = time.time()
        response = send_chat(nodes[number % NODES], key, tokens=5)
        if response.status == 200:
            admitted.append((sent, time.time(), amount(response.json())))
        else:
            assert response.status == 429, response.status

    began = time.time()
    with ThreadPoolExecutor(CLIENTS) as pool:
        calls = [pool.submit(call, number, began + number / rate) for number in range(int(rate * seconds))]
        for pending in calls:
            pending.result(120)
    return admitted


def highest_window(admitted: list[Admission], seconds: float, starts: Iterator[float]) -> int:
    """Returns the maximum usage that was certainly admitted within one window."""
    return max(
        sum(used for sent, done, used in admitted if start <= sent and done < start + seconds) for start in starts
    )


def test_rate_limits_admit_nearly_everything_and_never_more(nodes: list[Gateway]):
    seconds = 12.0
    for kind, value, amount in (("requests", 50, 1), ("tokens", 500, 0)):
        _, key = create_caller(nodes, rate_limits=[{"type": kind, "unit": "rps", "value": value}])
        first = send_chat(nodes[0], key, tokens=5).json()["usage"]["total_tokens"]
        rate = 100 if amount else 2 * value / first
        admitted = send_paced(
            nodes, key, rate, seconds, lambda body, amount=amount: amount or body["usage"]["total_tokens"]
        )
        begin, end = min(sent for sent, _, _ in admitted), max(done for _, done, _ in admitted)
        starts = [float(second) for second in range(int(begin), int(end) + 1)]
        # Ignores the first and the last window, which are incomplete.
        whole = [used for sent, _, used in admitted if starts[1] <= sent < starts[-1]]
        part = sum(whole) / (value * (len(starts) - 2))
        print(f"{kind} at {rate:.0f}/s: {sum(whole)} of {value}/s in {len(starts) - 2} s, {part:.1%}")
        assert highest_window(admitted, 1, iter(starts)) <= value
        assert part >= MIN_ADMITTED, part


@pytest.mark.parametrize(("kind", "value"), [("requests", 1200), ("tokens", 12_000)])
def test_sliding_limits_admit_nearly_everything_and_never_more(nodes: list[Gateway], kind: str, value: int):
    seconds = 130.0
    admin = Client(nodes[0])
    (workspace,) = admin.read("/v1/workspaces")["data"]
    _, key = create_caller(nodes)
    admin.create(
        "/v1/policies/rate-limits",
        {
            "conditions": [{"key": "workspace_id", "value": workspace["id"]}],
            "group_by": [{"key": "api_key"}],
            "type": kind,
            "unit": "rpm",
            "value": value,
            "window": "sliding",
            "workspace_id": workspace["id"],
        },
    )
    for node in nodes:
        wait_for("the policy", lambda node=node: send_chat(node, key, tokens=1).get_header("ratelimit"), 20)
    used = send_chat(nodes[0], key, tokens=5).json()["usage"]["total_tokens"] if kind == "tokens" else 1
    admitted = send_paced(nodes, key, 2 * value / 60 / used, seconds, lambda _: used)
    begin, end = min(sent for sent, _, _ in admitted), max(done for _, done, _ in admitted)
    part = len(admitted) * used / (value * (end - begin) / 60)
    print(f"sliding: {len(admitted) * used} of {value} {kind}/min in {end - begin:.0f} s, {part:.1%}")
    assert highest_window(admitted, 60, iter(sorted(sent for sent, _, _ in admitted))) <= value
    assert part >= MIN_ADMITTED, part
