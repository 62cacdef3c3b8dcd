"""CPU core assignment, and measurement of the CPU time that unrelated processes use on the gateway's core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benches.compare.processes import TICKS_PER_SECOND, ProcessTree, unrelated_cpu_seconds


@dataclass(frozen=True)
class CoreAssignment:
    """The gateway has one core to itself. Load client, mock provider and this program share the other."""

    gateway: int
    load_client: int


def choose_cores() -> CoreAssignment:
    """Returns the first two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        message = "two CPU cores are required: one for the gateway, one for load client and provider"
        raise SystemExit(message)
    return CoreAssignment(gateway=allowed[0], load_client=allowed[1])


def pin_to_core(core: int) -> None:
    """Pins this process, and all processes that it starts later, to one core."""
    os.sched_setaffinity(0, {core})


@dataclass(frozen=True)
class CpuReading:
    """CPU times in seconds of one core, of the gateway and of unrelated processes at one moment."""

    timestamp: float
    busy_seconds: float
    steal_seconds: float
    gateway_cpu_seconds: float
    other_cpu_seconds: dict[int, float]


def read_cpu(core: int, tree: ProcessTree | None) -> CpuReading:
    """Reads all clocks. The gateway's clock is read last, so that it is closest to the start of the work."""
    fields = _read_core_times(core)
    busy = sum(fields[i] for i in (0, 1, 2, 5, 6))
    others = unrelated_cpu_seconds(os.getpid())
    return CpuReading(time.monotonic(), busy, fields[7], tree.cpu_seconds() if tree else 0.0, others)


def _read_core_times(core: int) -> list[float]:
    """Returns the core's times in seconds: user, nice, system, idle, iowait, irq, softirq, steal."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return [int(tick) / TICKS_PER_SECOND for tick in ticks]
    message = f"core {core} is not in /proc/stat"
    raise LookupError(message)


def foreign_share(before: CpuReading, after: CpuReading) -> float:
    """Returns the share of the core that other processes used between two readings.

    Takes the lower of two upper bounds and adds steal time. The first bound is the core's busy time beyond the
    gateway's CPU time, interrupts included. The second is the CPU time of all unrelated processes on any core.
    """
    seconds = max(after.timestamp - before.timestamp, 1e-9)
    other_busy_seconds = (after.busy_seconds - before.busy_seconds) - (
        after.gateway_cpu_seconds - before.gateway_cpu_seconds
    )
    elsewhere = sum(
        max(0.0, now - before.other_cpu_seconds.get(pid, 0.0)) for pid, now in after.other_cpu_seconds.items()
    )
    stolen = after.steal_seconds - before.steal_seconds
    return (max(0.0, min(other_busy_seconds, elsewhere)) + stolen) / seconds
