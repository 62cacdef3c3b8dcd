"""Slow-client attacks. The gateway closes each slow connection within its limit and still serves other clients."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.figures

ATTACKER_COUNT = 150
LIMIT_SECONDS = 2.0
LIMIT_MS = int(LIMIT_SECONDS * 1000)
LARGE_RESPONSE_BODY = chat_body("mock?response_bytes=20000000")


@dataclass
class SlowAttack:
    """Bytes that are sent at once, bytes that follow each second, and whether the attacker reads responses."""

    initial_bytes: bytes
    repeated_bytes: bytes = b""
    reads_response: bool = True


ATTACKS = {
    "nothing is sent": SlowAttack(b""),
    "a preface that never ends": SlowAttack(b"PRI"),
    "slow headers": SlowAttack(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n", b"x-a: b\r\n"),
    "a slow body": SlowAttack(
        encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "4096"}, b"{"), b" "
    ),
    "a body of which nothing comes": SlowAttack(
        encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "4096"})
    ),
    "slow chunks": SlowAttack(
        encode_request("POST", "/v1/files", {**MOCK_HEADERS, "transfer-encoding": "chunked"}), b"1\r\n \r\n"
    ),
    "slow reading": SlowAttack(
        encode_request("POST", CHAT_PATH, MOCK_HEADERS, LARGE_RESPONSE_BODY), reads_response=False
    ),
    "ranges": SlowAttack(
        encode_request("GET", "/live", {"range": "bytes=0-," + ",".join(f"5-{end}" for end in range(5, 1000))}) * 5
    ),
}


@pytest.fixture(scope="module")
def timeout_gateway(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("slow")
    tables = {
        "mock": {"host": provider.url},
        "server": {"header_timeout_ms": LIMIT_MS, "keep_alive_ms": LIMIT_MS},
        "limits": {"body_idle_ms": LIMIT_MS, "body_grace_ms": LIMIT_MS},
    }
    with run_gateway(folder, tables, engine={"write_stall_ms": LIMIT_MS}) as gateway:
        yield gateway


@contextlib.contextmanager
def open_attackers(url: str, attack: SlowAttack, count: int) -> Iterator[list[RawConnection]]:
    """Opens `count` connections and sends the first bytes of the attack on each."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(RawConnection(url, receive_buffer=4096)) for _ in range(count)]
        for connection in connections:
            connection.send(attack.initial_bytes)
            connection.socket.setblocking(False)
        yield connections


def measure_close_seconds(connections: list[RawConnection], attack: SlowAttack, at_most: float) -> list[float]:
    """Continues the attack; returns the seconds after which the gateway closed each connection."""
    started = time.monotonic()
    ended: dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            # A client that does not read sees the close only as an error of the socket.
            selector.register(connection.socket, selectors.EVENT_READ if attack.reads_response else 0)
        following = started + 1
        while len(ended) < len(connections) and (now := time.monotonic()) < started + at_most:
            for key, _ in selector.select(min(0.1, following - now) if following > now else 0):
                with contextlib.suppress(BlockingIOError):
                    if is_closed(key.fileobj):
                        ended[key.fileobj] = time.monotonic() - started
                        selector.unregister(key.fileobj)
            if time.monotonic() >= following:
                following += 1
                for connection in connections:
                    if attack.repeated_bytes and connection.socket not in ended:
                        with contextlib.suppress(OSError):
                            connection.socket.send(attack.repeated_bytes)
    return list(ended.values())


def is_closed(end: object) -> bool:
    assert isinstance(end, socket.socket)
    try:
        return not end.recv(65536)
    except ConnectionError:
        return True


def measure_request_seconds(url: str, count: int) -> list[float]:
    """Returns the sorted durations of ordinary requests, in seconds."""
    durations = []
    for _ in range(count):
        started = time.monotonic()
        assert send_raw_request(url, CHAT_PATH, chat_body()).status == 200
        durations.append(time.monotonic() - started)
    return sorted(durations)


@pytest.mark.parametrize("name", ATTACKS)
def test_closes_slow_clients_and_serves_others(timeout_gateway: Gateway, name: str):
    attack = ATTACKS[name]
    count = 20 if not attack.reads_response else ATTACKER_COUNT
    alone = measure_request_seconds(timeout_gateway.base_url, 60)
    with open_attackers(timeout_gateway.base_url, attack, count) as connections:
        during_attack = measure_request_seconds(timeout_gateway.base_url, 60)
        # Ordinary requests must not wait for the attackers. The limit is loose, because timings vary on a busy machine.
        assert during_attack[int(len(during_attack) * 0.95)] < max(4 * alone[int(len(alone) * 0.95)], 0.1)
        if attack.reads_response:
            ended = measure_close_seconds(connections, attack, LIMIT_SECONDS * 2 + 4)
            assert len(ended) == count
            assert max(ended) < LIMIT_SECONDS * 2 + 3
    assert send_raw_request(timeout_gateway.base_url, CHAT_PATH, chat_body()).status == 200


def test_connections_in_use_stay_open_past_the_idle_limit(timeout_gateway: Gateway):
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(RawConnection(timeout_gateway.base_url)) for _ in range(50)]
        for _ in range(3):
            for connection in connections:
                assert connection.request(CHAT_PATH, chat_body()).status == 200
            time.sleep(LIMIT_SECONDS / 2)
