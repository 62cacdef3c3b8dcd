"""Measurement of one Redis fault under load: its effect on requests and the time to recovery."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from benches.compare.gateway import Gateway, Invalid
from loadtests.sharing.callers import Call

if TYPE_CHECKING:
    from loadtests.sharing.callers import Callers
    from loadtests.sharing.server import Server

# Time until the gateway detects the fault. It exceeds the longest time that a request waits for Redis.
NOTICED_SECONDS = 1.5
RECOVERY_SECONDS, RECOVERY_AT_MOST = 2.0, 10.0
LINES = 2
ADDED_MS = 1.0
# Workers report their counters once a second.
TOLD_SECONDS = 1.2


@dataclass(frozen=True)
class Load:
    """Duration and rate of the load. Latencies are checked only if `should_check_latency` is set, because other work on
    the machine increases them.
    """

    seconds: float
    """So long each fault lasts."""
    well: float
    """So long all is well before."""
    rate: float
    strict: bool = False


@dataclass(frozen=True)
class Figures:
    """Results of one fault."""

    fault: str
    workers: int
    sent: int
    failed: int
    slow: float
    lines: int
    recovered: float
    """Seconds until all workers used it again."""
    well_ms: float
    """Within which 99 % were answered before."""
    ill_ms: float
    """The same during the fault, once it was noticed."""
    longest_ms: float
    strict: bool

    @property
    def wrong(self) -> list[str]:
        """Returns the limits that were violated."""
        promises = {
            "a request failed": not self.failed,
            "more than one slow lookup per worker": self.slow <= self.workers,
            "more than two log lines per change": self.lines <= 2 * LINES,
            "recovery took too long": self.recovered <= RECOVERY_SECONDS,
            "p99 rose": not self.strict or self.ill_ms - self.well_ms <= ADDED_MS,
        }
        return [promise for promise, kept in promises.items() if not kept]

    def __str__(self) -> str:
        return (
            f"{self.fault}: {self.failed} of {self.sent} failed, {self.slow:.0f} slow look-ups of {self.workers} workers, "
            f"p99 {self.well_ms:.1f} ms before and {self.ill_ms:.1f} ms during it, longest {self.longest_ms:.0f} ms, "
            f"well again after {self.recovered:.2f} s, {self.lines} lines in the log"
        )


async def measure(server: Server, loaded: Gateway, callers: Callers, fault: str, load: Load) -> Figures:
    """Sends requests before, during and after the fault, until all workers have recovered."""
    workers = await _settled(server, loaded, callers)
    well = await callers.call_for(load.well, load.rate)
    slow, lines = _slow(loaded), _lines(loaded)
    begin, end = server.faults[fault]
    began = time.monotonic()
    await begin()
    ill = await callers.call_for(load.seconds, load.rate)
    await end()
    after, recovered = await _recovery(server, callers, workers, load.rate)
    await asyncio.sleep(TOLD_SECONDS)
    noticed = [call for call in ill if call.due > began + NOTICED_SECONDS] or ill
    calls = [*well, *ill, *after]
    return Figures(
        fault=fault,
        workers=workers,
        sent=len(calls),
        failed=sum(call.status != 200 for call in calls),
        slow=_slow(loaded) - slow,
        lines=_lines(loaded) - lines,
        recovered=recovered,
        well_ms=_p99(well),
        ill_ms=_p99(noticed),
        longest_ms=max(call.seconds for call in calls) * 1000,
        strict=load.strict,
    )


async def _settled(server: Server, loaded: Gateway, callers: Callers) -> int:
    """Waits until all workers use Redis and returns their number. Raises `InvalidSample` if they do not."""
    workers = sum(map(_is_edge, loaded.tree.members())) if loaded.tree else 0
    _, took = await _recovery(server, callers, workers, 100)
    if not workers or took > RECOVERY_AT_MOST:
        message = f"not all {workers} workers use Redis"
        raise Invalid(message)
    return workers


def _is_edge(pid: int) -> bool:
    """Returns true if the process has an engine thread."""
    names = Path(f"/proc/{pid}/task").glob("*/comm")
    return any(name.read_text().strip() == "penstock-engine" for name in names)


async def _recovery(server: Server, callers: Callers, workers: int, rate: float) -> tuple[list[Call], float]:
    """Sends requests until all workers use Redis. Returns the results and the seconds that it took."""
    began, calls, users = time.monotonic(), list[Call](), set[str]()
    while (took := time.monotonic() - began) < RECOVERY_AT_MOST and len(users) < workers:
        calls += await callers.call_for(0.05, rate)
        users |= await server.users()
    return calls, took


def _slow(loaded: Gateway) -> float:
    """Returns the number of Redis lookups of all workers that timed out."""
    with urllib.request.urlopen(f"http://{loaded.host}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(sample.value for one in families for sample in one.samples if sample.name == "penstock_redis_slow_total")


def _lines(loaded: Gateway) -> int:
    return len((loaded.stand.folder / "output.log").read_text(errors="replace").splitlines())


def _p99(calls: list[Call]) -> float:
    times = sorted(call.seconds for call in calls)
    return times[int(len(times) * 0.99)] * 1000
