"""Measurement of client disconnects.

Opens all requests, cancels them one after the other, and times when the provider's sockets see each disconnect.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtests.leaving.callers import OverHttp1, OverHttp2, Way
from loadtests.leaving.provider import TAG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loadtests.leaving.provider import Provider

P50_MS, P99_MS, MAX_MS = 2.0, 20.0, 100.0
ARRIVE_SECONDS, SETTLE_SECONDS, HEAR_SECONDS = 30.0, 0.25, 2.0


@dataclass(frozen=True)
class Crowd:
    """Number of concurrent clients, and how many of them disconnect per second."""

    callers: int
    rate: float


@dataclass
class Figures:
    """Results of disconnecting in one phase with one kind of client."""

    phase: str
    way: str
    callers: int
    milliseconds: list[float] = field(default_factory=list)

    def at(self, part: float) -> float:
        """Returns the latency below which this share of the noticed disconnects lies, in milliseconds. NaN if there are
        none.
        """
        known = sorted(self.milliseconds)
        return known[min(len(known) - 1, int(len(known) * part))] if known else float("nan")

    @property
    def kept(self) -> bool:
        """True if the provider noticed all disconnects within the latency targets."""
        all_told = len(self.milliseconds) == self.callers
        return all_told and self.at(0.5) <= P50_MS and self.at(0.99) <= P99_MS and self.at(1) <= MAX_MS

    def cells(self) -> list[str]:
        times = [f"{self.at(part):.2f}" if self.milliseconds else "–" for part in (0.5, 0.99, 1)]
        return [self.way, self.phase, str(self.callers), str(len(self.milliseconds)), *times]

    def __str__(self) -> str:
        return " · ".join(self.cells())


def ways(url: str, headers: Mapping[str, str]) -> dict[str, Way]:
    plain = {name: value for name, value in headers.items() if name not in {"content-type", "content-length"}}
    plain["x-gateway-forward-headers"] = TAG
    return {
        "HTTP/1 FIN": OverHttp1(url, plain, reset=False),
        "HTTP/1 RST": OverHttp1(url, plain, reset=True),
        "HTTP/2 RST_STREAM": OverHttp2(url, plain),
    }


async def measure(provider: Provider, way: Way, case: tuple[str, str], crowd: Crowd) -> Figures:
    """Starts all requests, waits until the provider has received them, then cancels them at the rate of this load."""
    phase, name = case
    figures = Figures(phase, name, crowd.callers)
    provider.arrived.clear()
    provider.left.clear()
    callers = {}
    for number in range(crowd.callers):
        tag = f"{phase}-{number}"
        callers[tag] = await way.call(phase, tag)
    if not await until(lambda: len(provider.arrived) == crowd.callers, ARRIVE_SECONDS):
        message = f"{phase}, {name}: only {len(provider.arrived)} of {crowd.callers} arrived at the provider"
        raise TimeoutError(message)
    await _until_quiet(provider)
    if provider.left:
        message = f"{phase}, {name}: {len(provider.left)} requests ended before any client disconnected"
        raise ConnectionError(message)
    moments = {}
    begin = time.perf_counter()
    for number, (tag, caller) in enumerate(callers.items()):
        await asyncio.sleep(max(0.0, begin + number / crowd.rate - time.perf_counter()))
        moments[tag] = time.perf_counter()
        caller.leave()
    await until(lambda: len(provider.left) == crowd.callers, HEAR_SECONDS)
    figures.milliseconds = [(provider.left[tag] - left) * 1000 for tag, left in moments.items() if tag in provider.left]
    for caller in callers.values():
        caller.close()
    return figures


async def _until_quiet(provider: Provider) -> None:
    """Waits until no connection accepts more data of a flood; then all of them are under backpressure."""
    poured, end = -1, time.perf_counter() + ARRIVE_SECONDS
    while poured != provider.poured and time.perf_counter() < end:
        poured = provider.poured
        await asyncio.sleep(SETTLE_SECONDS)


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Polls a condition and returns true if it becomes true in time."""
    for _ in range(int(seconds * 100)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return False


def table(figures: Sequence[Figures]) -> str:
    heads = ["way", "phase", "callers", "told", "p50 ms", "p99 ms", "max ms"]
    lines = [heads, ["---"] * len(heads), *(one.cells() for one in figures)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
