"""CPU time and memory of a tree of processes, from the operating system's own clocks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KERNEL_THREADS = 2


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    reaped: float
    """CPU seconds of children that ended and were waited for."""
    started: int
    """Ticks since the machine's own start: with the id it names a process for good."""


def table() -> dict[int, Process]:
    """Everything that runs now, by process id."""
    found = (_read(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {process.pid: process for process in found if process}


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name stands in brackets and may hold spaces and brackets itself.
    fields = text.rpartition(")")[2].split()
    reaped = (int(fields[13]) + int(fields[14])) / TICKS
    return Process(pid, int(fields[1]), int(fields[3]), reaped, int(fields[19]))


def clock(pid: int) -> float:
    """CPU seconds of one process, all its threads, to the nanosecond (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def descendants(root: int, running: dict[int, Process]) -> set[int]:
    """The process, its children and theirs, and who else is in the session it leads."""
    members = {root} | {p.pid for p in running.values() if p.session == root}
    while True:
        grown = members | {p.pid for p in running.values() if p.parent in members}
        if grown == members:
            return members & running.keys()
        members = grown


@dataclass(frozen=True)
class Tree:
    """A gateway as the operating system sees it: the process that was started and all below."""

    root: int

    def members(self) -> set[int]:
        return descendants(self.root, table())

    def cpu(self) -> float:
        """CPU seconds so far, those of members that ended included."""
        running = table()
        return sum(clock(pid) + running[pid].reaped for pid in descendants(self.root, running))

    def memory_kb(self) -> int:
        """Proportional set size: pages shared within the tree count once."""
        return sum(_pss(pid) for pid in self.members())


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def strangers(ours: int) -> dict[int, float]:
    """CPU seconds of every process that does not descend from `ours`, kernel threads left out."""
    running = table()
    mine = descendants(ours, running)
    return {
        process.pid: clock(process.pid) + process.reaped
        for process in running.values()
        if process.pid not in mine and KERNEL_THREADS not in (process.pid, process.parent)
    }
