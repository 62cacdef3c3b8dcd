"""CPU core assignment, and measurement of the CPU time that unrelated processes use on the gateway's core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benches.compare.processes import TICKS, Tree, strangers


@dataclass(frozen=True)
class Cores:
    """The gateway has one core to itself. Load client, mock provider and this program share the other."""

    gateway: int
    load: int


def choose() -> Cores:
    """Returns the first two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        message = "two CPU cores are required: one for the gateway, one for load client and provider"
        raise SystemExit(message)
    return Cores(gateway=allowed[0], load=allowed[1])


def pin(core: int) -> None:
    """Pins this process, and all processes that it starts later, to one core."""
    os.sched_setaffinity(0, {core})


@dataclass(frozen=True)
class Reading:
    """CPU times in seconds of one core, of the gateway and of unrelated processes at one moment."""

    at: float
    busy: float
    stolen: float
    tree: float
    others: dict[int, float]


def read(core: int, tree: Tree | None) -> Reading:
    """Reads all clocks. The gateway's clock is read last, so that it is closest to the start of the work."""
    fields = _core_line(core)
    busy = sum(fields[i] for i in (0, 1, 2, 5, 6))
    others = strangers(os.getpid())
    return Reading(time.monotonic(), busy, fields[7], tree.cpu() if tree else 0.0, others)


def _core_line(core: int) -> list[float]:
    """Returns the core's times in seconds: user, nice, system, idle, iowait, irq, softirq, steal."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return [int(tick) / TICKS for tick in ticks]
    message = f"core {core} is not in /proc/stat"
    raise LookupError(message)


def foreign(before: Reading, after: Reading) -> float:
    """Returns the share of the core that other processes used between two readings.

    Takes the lower of two upper bounds and adds steal time. The first bound is the core's busy time beyond the
    gateway's CPU time, interrupts included. The second is the CPU time of all unrelated processes on any core.
    """
    seconds = max(after.at - before.at, 1e-9)
    beyond = (after.busy - before.busy) - (after.tree - before.tree)
    elsewhere = sum(max(0.0, now - before.others.get(pid, 0.0)) for pid, now in after.others.items())
    stolen = after.stolen - before.stolen
    return (max(0.0, min(beyond, elsewhere)) + stolen) / seconds
