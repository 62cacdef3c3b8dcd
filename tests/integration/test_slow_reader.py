"""A client that does not read costs little, holds the provider back, and loses nothing when it reads again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import memory
from tests.integration.serving import ENTRY_MODES, edge_pids, run_gateway, wait_for_request
from tests.integration.wire import CHAT, JSON, MESSAGES, MOCK, Wire, ask, asked, request
from tests.processes import wait

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

CLIENTS = 50
PER_CLIENT = 256 * memory.KIB
SMALL_BUFFER = 4096
# 400 MB: more than any kernel buffers on the way.
ENDLESS = "mock?chunks=100000&chunk_bytes=4096"
# Sockets' buffers on both legs, generously.
MOST_UNDER_WAY = 24 * memory.MIB


def stuck(served: Gateway, body: bytes) -> Wire:
    wire = Wire(served.base_url, receive_buffer=SMALL_BUFFER)
    wire.send(request("POST", CHAT, MOCK, body))
    return wire


def sent(mock: Mock) -> list[int]:
    return [seen["bytes_sent"] for seen in mock.ledger()]


def wait_pushed_back(mock: Mock, count: int = 1) -> list[int]:
    """Wait until that many answers have begun and nothing more was sent for a while."""
    last, since = [], time.monotonic()

    def look() -> list[int] | None:
        nonlocal last, since
        now = sent(mock)
        if now != last or len(now) < count or not all(now):
            last, since = now, time.monotonic()
        return now if time.monotonic() - since > 0.7 else None

    return wait("the provider pushed back on", look, 20)


@pytest.mark.parametrize(
    "body", [asked(ENDLESS, stream=True), asked("mock?answer_bytes=16000000")], ids=["stream", "whole"]
)
def test_a_client_that_never_reads_costs_little(served: Gateway, provider: Mock, body: bytes):
    (edge,) = edge_pids(served)
    is_stream = b'"stream": true' in body
    # A large whole answer is the provider's own 16 MB each: few must do. As many went before, so that what
    # allocators take once is there already.
    count, warming = (CLIENTS, 5) if is_stream else (8, 8)
    known = len(served.records(0))
    with contextlib.ExitStack() as warm:
        for _ in range(warming):
            warm.enter_context(stuck(served, body))
        wait_pushed_back(provider, warming)
    wait("the first ones gone", lambda: all(seen["outcome"] != "open" for seen in provider.ledger()) or None)
    # With their records their tokens are counted, and the vocabulary is there that takes its memory once.
    served.records(known + warming)
    provider.clear_ledger()
    before = memory.rss(edge)
    with contextlib.ExitStack() as wires:
        for _ in range(count):
            wires.enter_context(stuck(served, body))
        amounts = wait_pushed_back(provider, count)
        grown = (memory.rss(edge) - before) / count
        assert max(amounts) < MOST_UNDER_WAY
        assert grown <= PER_CLIENT, f"{grown / memory.KIB:.0f} KiB for each client"
        # Others are served as if nothing were.
        assert ask(served.base_url, CHAT, asked()).status == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_client_that_reads_again_gets_everything(served: Gateway, provider: Mock, path: str):
    body = asked("mock?chunks=8000&chunk_bytes=4096", stream=True)
    direct = ask(provider.url, path, body, JSON)
    provider.clear_ledger()
    with Wire(served.base_url, receive_buffer=SMALL_BUFFER) as wire:
        wire.send(request("POST", path, MOCK, body))
        (under_way,) = wait_pushed_back(provider)
        assert under_way < len(direct.body)
        answer = wire.answer()
        assert (answer.status, answer.end, answer.lasting == direct.lasting) == (200, "chunk", True)
    assert wait_for_request(provider, ended=True)["outcome"] == "complete"


def test_a_client_that_reads_slowly_is_not_cut(served: Gateway, provider: Mock):
    body = asked("mock?chunks=2000&chunk_bytes=4096", stream=True)
    direct = ask(provider.url, CHAT, body, JSON)
    with Wire(served.base_url, receive_buffer=SMALL_BUFFER) as wire:
        wire.send(request("POST", CHAT, MOCK, body))
        answer = wire.head()
        got = bytearray()
        for number, piece in enumerate(wire.pieces(answer)):
            got += piece
            if number < 40:
                time.sleep(0.02)
    answer.body = bytes(got)
    assert (answer.end, answer.lasting == direct.lasting) == ("chunk", True)


def is_held(served: Gateway, wire: Wire) -> bool:
    """Whether the gateway's side of a connection is there still, by the kernel's own list."""
    ends = (int(served.base_url.rsplit(":", 1)[1]), wire.socket.getsockname()[1])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return ends in [tuple(int(end.rsplit(":", 1)[1], 16) for end in line.split()[1:3]) for line in lines]


@pytest.mark.parametrize("size", [20_000_000, 1_000_000, 200_000])
def test_a_client_that_reads_nothing_of_a_whole_answer_is_cut(provider: Mock, tmp_path: Path, size: int):
    tables = {"mock": {"host": provider.url}, "server": {"write_stall_ms": 500}}
    with run_gateway(tmp_path, tables) as served, stuck(served, asked(f"mock?answer_bytes={size}")) as wire:
        wait_for_request(provider)
        assert is_held(served, wire)
        wait("the connection's end", lambda: not is_held(served, wire) or None, 15)
        assert served.records(1)[0]["outcome"] in ({"complete"} if size < 1_000_000 else {"aborted", "cut", "complete"})
        assert ask(served.base_url, CHAT, asked()).status == 200
        assert wire.answer().end == "broken"


@pytest.mark.parametrize("way", ENTRY_MODES)
def test_a_client_that_reads_nothing_for_too_long_is_cut(provider: Mock, tmp_path: Path, way: str):
    tables = {"mock": {"host": provider.url}, "server": {"write_stall_ms": 500}}
    with run_gateway(tmp_path, tables, way) as served:
        with stuck(served, asked(ENDLESS, stream=True)) as wire:
            seen = wait_for_request(provider, ended=True, seconds=15)
            assert seen["outcome"] == "client_closed"
            assert seen["bytes_sent"] < MOST_UNDER_WAY
            # Reading at last, the client learns that this is not all.
            assert wire.answer().end == "broken"
        (record,) = served.records(1)
        assert record["outcome"] in {"aborted", "cut"}
        assert not record["is_success"]
        assert ask(served.base_url, CHAT, asked()).status == 200
