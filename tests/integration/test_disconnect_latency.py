"""Latency of disconnect detection, in every phase and over each protocol. `python -m loadtests.disconnects` measures the
exact figures.
"""

from __future__ import annotations

import asyncio
import collections
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from loadtests.disconnects.clients import Http2Client
from loadtests.disconnects.measure import DisconnectResults, make_clients, measure_disconnects, wait_until
from loadtests.disconnects.provider import PHASES, TAG_HEADER, Provider
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, RawConnection, chat_body, encode_request
from tests.integration.serving import ENTRY_MODES, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.figures

# Limits of the median and of the maximum. The promised limits are 2 and 100 ms, but this process is also provider and
# client, and adds its own pauses.
USUALLY_MS, AT_MOST_MS = 20, 300
PROVIDER_HEADERS = {"x-gateway-provider": "mock", "authorization": "Bearer sk-provider"}
METERED_PHASES = {"flowing", "paused", "pushed back"}


@dataclass
class SmallRun:
    clients: int = 40
    rate: float = 200.0


def run_with_gateway(folder: Path, entry_mode: str, work: Callable[[Provider, Gateway], Awaitable[None]]) -> None:
    """Starts a provider and a gateway, and runs `work` with both."""

    async def run_provider_and_gateway() -> None:
        provider = Provider()
        async with provider.listen():
            serving = run_gateway(folder, {"mock": {"host": provider.url}}, entry_mode)
            gateway = await asyncio.to_thread(serving.__enter__)
            try:
                await work(provider, gateway)
            finally:
                await asyncio.to_thread(serving.__exit__, None, None, None)

    asyncio.run(run_provider_and_gateway())


def records_by_phase(gateway: Gateway, count: int) -> dict[str, list[dict[str, Any]]]:
    """Returns all records grouped by phase, once there are `count` of them."""
    by_phase = collections.defaultdict(list)
    for record in gateway.records(count, 10):
        by_phase[record["ai_model"] or "uploading"].append(record)
    return by_phase


@pytest.mark.parametrize("disconnect_kind", ["HTTP/1 FIN", "HTTP/1 RST", "HTTP/2 RST_STREAM"])
@pytest.mark.parametrize("entry_mode", ENTRY_MODES)
def test_provider_sees_the_disconnect_in_every_phase(tmp_path: Path, entry_mode: str, disconnect_kind: str):
    async def disconnect_in_every_phase(provider: Provider, gateway: Gateway) -> None:
        figures: list[DisconnectResults] = []
        for phase in PHASES:
            leavers = make_clients(gateway.base_url, PROVIDER_HEADERS)[disconnect_kind]
            figures.append(await measure_disconnects(provider, leavers, (phase, disconnect_kind), SmallRun()))
        for item in figures:
            print(item)
        assert not [str(figure) for figure in figures if len(figure.latencies_ms) < figure.callers]
        assert not [
            str(figure)
            for figure in figures
            if figure.percentile_ms(0.5) > USUALLY_MS or figure.percentile_ms(1) > AT_MOST_MS
        ]
        written = await asyncio.to_thread(records_by_phase, gateway, len(PHASES) * SmallRun.callers)
        for phase in PHASES:
            outcomes = [record["outcome"] for record in written[phase]]
            assert outcomes == ["aborted"] * SmallRun.callers, phase
            units = {record.get("total_units") for record in written[phase]}
            assert units == ({10} if phase in METERED_PHASES else {None}), phase

    run_with_gateway(tmp_path, entry_mode, disconnect_in_every_phase)


def test_closing_an_http2_connection_ends_all_its_streams(tmp_path: Path):
    async def close_connection(provider: Provider, gateway: Gateway) -> None:
        client = Http2Client(gateway.base_url, {**PROVIDER_HEADERS, "x-gateway-forward-headers": TAG_HEADER})
        streams = [await client.start_request("paused", f"paused-{number}") for number in range(20)]
        assert await wait_until(lambda: len(provider.arrived) == 20, 5)
        await asyncio.sleep(0.1)
        streams[0].close()
        assert await wait_until(lambda: len(provider.left) == 20, 5), f"{len(provider.left)} of 20"

    run_with_gateway(tmp_path, "intercepted", close_connection)


def test_half_closed_connection_counts_as_disconnected(running_gateway: Gateway, provider: Mock):
    """The server cannot distinguish a client that has finished sending from one that has disconnected; see
    docs/timeouts.md.
    """
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?first_ms=30000")))
        wait_for("it at the provider", lambda: provider.ledger() or None)
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.read_response().status == 0
    wait_for("its end", lambda: provider.ledger()[0]["outcome"] == "client_closed" or None)
