"""Jumps of the system date while limits count: no window admits more than its limit, and a new one begins when it should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.nodes import wait_for_redis
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, Response, send_raw_request
from tests.integration.serving import edge_pids, run_gateway
from tests.integration.test_clock import DAY, FakeClock
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.redis_server import RedisServer

ONE_STORE = True
LIMIT = 6
RATE_LIMIT = {"rate_limits": [{"type": "requests", "unit": "rpd", "value": LIMIT}]}
BUDGET = {"usage_limits": {"type": "requests", "credit_limit": LIMIT, "periodic_reset_days": 2}}


def send_chat(gateway: Gateway, key: str) -> Response:
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5})
    headers = {"x-gateway-api-key": key, "x-gateway-provider": "mock", **JSON_HEADERS}
    return send_raw_request(gateway.base_url, CHAT_PATH, body.encode(), headers)


def count_admitted(gateway: Gateway, key: str, rejected: int) -> int:
    """Sends more requests than a limit admits. The others must be rejected with a time to wait."""
    responses = [send_chat(gateway, key) for _ in range(LIMIT + 2)]
    assert {response.status for response in responses} <= {200, rejected}
    for response in responses:
        if response.status == rejected:
            assert int(response.get_header("retry-after") or 0) > 0
    return [response.status for response in responses].count(200)


@pytest.mark.slow(30)
@pytest.mark.parametrize("is_shared", [False, True], ids=["node", "redis"])
def test_jumps_of_the_clock_admit_no_more_than_the_limit(
    tmp_path: Path, provider: Mock, redis: RedisServer, is_shared: bool
):
    clock = FakeClock(tmp_path / "date")
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, **clock.env}
    if is_shared:
        env["REDIS_URL"] = redis.url
    store = {"acquire_ms": 10_000, "statement_ms": 20_000}
    tables: dict[str, Any] = {
        "mock": {"host": provider.url},
        "server": {"workers": 1},
        "metrics": {"enabled": True},
        "store": store,
        # A busy machine must not look like a Redis that is lost.
        "redis": {"wait_ms": 1000},
    }
    run_init(tmp_path, env)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        edge_pids(gateway, 1)
        if is_shared:
            wait_for_redis(gateway)
        admin = Client(gateway)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        inside = {"workspace_id": workspace["id"], "scopes": ["completions.write"]}
        for limits, rejected, length in ((RATE_LIMIT, 429, 1), (BUDGET, 412, 2)):
            caller = admin.with_new_key(**inside, **limits)
            url, headers = gateway.base_url, {"x-gateway-api-key": caller.key, "x-gateway-provider": "mock"}
            wait_for(
                "the key",
                lambda url=url, headers=headers: (
                    send_raw_request(url, CHAT_PATH, b"{", {**headers, **JSON_HEADERS}).status == 400 or None
                ),
            )
            start = clock.ahead
            assert count_admitted(gateway, caller.key, rejected) == LIMIT
            # The next window, then back into the one that is used up, then the window after the next.
            for days, expected in ((1, LIMIT), (0, 0), (1, 0), (2, LIMIT), (-3, 0), (2, 0)):
                clock.set_offset(start + days * length * DAY)
                admitted = 0
                if expected:
                    # The control process publishes the start of a later period.
                    key = caller.key
                    wait_for("the window", lambda key=key: send_chat(gateway, key).status == 200 or None, 30)
                    admitted = 1
                admitted += count_admitted(gateway, caller.key, rejected)
                assert admitted == expected, (limits, days)
