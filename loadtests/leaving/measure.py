"""Measurement of client disconnects.

Opens all requests, cancels them one after the other, and times when the provider's sockets see each disconnect.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtests.leaving.callers import DisconnectingClient, Http1Client, Http2Client
from loadtests.leaving.provider import TAG_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loadtests.leaving.provider import Provider

P50_MS, P99_MS, MAX_MS = 2.0, 20.0, 100.0
ARRIVE_SECONDS, SETTLE_SECONDS, HEAR_SECONDS = 30.0, 0.25, 2.0


@dataclass(frozen=True)
class DisconnectLoad:
    """Number of concurrent clients, and how many of them disconnect per second."""

    callers: int
    rate: float


@dataclass
class DisconnectResults:
    """Results of disconnecting in one phase with one kind of client."""

    phase: str
    client_kind: str
    callers: int
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
        all_told = len(self.latencies_ms) == self.callers
        return (
            all_told
            and self.percentile_ms(0.5) <= P50_MS
            and self.percentile_ms(0.99) <= P99_MS
            and self.percentile_ms(1) <= MAX_MS
        )

    def row_cells(self) -> list[str]:
        times = [f"{self.percentile_ms(part):.2f}" if self.latencies_ms else "–" for part in (0.5, 0.99, 1)]
        return [self.client_kind, self.phase, str(self.callers), str(len(self.latencies_ms)), *times]

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
    provider: Provider, client: DisconnectingClient, case: tuple[str, str], crowd: DisconnectLoad
) -> DisconnectResults:
    """Starts all requests, waits until the provider has received them, then cancels them at the rate of this load."""
    phase, name = case
    figures = DisconnectResults(phase, name, crowd.callers)
    provider.arrived.clear()
    provider.left.clear()
    callers = {}
    for number in range(crowd.callers):
        tag = f"{phase}-{number}"
        callers[tag] = await client.start_request(phase, tag)
    if not await wait_until(lambda: len(provider.arrived) == crowd.callers, ARRIVE_SECONDS):
        message = f"{phase}, {name}: only {len(provider.arrived)} of {crowd.callers} arrived at the provider"
        raise TimeoutError(message)
    await _wait_until_blocked(provider)
    if provider.left:
        message = f"{phase}, {name}: {len(provider.left)} requests ended before any client disconnected"
        raise ConnectionError(message)
    moments = {}
    begin = time.perf_counter()
    for number, (tag, caller) in enumerate(callers.items()):
        await asyncio.sleep(max(0.0, begin + number / crowd.rate - time.perf_counter()))
        moments[tag] = time.perf_counter()
        caller.cancel()
    await wait_until(lambda: len(provider.left) == crowd.callers, HEAR_SECONDS)
    figures.latencies_ms = [
        (provider.left[tag] - remaining) * 1000 for tag, remaining in moments.items() if tag in provider.left
    ]
    for caller in callers.values():
        caller.close()
    return figures


async def _wait_until_blocked(provider: Provider) -> None:
    """Waits until no connection accepts more data of a flood; then all of them are under backpressure."""
    poured, end = -1, time.perf_counter() + ARRIVE_SECONDS
    while poured != provider.poured and time.perf_counter() < end:
        poured = provider.poured
        await asyncio.sleep(SETTLE_SECONDS)


async def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Polls a condition and returns true if it becomes true in time."""
    for _ in range(int(seconds * 100)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return False


def render_table(figures: Sequence[DisconnectResults]) -> str:
    heads = ["way", "phase", "callers", "told", "p50 ms", "p99 ms", "max ms"]
    lines = [heads, ["---"] * len(heads), *(figure.row_cells() for figure in figures)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
