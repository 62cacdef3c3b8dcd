"""Measurement of one Redis fault under load: its effect on requests and the time to recovery."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from benches.compare.gateway import InvalidSample, RunningGateway
from loadtests.redis_faults.clients import CallResult

if TYPE_CHECKING:
    from loadtests.redis_faults.clients import LoadClient
    from loadtests.redis_faults.server import RedisServer

# Time until the gateway detects the fault. It exceeds the longest time that a request waits for Redis.
DETECTION_SECONDS = 1.5
RECOVERY_SECONDS, RECOVERY_AT_MOST = 2.0, 10.0
MAX_LINES_PER_CHANGE = 2
MAX_ADDED_MS = 1.0
# Workers report their counters once a second.
COUNTER_DELAY_SECONDS = 1.2


@dataclass(frozen=True)
class FaultLoad:
    """Duration and rate of the load. Latencies are checked only if `should_check_latency` is set, because other work on
    the machine increases them.
    """

    fault_seconds: float
    """Duration of each fault."""
    healthy_seconds: float
    """Duration of the load before each fault."""
    requests_per_second: float
    should_check_latency: bool = False


@dataclass(frozen=True)
class FaultResults:
    """Results of one fault."""

    fault: str
    worker_count: int
    sent_count: int
    failed_count: int
    slow_lookups: float
    log_lines: int
    recovery_seconds: float
    """Seconds from the end of the fault until all workers used Redis again."""
    healthy_p99_ms: float
    """p99 of the response times before the fault."""
    fault_p99_ms: float
    """p99 of the response times during the fault, after the gateway has detected it."""
    max_latency_ms: float
    should_check_latency: bool

    @property
    def violations(self) -> list[str]:
        """Returns the limits that were violated."""
        promises = {
            "a request failed": not self.failed_count,
            "more than one slow lookup per worker": self.slow_lookups <= self.worker_count,
            "more than two log lines per change": self.log_lines <= 2 * MAX_LINES_PER_CHANGE,
            "recovery took too long": self.recovery_seconds <= RECOVERY_SECONDS,
            "p99 rose": not self.should_check_latency or self.fault_p99_ms - self.healthy_p99_ms <= MAX_ADDED_MS,
        }
        return [promise for promise, is_met in promises.items() if not is_met]

    def __str__(self) -> str:
        return (
            f"{self.fault}: {self.failed_count} of {self.sent_count} failed, {self.slow_lookups:.0f} slow lookups by {self.worker_count} workers, "
            f"p99 {self.healthy_p99_ms:.1f} ms before and {self.fault_p99_ms:.1f} ms during it, maximum {self.max_latency_ms:.0f} ms, "
            f"recovered after {self.recovery_seconds:.2f} s, {self.log_lines} log lines"
        )


async def measure_fault(
    server: RedisServer, loaded: RunningGateway, client: LoadClient, fault: str, load: FaultLoad
) -> FaultResults:
    """Sends requests before, during and after the fault, until all workers have recovered."""
    workers = await _wait_for_workers(server, loaded, client)
    healthy_calls = await client.run_calls(load.healthy_seconds, load.requests_per_second)
    slow, lines = _count_slow_lookups(loaded), _count_log_lines(loaded)
    begin, end = server.faults[fault]
    started_at = time.monotonic()
    await begin()
    fault_calls = await client.run_calls(load.fault_seconds, load.requests_per_second)
    await end()
    after, recovered = await _wait_for_recovery(server, client, workers, load.requests_per_second)
    await asyncio.sleep(COUNTER_DELAY_SECONDS)
    noticed = [call for call in fault_calls if call.due_at > started_at + DETECTION_SECONDS] or fault_calls
    calls = [*healthy_calls, *fault_calls, *after]
    return FaultResults(
        fault=fault,
        worker_count=workers,
        sent_count=len(calls),
        failed_count=sum(call.status != 200 for call in calls),
        slow_lookups=_count_slow_lookups(loaded) - slow,
        log_lines=_count_log_lines(loaded) - lines,
        recovery_seconds=recovered,
        healthy_p99_ms=_p99_ms(healthy_calls),
        fault_p99_ms=_p99_ms(noticed),
        max_latency_ms=max(call.duration_seconds for call in calls) * 1000,
        should_check_latency=load.should_check_latency,
    )


async def _wait_for_workers(server: RedisServer, loaded: RunningGateway, client: LoadClient) -> int:
    """Waits until all workers use Redis and returns their number. Raises `InvalidSample` if they do not."""
    workers = sum(map(_is_edge_process, loaded.process_tree.member_pids())) if loaded.process_tree else 0
    _, elapsed = await _wait_for_recovery(server, client, workers, 100)
    if not workers or elapsed > RECOVERY_AT_MOST:
        message = f"not all {workers} workers use Redis"
        raise InvalidSample(message)
    return workers


def _is_edge_process(pid: int) -> bool:
    """Returns true if the process has an engine thread."""
    names = Path(f"/proc/{pid}/task").glob("*/comm")
    return any(name.read_text().strip() == "penstock-engine" for name in names)


async def _wait_for_recovery(
    server: RedisServer, client: LoadClient, workers: int, rate: float
) -> tuple[list[CallResult], float]:
    """Sends requests until all workers use Redis. Returns the results and the seconds that it took."""
    started_at, calls, users = time.monotonic(), list[CallResult](), set[str]()
    while (elapsed := time.monotonic() - started_at) < RECOVERY_AT_MOST and len(users) < workers:
        calls += await client.run_calls(0.05, rate)
        users |= await server.active_client_ids()
    return calls, elapsed


def _count_slow_lookups(loaded: RunningGateway) -> float:
    """Returns the number of Redis lookups of all workers that timed out."""
    with urllib.request.urlopen(f"http://{loaded.host}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return sum(
        sample.value for family in families for sample in family.samples if sample.name == "penstock_redis_slow_total"
    )


def _count_log_lines(loaded: RunningGateway) -> int:
    return len((loaded.launch.folder / "output.log").read_text(errors="replace").splitlines())


def _p99_ms(calls: list[CallResult]) -> float:
    times = sorted(call.duration_seconds for call in calls)
    return times[int(len(times) * 0.99)] * 1000
