"""A caller who leaves is missed at once, in every phase and way; the figures proper come from `python -m loadtests.leaving`."""

from __future__ import annotations

import asyncio
import collections
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from loadtests.leaving.callers import OverHttp2
from loadtests.leaving.measure import Figures, measure, until, ways
from loadtests.leaving.provider import PHASES, TAG, Provider
from tests.integration.serving import WAYS, running
from tests.integration.wire import CHAT, MOCK, Wire, asked, request
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.alone

# The promise is 2, 20 and 100 ms; this process is provider and callers as well, and has its own pauses.
USUALLY_MS, AT_MOST_MS = 20, 300
HEADERS = {"x-gateway-provider": "mock", "authorization": "Bearer sk-provider"}
METERED = {"flowing", "paused", "pushed back"}


@dataclass
class Few:
    callers: int = 40
    rate: float = 200.0


def with_gateway(folder: Path, way: str, work: Callable[[Provider, Gateway], Awaitable[None]]) -> None:
    """Be the provider of a gateway, and its callers."""

    async def both() -> None:
        provider = Provider()
        async with provider.listening():
            serving = running(folder, {"mock": {"host": provider.url}}, way)
            gateway = await asyncio.to_thread(serving.__enter__)
            try:
                await work(provider, gateway)
            finally:
                await asyncio.to_thread(serving.__exit__, None, None, None)

    asyncio.run(both())


def records(gateway: Gateway, count: int) -> dict[str, list[dict[str, Any]]]:
    """All records by their phase, once there are so many."""
    by_phase = collections.defaultdict(list)
    for record in gateway.records(count, 10):
        by_phase[record["ai_model"] or "uploading"].append(record)
    return by_phase


@pytest.mark.parametrize("leaving", ["HTTP/1 FIN", "HTTP/1 RST", "HTTP/2 RST_STREAM"])
@pytest.mark.parametrize("way", WAYS)
def test_the_provider_hears_of_it_in_every_phase(tmp_path: Path, way: str, leaving: str):
    async def leave(provider: Provider, gateway: Gateway) -> None:
        figures: list[Figures] = []
        for phase in PHASES:
            leavers = ways(gateway.base_url, HEADERS)[leaving]
            figures.append(await measure(provider, leavers, (phase, leaving), Few()))
        for one in figures:
            print(one)
        assert not [str(one) for one in figures if len(one.milliseconds) < one.callers]
        assert not [str(one) for one in figures if one.at(0.5) > USUALLY_MS or one.at(1) > AT_MOST_MS]
        written = await asyncio.to_thread(records, gateway, len(PHASES) * Few.callers)
        for phase in PHASES:
            outcomes = [record["outcome"] for record in written[phase]]
            assert outcomes == ["aborted"] * Few.callers, phase
            units = {record.get("total_units") for record in written[phase]}
            assert units == ({10} if phase in METERED else {None}), phase

    with_gateway(tmp_path, way, leave)


def test_the_end_of_a_connection_ends_all_its_streams(tmp_path: Path):
    async def leave(provider: Provider, gateway: Gateway) -> None:
        way = OverHttp2(gateway.base_url, {**HEADERS, "x-gateway-forward-headers": TAG})
        streams = [await way.call("paused", f"paused-{number}") for number in range(20)]
        assert await until(lambda: len(provider.arrived) == 20, 5)
        await asyncio.sleep(0.1)
        streams[0].close()
        assert await until(lambda: len(provider.left) == 20, 5), f"{len(provider.left)} of 20"

    with_gateway(tmp_path, "intercepted", leave)


def test_half_a_connection_is_none(served: Gateway, provider: Mock):
    """The server tells no difference between a caller who has no more to say and one who has left; docs/time.md says so."""
    with Wire(served.base_url) as wire:
        wire.send(request("POST", CHAT, MOCK, asked("mock?first_ms=30000")))
        wait("it at the provider", lambda: provider.ledger() or None)
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.answer().status == 0
    wait("its end", lambda: provider.ledger()[0]["outcome"] == "client_closed" or None)
