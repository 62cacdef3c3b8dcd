"""Measurement of client disconnects.

Opens all requests, cancels them one after the other, and times when the provider's sockets see each disconnect.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtests.disconnects.clients import DisconnectingClient, Http1Client, Http2Client
from loadtests.disconnects.provider import TAG_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loadtests.disconnects.provider import Provider

P50_MS, P99_MS, MAX_MS = 2.0, 20.0, 100.0
ARRIVE_SECONDS, SETTLE_SECONDS, NOTICE_SECONDS = 30.0, 0.25, 2.0


@dataclass(frozen=True)
class DisconnectLoad:
    """Number of concurrent clients, and how many of them disconnect per second."""

    clients: int
    rate: float


@dataclass
class DisconnectResults:
    """Results of disconnecting in one phase with one kind of client."""

    phase: str
    client_kind: str
    clients: int
    latencies_ms: list[float] = field(default_factory=list)

    def percentile_ms(self, part: float) -> float:
        """Returns the latency below which this share of the noticed disconnects lies, in milliseconds. NaN if there are
        none.
        """
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")

    @property
    def meets_targets(self) -> bool:
        """True if the provider noticed all disconnects within the latency targets."""
        is_complete = len(self.latencies_ms) == self.clients
        return (
            is_complete
            and self.percentile_ms(0.5) <= P50_MS
            and self.percentile_ms(0.99) <= P99_MS
            and self.percentile_ms(1) <= MAX_MS
        )

    def row_cells(self) -> list[str]:
        times = [f"{self.percentile_ms(part):.2f}" if self.latencies_ms else "–" for part in (0.5, 0.99, 1)]
        return [self.client_kind, self.phase, str(self.clients), str(len(self.latencies_ms)), *times]

    def __str__(self) -> str:
        return " · ".join(self.row_cells())


def make_clients(url: str, headers: Mapping[str, str]) -> dict[str, DisconnectingClient]:
    plain = {name: value for name, value in headers.items() if name not in {"content-type", "content-length"}}
    plain["x-gateway-forward-headers"] = TAG_HEADER
    return {
        "HTTP/1 FIN": Http1Client(url, plain, reset=False),
        "HTTP/1 RST": Http1Client(url, plain, reset=True),
        "HTTP/2 RST_STREAM": Http2Client(url, plain),
    }


async def measure_disconnects(
    provider: Provider, client: DisconnectingClient, case: tuple[str, str], load: DisconnectLoad
) -> DisconnectResults:
    """Starts all requests, waits until the provider has received them, then cancels them at the rate of this load."""
    phase, name = case
    figures = DisconnectResults(phase, name, load.clients)
    provider.arrived.clear()
    provider.left.clear()
    requests = {}
    for number in range(load.clients):
        tag = f"{phase}-{number}"
        requests[tag] = await client.start_request(phase, tag)
    if not await wait_until(lambda: len(provider.arrived) == load.clients, ARRIVE_SECONDS):
        message = f"{phase}, {name}: only {len(provider.arrived)} of {load.clients} arrived at the provider"
        raise TimeoutError(message)
    await _wait_until_blocked(provider)
    if provider.left:
        message = f"{phase}, {name}: {len(provider.left)} requests ended before any client disconnected"
        raise ConnectionError(message)
    cancelled_at = {}
    begin = time.perf_counter()
    for number, (tag, request) in enumerate(requests.items()):
        await asyncio.sleep(max(0.0, begin + number / load.rate - time.perf_counter()))
        cancelled_at[tag] = time.perf_counter()
        request.cancel()
    await wait_until(lambda: len(provider.left) == load.clients, NOTICE_SECONDS)
    figures.latencies_ms = [
        (provider.left[tag] - cancelled) * 1000 for tag, cancelled in cancelled_at.items() if tag in provider.left
    ]
    for request in requests.values():
        request.close()
    return figures


async def _wait_until_blocked(provider: Provider) -> None:
    """Waits until no connection accepts more data of a flood; then all of them are under backpressure."""
    flooded_chunks, end = -1, time.perf_counter() + ARRIVE_SECONDS
    while flooded_chunks != provider.flooded_chunks and time.perf_counter() < end:
        flooded_chunks = provider.flooded_chunks
        await asyncio.sleep(SETTLE_SECONDS)


async def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Polls a condition and returns true if it becomes true in time."""
    for _ in range(int(seconds * 100)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return False


def render_table(figures: Sequence[DisconnectResults]) -> str:
    heads = ["client", "phase", "clients", "noticed", "p50 ms", "p99 ms", "max ms"]
    lines = [heads, ["---"] * len(heads), *(figure.row_cells() for figure in figures)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
