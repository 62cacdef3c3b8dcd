"""The machine's date leaps while gateways work: what ends by the date ends, and nothing else notices."""

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

from joserfc import jws
from joserfc.jwk import RSAKey

from tests.integration import nodes
from tests.integration.managed import Client
from tests.integration.nodes import KEPT, connected, folders, guarded
from tests.integration.serving import running
from tests.integration.wire import asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import NewStore
    from tests.integration.wire import Answer
    from tests.redis_server import RedisServer

HOUR, DAY = 3600, 86_400
LEAPS = (0, HOUR, -HOUR, DAY, -DAY, 0)
SKEW = 300
STEADY, BRIEF = "pk-steady-0123456789", "pk-brief-0123456789"
MOCK = {"provider": "mock"}
GUARDED = guarded(2)
STICKY = {
    "strategy": {
        "mode": "loadbalance",
        "sticky_session": {"enabled": True, "hash_fields": ["metadata.user"], "ttl": 60},
    },
    "targets": [{**MOCK, "override_params": {"model": f"mock?chunks={count}"}} for count in (1, 2, 3, 4)],
}
PATIENT = {**MOCK, "retry": {"attempts": 1, "on_status_codes": [429], "use_retry_after_headers": True}}


class Date:
    """The date as one gateway sees it, so far from the machine's own; waits are not touched."""

    def __init__(self, file: Path) -> None:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            raise FileNotFoundError("libfaketime is missing; hint: make test")
        self._file = file
        self.leap(0)
        self.env = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def leap(self, seconds: int) -> None:
        """In one step: nobody must read half of it."""
        self.ahead = seconds
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}")
        draft.rename(self._file)

    def now(self) -> float:
        return time.time() + self.ahead


@dataclass
class Tokens:
    """What an identity provider signs."""

    key: RSAKey
    claims: dict[str, Any]

    def signed(self, **claims: float) -> str:
        said = {**self.claims, **{name: int(at) for name, at in claims.items()}}
        head = {"alg": "RS256", "kid": "one", "typ": "JWT"}
        return jws.serialize_compact(head, json.dumps(said), self.key, algorithms=["RS256"])


def send(gateway: Gateway, config: object, body: bytes, key: str = STEADY) -> Answer:
    return nodes.send(gateway, config, body, metadata='{"user": "ann"}', api_key=key)


class Load:
    """Callers who ask all the time, and what they were told that they should not have been."""

    def __init__(self, nodes: list[Gateway]) -> None:
        self.nodes = nodes
        self.sent = 0
        self.wrong: list[object] = []
        self._over = threading.Event()
        self._sticks = {self._option(send(node, STICKY, asked())) for node in nodes}

    @staticmethod
    def _option(answer: Answer) -> str | None:
        return answer.get("x-gateway-last-used-option-index")

    def _round(self, node: Gateway) -> None:
        plain, stream = send(node, MOCK, asked()), send(node, MOCK, asked(stream=True))
        kept, guarded, stuck = send(node, KEPT, asked()), send(node, GUARDED, asked()), send(node, STICKY, asked())
        said = {
            "statuses": [answer.status for answer in (plain, stream, kept, guarded, stuck)],
            "stream": stream.events[-1],
            "kept": kept.get("x-gateway-cache-status"),
            "guarded": self._option(guarded),
            "stuck": {self._option(stuck)},
        }
        expected = {
            "statuses": [200] * 5,
            "stream": b"data: [DONE]",
            "kept": "HIT",
            "guarded": "config.targets[1]",
            "stuck": self._sticks,
        }
        self.sent += 5
        if said != expected:
            self.wrong.append(said)

    def _call(self, turn: int) -> None:
        while not self._over.is_set():
            turn += 1
            self._round(self.nodes[turn % len(self.nodes)])

    @contextmanager
    def beside(self) -> Generator[None]:
        with ThreadPoolExecutor(4) as pool:
            calling = [pool.submit(self._call, caller) for caller in range(4)]
            try:
                yield
            finally:
                self._over.set()
            for call in calling:
                call.result(20)


def patience(gateway: Gateway) -> float:
    """How long a provider's `retry-after` is waited for."""
    began = time.monotonic()
    assert send(gateway, PATIENT, asked("mock?status=429&retry_after=0.3")).status == 429
    return time.monotonic() - began


def told(one: Gateway, token: str) -> int:
    """The status of the management plane's answer."""
    return Client(one, token).get("/v1/configs").status


def judge(one: Gateway, date: Date, born: float, tokens: Tokens) -> None:
    """What ends, or begins, by the date: keys and tokens, alike on both planes."""
    half_an_hour = born + HOUR / 2
    is_over, is_early = date.now() > half_an_hour, date.now() < born - HOUR / 2
    assert send(one, MOCK, asked(), BRIEF).status == (401 if is_over else 200)
    for claims, status in (
        ({"exp": date.now() + 120}, 200),
        ({"exp": date.now() - 30}, 200),
        ({"exp": date.now() - 90}, 401),
        ({"exp": half_an_hour}, 401 if is_over else 200),
        ({"exp": born + 10 * DAY, "nbf": born}, 401 if is_early else 200),
    ):
        token = tokens.signed(**claims)
        assert send(one, MOCK, asked(), token).status == status, (claims, date.ahead)
        # It remembers for a second whom it knows.
        wait(
            f"{status} for {claims} {date.ahead}",
            lambda token=token, status=status: told(one, token) == status or None,
            2,
        )
    assert 0.25 < patience(one) < 3


def test_leaps_of_the_date_under_load_end_what_ends_by_the_date_and_nothing_else(
    tmp_path: Path, provider: Mock, redis: RedisServer, new_store: NewStore
):
    key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
    born = time.time()
    keys = [{"name": "steady", "key": STEADY}, {"name": "brief", "key": BRIEF, "expires_at": int(born + HOUR / 2)}]
    tables: dict[str, Any] = {"mock": {"host": provider.url}, "keys": keys, "metrics": {"enabled": True}}
    jwks = json.dumps({"keys": [key.as_dict(private=False)]})
    rules = {"enabled": True, "jwks": jwks, "leeway_seconds": 60}
    here, there = folders(tmp_path)
    date, other = Date(here / "date"), Date(there / "date")
    other.leap(SKEW)
    env = {"REDIS_URL": redis.url}
    with (
        running(here, {**tables, "jwt": rules}, env={**env, **new_store(here), **date.env}) as one,
        running(there, tables, env={**env, **other.env}) as two,
    ):
        admin = Client(one)
        workspace = admin.made("/v1/workspaces", {"name": "tokens"})
        claims = {"organisation_id": workspace["organisation_id"], "workspace_slug": workspace["slug"], "sub": "m"}
        tokens = Tokens(key, {**claims, "scope": "completions.write configs.list"})
        token = tokens.signed(exp=born + DAY)
        wait("the workspace", lambda: send(one, MOCK, asked(), token).status == 200 or None, 5)
        for node in (one, two):
            connected(node)
            wait("an answer", lambda node=node: hit(node), 5)
            for _ in range(3):
                assert send(node, GUARDED, asked()).status == 200
        failed = len(asked_in_vain(provider))
        load = Load([one, two])
        with load.beside():
            for leap in LEAPS:
                date.leap(leap)
                sent = load.sent
                judge(one, date, born, tokens)
                assert admin.get("/v1/workspaces").status == 200
                wait("some load", lambda sent=sent: load.sent > sent + 20 or None, 20)
        assert not load.wrong, load.wrong[:3]
        # The one who tries comes after half a minute of real time, and no leap is one.
        assert len(asked_in_vain(provider)) == failed
        date.leap(DAY)
        send(one, MOCK, asked())
        told_in_order(one, load.sent // 2, date)


def hit(node: Gateway) -> bool | None:
    return send(node, KEPT, asked()).get("x-gateway-cache-status") == "HIT" or None


def asked_in_vain(provider: Mock) -> list[dict[str, Any]]:
    return [entry for entry in provider.ledger() if entry["model"] == "mock?status=503"]


def told_in_order(node: Gateway, count: int, date: Date) -> None:
    """Records know when they were made, by the date, and how long all took, by no date."""
    records = node.records(count)
    last = max(datetime.fromisoformat(record["created_at"]).timestamp() for record in records)
    assert abs(last - date.now()) < 60
    assert len({record["id"] for record in records}) == len(records)
    for record in records:
        assert 0 <= record["response_time"] < 20_000, record
        assert record.get("time_to_first_byte", 0) >= 0
        assert record.get("upstream_response_time", 0) >= 0
