"""CPU time and memory of a process tree, read from the operating system's counters."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KERNEL_THREADS = 2


@dataclass(frozen=True)
class Process:
    """One entry of the process table."""

    pid: int
    parent: int
    session: int
    reaped: float
    """CPU seconds of children that ended and were waited for."""
    started: int
    """Ticks since the machine's own start: with the id it names a process for good."""


def table() -> dict[int, Process]:
    """Returns all running processes by process id."""
    found = (_read(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {process.pid: process for process in found if process}


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name is in parentheses and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    reaped = (int(fields[13]) + int(fields[14])) / TICKS
    return Process(pid, int(fields[1]), int(fields[3]), reaped, int(fields[19]))


def clock(pid: int) -> float:
    """Returns the CPU seconds of all threads of one process, in nanosecond resolution (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def descendants(root: int, running: dict[int, Process]) -> set[int]:
    """Returns the process, all its descendants, and the other processes of the session that it leads."""
    members = {root} | {p.pid for p in running.values() if p.session == root}
    while True:
        grown = members | {p.pid for p in running.values() if p.parent in members}
        if grown == members:
            return members & running.keys()
        members = grown


@dataclass(frozen=True)
class Tree:
    """Process tree of a gateway: the started process and all its descendants."""

    root: int

    def members(self) -> set[int]:
        return descendants(self.root, table())

    def cpu(self) -> float:
        """Returns the CPU seconds used so far, including those of exited members."""
        running = table()
        return sum(clock(pid) + running[pid].reaped for pid in descendants(self.root, running))

    def memory_kb(self) -> int:
        """Returns the proportional set size in KiB; pages shared within the tree count once."""
        return sum(_pss(pid) for pid in self.members())


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def strangers(ours: int) -> dict[int, float]:
    """Returns the CPU seconds of every process that is not a descendant of `ours`, without kernel threads."""
    running = table()
    mine = descendants(ours, running)
    return {
        process.pid: clock(process.pid) + process.reaped
        for process in running.values()
        if process.pid not in mine and KERNEL_THREADS not in (process.pid, process.parent)
    }
