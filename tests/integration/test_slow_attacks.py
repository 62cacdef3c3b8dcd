"""Callers who hold connections open by being slow: each is cut within its limit, and the others do not notice."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.integration.serving import run_gateway
from tests.integration.wire import CHAT, MOCK, Wire, ask, asked, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.alone

EACH = 150
LIMIT_SECONDS = 2.0
LIMIT_MS = int(LIMIT_SECONDS * 1000)
LARGE = asked("mock?answer_bytes=20000000")


@dataclass
class Attack:
    """What is sent at once, what each second after it, and whether answers are read."""

    first: bytes
    then: bytes = b""
    reads: bool = True


ATTACKS = {
    "nothing is sent": Attack(b""),
    "a preface that never ends": Attack(b"PRI"),
    "slow headers": Attack(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n", b"x-a: b\r\n"),
    "a slow body": Attack(request("POST", CHAT, {**MOCK, "content-length": "4096"}, b"{"), b" "),
    "a body of which nothing comes": Attack(request("POST", CHAT, {**MOCK, "content-length": "4096"})),
    "slow chunks": Attack(request("POST", "/v1/files", {**MOCK, "transfer-encoding": "chunked"}), b"1\r\n \r\n"),
    "slow reading": Attack(request("POST", CHAT, MOCK, LARGE), reads=False),
    "ranges": Attack(
        request("GET", "/live", {"range": "bytes=0-," + ",".join(f"5-{end}" for end in range(5, 1000))}) * 5
    ),
}


@pytest.fixture(scope="module")
def limited(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("slow")
    tables = {
        "mock": {"host": provider.url},
        "server": {"header_timeout_ms": LIMIT_MS, "keep_alive_ms": LIMIT_MS},
        "limits": {"body_idle_ms": LIMIT_MS, "body_grace_ms": LIMIT_MS},
    }
    with run_gateway(folder, tables, engine={"write_stall_ms": LIMIT_MS}) as gateway:
        yield gateway


@contextlib.contextmanager
def attackers(url: str, attack: Attack, count: int) -> Iterator[list[Wire]]:
    """Connections that have begun to attack."""
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(url, receive_buffer=4096)) for _ in range(count)]
        for wire in wires:
            wire.send(attack.first)
            wire.socket.setblocking(False)
        yield wires


def cut_after(wires: list[Wire], attack: Attack, at_most: float) -> list[float]:
    """Go on as the attack does, and note when each connection was ended by the other side."""
    started = time.monotonic()
    ended: dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            # Who does not read learns of the end from the socket's error alone.
            selector.register(wire.socket, selectors.EVENT_READ if attack.reads else 0)
        following = started + 1
        while len(ended) < len(wires) and (now := time.monotonic()) < started + at_most:
            for key, _ in selector.select(min(0.1, following - now) if following > now else 0):
                with contextlib.suppress(BlockingIOError):
                    if is_over(key.fileobj):
                        ended[key.fileobj] = time.monotonic() - started
                        selector.unregister(key.fileobj)
            if time.monotonic() >= following:
                following += 1
                for wire in wires:
                    if attack.then and wire.socket not in ended:
                        with contextlib.suppress(OSError):
                            wire.socket.send(attack.then)
    return list(ended.values())


def is_over(end: object) -> bool:
    assert isinstance(end, socket.socket)
    try:
        return not end.recv(65536)
    except ConnectionError:
        return True


def healthy(url: str, count: int) -> list[float]:
    """How long ordinary requests take."""
    took = []
    for _ in range(count):
        started = time.monotonic()
        assert ask(url, CHAT, asked()).status == 200
        took.append(time.monotonic() - started)
    return sorted(took)


@pytest.mark.parametrize("name", ATTACKS)
def test_attackers_are_cut_and_others_are_served(limited: Gateway, name: str):
    attack = ATTACKS[name]
    count = 20 if not attack.reads else EACH
    alone = healthy(limited.base_url, 60)
    with attackers(limited.base_url, attack, count) as wires:
        beside = healthy(limited.base_url, 60)
        # A second connection must not be what is waited for; figures of a busy machine are rough.
        assert beside[int(len(beside) * 0.95)] < max(4 * alone[int(len(alone) * 0.95)], 0.1)
        if attack.reads:
            ended = cut_after(wires, attack, LIMIT_SECONDS * 2 + 4)
            assert len(ended) == count
            assert max(ended) < LIMIT_SECONDS * 2 + 3
    assert ask(limited.base_url, CHAT, asked()).status == 200


def test_many_idle_connections_stay_within_their_limit_while_they_are_used(limited: Gateway):
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(limited.base_url)) for _ in range(50)]
        for _ in range(3):
            for wire in wires:
                assert wire.ask(CHAT, asked()).status == 200
            time.sleep(LIMIT_SECONDS / 2)
