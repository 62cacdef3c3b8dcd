"""Liveness and readiness probes under load. They respond at once, however large the bodies are that the gateway is
parsing.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import CHAT_PATH, RawConnection, chat_body

if TYPE_CHECKING:
    from tests.gateway import Gateway

pytestmark = pytest.mark.figures

MEGABYTES = 20
LARGE_BODIES = {
    "one picture": chat_body(x="QUJD" * (MEGABYTES * 250_000)),
    "many numbers": chat_body(x=[0.125] * (MEGABYTES * 140_000)),
    "much that is deep": chat_body(x="x" * 30).replace(
        b'"' + b"x" * 30 + b'"', b"[" + (b"[" * 100 + b"]" * 100 + b",") * (MEGABYTES * 5_000) + b"0]"
    ),
}


def send_until_over(url: str, body: bytes, over: threading.Event) -> None:
    with RawConnection(url, timeout=60) as connection:
        while not over.is_set():
            assert connection.request(CHAT_PATH, body).status == 200


def test_probes_respond_while_large_bodies_are_parsed(running_gateway: Gateway):
    over = threading.Event()
    senders = [
        threading.Thread(target=send_until_over, args=(running_gateway.base_url, body, over))
        for body in LARGE_BODIES.values()
    ]
    for sender in senders:
        sender.start()
    durations = []
    try:
        with RawConnection(running_gateway.base_url) as connection:
            for _ in range(100):
                for path in ("/live", "/ready"):
                    started = time.monotonic()
                    assert connection.request(path, headers={}).status == 200
                    durations.append(time.monotonic() - started)
                time.sleep(0.02)
    finally:
        over.set()
        for sender in senders:
            sender.join()
    durations.sort()
    figures = {
        "p50": durations[len(durations) // 2],
        "p99": durations[int(len(durations) * 0.99)],
        "max": durations[-1],
    }
    print({name: f"{seconds * 1000:.1f} ms" for name, seconds in figures.items()})
    # The limits include the client and other load on this machine. In an unoptimised build, parsing one of these bodies
    # takes seconds.
    assert figures["p99"] < 0.25
    assert figures["max"] < 1
