"""Jumps of the system date while gateways serve requests. Expiry follows the date; nothing else is affected."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from joserfc import jws
from joserfc.jwk import RSAKey

from tests.integration import nodes
from tests.integration.management_client import Client
from tests.integration.nodes import CACHED_CONFIG, breaker_config, create_node_folders, wait_for_redis
from tests.integration.raw_http import chat_body
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory
    from tests.integration.raw_http import Response
    from tests.redis_server import RedisServer

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

HOUR, DAY = 3600, 86_400
CLOCK_OFFSETS_SECONDS = (0, HOUR, -HOUR, DAY, -DAY, 0)
SKEW_SECONDS = 300
STEADY, BRIEF = "pk-steady-0123456789", "pk-brief-0123456789"
MOCK_CONFIG = {"provider": "mock"}
# The test may take longer than the shortest cooldown.
BREAKER_CONFIG = breaker_config(2, cooldown_ms=600_000)
STICKY_CONFIG = {
    "strategy": {
        "mode": "loadbalance",
        "sticky_session": {"enabled": True, "hash_fields": ["metadata.user"], "ttl": 60},
    },
    "targets": [{**MOCK_CONFIG, "override_params": {"model": f"mock?chunks={count}"}} for count in (1, 2, 3, 4)],
}
RETRY_AFTER_CONFIG = {
    **MOCK_CONFIG,
    "retry": {"attempts": 1, "on_status_codes": [429], "use_retry_after_headers": True},
}


class FakeClock:
    """System date as one gateway sees it, with an offset from the machine's; the monotonic clock is unchanged."""

    def __init__(self, file: Path) -> None:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            raise FileNotFoundError("libfaketime is missing; hint: make test")
        self._file = file
        self.set_offset(0)
        self.env = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set_offset(self, seconds: int) -> None:
        """Sets the offset in seconds atomically, so that no process reads half of it."""
        self.ahead = seconds
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}")
        draft.rename(self._file)

    def now(self) -> float:
        return time.time() + self.ahead


@dataclass
class TokenSigner:
    """Signs tokens as an identity provider does."""

    key: RSAKey
    claims: dict[str, Any]

    def sign(self, **claims: float) -> str:
        claim_set = {**self.claims, **{name: int(at) for name, at in claims.items()}}
        head = {"alg": "RS256", "kid": "one", "typ": "JWT"}
        return jws.serialize_compact(head, json.dumps(claim_set), self.key, algorithms=["RS256"])


def send_as_user(gateway: Gateway, config: object, body: bytes, key: str = STEADY) -> Response:
    return nodes.send_with_config(gateway, config, body, metadata='{"user": "ann"}', api_key=key)


class LoadGenerator:
    """Clients that send requests continuously, and the unexpected responses that they got."""

    def __init__(self, nodes: list[Gateway]) -> None:
        self.nodes = nodes
        self.sent = 0
        self.wrong: list[object] = []
        self._over = threading.Event()
        self._sticks = {self._used_option(send_as_user(node, STICKY_CONFIG, chat_body())) for node in nodes}

    @staticmethod
    def _used_option(response: Response) -> str | None:
        return response.get_header("x-gateway-last-used-option-index")

    def _send_round(self, node: Gateway) -> None:
        plain, stream = (
            send_as_user(node, MOCK_CONFIG, chat_body()),
            send_as_user(node, MOCK_CONFIG, chat_body(stream=True)),
        )
        remaining, guarded, stuck = (
            send_as_user(node, CACHED_CONFIG, chat_body()),
            send_as_user(node, BREAKER_CONFIG, chat_body()),
            send_as_user(node, STICKY_CONFIG, chat_body()),
        )
        content = {
            "statuses": [response.status for response in (plain, stream, remaining, guarded, stuck)],
            "stream": stream.events[-1],
            "kept": remaining.get_header("x-gateway-cache-status"),
            "guarded": self._used_option(guarded),
            "stuck": {self._used_option(stuck)},
        }
        expected = {
            "statuses": [200] * 5,
            "stream": b"data: [DONE]",
            "kept": "HIT",
            "guarded": "config.targets[1]",
            "stuck": self._sticks,
        }
        self.sent += 5
        if content != expected:
            self.wrong.append(content)

    def _run_client(self, turn: int) -> None:
        while not self._over.is_set():
            turn += 1
            self._send_round(self.nodes[turn % len(self.nodes)])

    @contextmanager
    def run_in_background(self) -> Generator[None]:
        with ThreadPoolExecutor(4) as pool:
            calling = [pool.submit(self._run_client, caller) for caller in range(4)]
            try:
                yield
            finally:
                self._over.set()
            for call in calling:
                call.result(20)


def measure_retry_wait(gateway: Gateway) -> float:
    """Returns how many seconds the gateway waits for a provider's `retry-after`."""
    began = time.monotonic()
    assert send_as_user(gateway, RETRY_AFTER_CONFIG, chat_body("mock?status=429&retry_after=0.3")).status == 429
    return time.monotonic() - began


def management_status(item: Gateway, token: str) -> int:
    """Returns the status of a management API response to this token."""
    return Client(item, token).get("/v1/configs").status


def check_expiry(item: Gateway, date: FakeClock, born: float, tokens: TokenSigner) -> None:
    """Checks what expires or becomes valid by date: keys and tokens, equally on both planes."""
    half_an_hour = born + HOUR / 2
    is_over, is_early = date.now() > half_an_hour, date.now() < born - HOUR / 2
    assert send_as_user(item, MOCK_CONFIG, chat_body(), BRIEF).status == (401 if is_over else 200)
    for claims, status in (
        ({"exp": date.now() + 120}, 200),
        ({"exp": date.now() - 30}, 200),
        ({"exp": date.now() - 90}, 401),
        ({"exp": half_an_hour}, 401 if is_over else 200),
        ({"exp": born + 10 * DAY, "nbf": born}, 401 if is_early else 200),
    ):
        token = tokens.sign(**claims)
        assert send_as_user(item, MOCK_CONFIG, chat_body(), token).status == status, (claims, date.ahead)
        # The management API caches a verified token for one second.
        wait_for(
            f"{status} for {claims} {date.ahead}",
            lambda token=token, status=status: management_status(item, token) == status or None,
            2,
        )
    assert 0.25 < measure_retry_wait(item) < 3


@pytest.mark.slow(48)
def test_clock_jumps_under_load_affect_only_expiry(
    tmp_path: Path, provider: Mock, redis: RedisServer, new_store: StoreFactory
):
    key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
    born = time.time()
    keys = [{"name": "steady", "key": STEADY}, {"name": "brief", "key": BRIEF, "expires_at": int(born + HOUR / 2)}]
    # A clock jump does not end these waits, so they can be long enough for a busy machine.
    store = {"acquire_ms": 10_000, "statement_ms": 20_000}
    tables: dict[str, Any] = {
        "mock": {"host": provider.url},
        "keys": keys,
        "metrics": {"enabled": True},
        "store": store,
    }
    jwks = json.dumps({"keys": [key.as_dict(private=False)]})
    rules = {"enabled": True, "jwks": jwks, "leeway_seconds": 60}
    first_node, second_node = create_node_folders(tmp_path)
    date, other = FakeClock(first_node / "date"), FakeClock(second_node / "date")
    other.set_offset(SKEW_SECONDS)
    env = {"REDIS_URL": redis.url}
    with (
        run_gateway(first_node, {**tables, "jwt": rules}, env={**env, **new_store(first_node), **date.env}) as first,
        run_gateway(second_node, tables, env={**env, **other.env}) as second,
    ):
        admin = Client(first)
        workspace = admin.create("/v1/workspaces", {"name": "tokens"})
        claims = {"organisation_id": workspace["organisation_id"], "workspace_slug": workspace["slug"], "sub": "m"}
        tokens = TokenSigner(key, {**claims, "scope": "completions.write configs.list"})
        token = tokens.sign(exp=born + DAY)
        wait_for("the workspace", lambda: send_as_user(first, MOCK_CONFIG, chat_body(), token).status == 200 or None, 5)
        for node in (first, second):
            wait_for_redis(node)
            wait_for("an answer", lambda node=node: is_cache_hit(node), 5)
            for _ in range(3):
                assert send_as_user(node, BREAKER_CONFIG, chat_body()).status == 200
        failed = len(failed_requests(provider))
        load = LoadGenerator([first, second])
        with load.run_in_background():
            for leap in CLOCK_OFFSETS_SECONDS:
                date.set_offset(leap)
                sent = load.sent
                check_expiry(first, date, born, tokens)
                assert admin.get("/v1/workspaces").status == 200
                wait_for("some load", lambda sent=sent: load.sent > sent + 20 or None, 20)
        assert not load.wrong, load.wrong[:3]
        # The cooldown of the circuit breaker is real time; a clock jump does not count.
        assert len(failed_requests(provider)) == failed
        date.set_offset(DAY)
        send_as_user(first, MOCK_CONFIG, chat_body())
        check_record_times(first, load.sent // 2, date)


def is_cache_hit(node: Gateway) -> bool | None:
    return send_as_user(node, CACHED_CONFIG, chat_body()).get_header("x-gateway-cache-status") == "HIT" or None


def failed_requests(provider: Mock) -> list[dict[str, Any]]:
    return [entry for entry in provider.ledger() if entry["model"] == "mock?status=503"]


def check_record_times(node: Gateway, count: int, date: FakeClock) -> None:
    """Checks that records have creation times by the system date, and durations that no clock jump affects."""
    records = node.records(count)
    last = max(datetime.fromisoformat(record["created_at"]).timestamp() for record in records)
    assert abs(last - date.now()) < 60
    assert len({record["id"] for record in records}) == len(records)
    for record in records:
        assert 0 <= record["response_time"] < 20_000, record
        assert record.get("time_to_first_byte", 0) >= 0
        assert record.get("upstream_response_time", 0) >= 0
