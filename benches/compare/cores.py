"""Which core works for whom, and how much of a core was used by somebody else."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benches.compare.processes import TICKS, Tree, strangers


@dataclass(frozen=True)
class Cores:
    """The gateway has one core to itself; load client, provider and this program share another."""

    gateway: int
    load: int


def choose() -> Cores:
    """The first two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        message = "two cores are needed: one for the gateway, one for load and provider"
        raise SystemExit(message)
    return Cores(gateway=allowed[0], load=allowed[1])


def pin(core: int) -> None:
    """Move this process, and what it will start, to one core."""
    os.sched_setaffinity(0, {core})


@dataclass(frozen=True)
class Reading:
    """The clocks of one core and of the gateway on it at one moment."""

    at: float
    busy: float
    stolen: float
    tree: float
    others: dict[int, float]


def read(core: int, tree: Tree | None) -> Reading:
    """Read the gateway's clock last before work and so closest to it."""
    fields = _core_line(core)
    busy = sum(fields[i] for i in (0, 1, 2, 5, 6))
    others = strangers(os.getpid())
    return Reading(time.monotonic(), busy, fields[7], tree.cpu() if tree else 0.0, others)


def _core_line(core: int) -> list[float]:
    """user nice system idle iowait irq softirq steal, in seconds."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return [int(tick) / TICKS for tick in ticks]
    message = f"core {core} is not in /proc/stat"
    raise LookupError(message)


def foreign(before: Reading, after: Reading) -> float:
    """The share of the core that went to others.

    Two upper bounds, of which the lower counts: what the core did beyond the gateway (interrupts
    included), and what all strangers did on any core.
    """
    seconds = max(after.at - before.at, 1e-9)
    beyond = (after.busy - before.busy) - (after.tree - before.tree)
    elsewhere = sum(max(0.0, now - before.others.get(pid, 0.0)) for pid, now in after.others.items())
    stolen = after.stolen - before.stolen
    return (max(0.0, min(beyond, elsewhere)) + stolen) / seconds
