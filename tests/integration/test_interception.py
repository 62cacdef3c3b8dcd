"""Requests are taken before they become Python tasks; this fails when they no longer are, and the other way works too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.serving import WAYS, counters, entry, running
from tests.integration.wire import CHAT, MOCK, Wire, ask, asked, chunked, request
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

INTERCEPTED, PLAIN = "penstock_requests_intercepted_total", "penstock_requests_plain_total"
METRICS = {"metrics": {"enabled": True}}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fresh(way: str, provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path, {"mock": {"host": provider.url}, **METRICS}, way) as gateway:
        yield gateway


def told(gateway: Gateway, count: int) -> tuple[float, float]:
    """How many were intercepted and how many not, once the engine has told of that many."""

    def look() -> tuple[float, float] | None:
        figures = counters(gateway)
        intercepted, plain = figures.get(INTERCEPTED, 0), figures.get(PLAIN, 0)
        return (intercepted, plain) if intercepted + plain >= count else None

    return wait("the engine's figures", look, 10)


def every_kind(gateway: Gateway, provider: Mock) -> None:
    """Whole, streamed, uploads of both framings, a refusal, a provider's error, a management path, a caller who leaves."""
    url = gateway.base_url
    assert ask(url, CHAT, asked()).status == 200
    assert ask(url, CHAT, asked(stream=True)).events[-1] == b"data: [DONE]"
    assert ask(url, "/v1/files", b"x" * 100_000, {**MOCK, "content-type": "text/plain"}).json()["body_bytes"] == 100_000
    framing = {"transfer-encoding": "chunked", "content-type": "text/plain"}
    assert ask(url, "/v1/files", chunked(b"a", b"bc"), {**MOCK, **framing}).json()["body_bytes"] == 3
    assert ask(url, CHAT, b"{").status == 400
    assert ask(url, CHAT, asked("mock?fault=429")).status == 429
    assert ask(url, "/v1/version", headers={}).status == 200
    provider.forget()
    with Wire(url) as wire:
        wire.send(request("POST", CHAT, MOCK, asked("mock?chunk_ms=50&chunks=1000", stream=True)))
        wire.events(wire.head(), 2)
    assert entry(provider, ended=True)["outcome"] == "client_closed"


def test_requests_are_taken_where_they_should_be(fresh: Gateway, provider: Mock, way: str):
    every_kind(fresh, provider)
    intercepted, plain = told(fresh, 8)
    if way == "intercepted":
        assert intercepted >= 8
        # Not one: a request that is not intercepted costs half as much again, and would go unnoticed.
        assert plain == 0, "requests are no longer intercepted; see what changed between Granian and the engine"
    else:
        assert (intercepted, plain >= 8) == (0, True)


def test_both_ways_leave_the_same_records(fresh: Gateway, provider: Mock):
    every_kind(fresh, provider)
    # In any order: a record waits until its tokens are counted.
    seen = sorted((record["outcome"], record["response_status_code"]) for record in fresh.records(7))
    assert seen == [("aborted", 200), *[("complete", 200)] * 4, ("complete", 429), ("refused", 400)]
