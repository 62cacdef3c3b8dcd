"""CPU time and memory of a process tree, read from the operating system's counters."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
KTHREADD_PID = 2


@dataclass(frozen=True)
class ProcessInfo:
    """One entry of the process table."""

    pid: int
    parent_pid: int
    session_id: int
    reaped_cpu_seconds: float
    """CPU seconds of child processes that have exited, and whose exit status the process has collected."""
    start_ticks: int
    """Start of the process, in clock ticks since boot. Together with the id, it identifies the process uniquely."""


def read_process_table() -> dict[int, ProcessInfo]:
    """Returns all running processes by process id."""
    iterdir = (_read_process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {process.pid: process for process in iterdir if process}


def _read_process(pid: int) -> ProcessInfo | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name is in parentheses and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    reaped = (int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND
    return ProcessInfo(pid, int(fields[1]), int(fields[3]), reaped, int(fields[19]))


def process_cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of all threads of one process, in nanosecond resolution (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def find_descendants(root: int, running: dict[int, ProcessInfo]) -> set[int]:
    """Returns the process, all its descendants, and the other processes of the session that it leads."""
    members = {root} | {p.pid for p in running.values() if p.session_id == root}
    while True:
        grown = members | {p.pid for p in running.values() if p.parent_pid in members}
        if grown == members:
            return members & running.keys()
        members = grown


@dataclass(frozen=True)
class ProcessTree:
    """Process tree of a gateway: the started process and all its descendants."""

    root_pid: int

    def member_pids(self) -> set[int]:
        return find_descendants(self.root_pid, read_process_table())

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds used so far, including those of exited members."""
        running = read_process_table()
        return sum(
            process_cpu_seconds(pid) + running[pid].reaped_cpu_seconds
            for pid in find_descendants(self.root_pid, running)
        )

    def cpu_seconds_of(self, title: str) -> float:
        """Returns the CPU seconds of the members whose process title begins with `title`."""
        return sum(process_cpu_seconds(pid) for pid in self.member_pids() if _process_title(pid).startswith(title))

    def memory_kb(self) -> int:
        """Returns the proportional set size in KiB; pages shared within the tree count once."""
        return sum(_pss_kb(pid) for pid in self.member_pids())


def _process_title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _pss_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def unrelated_cpu_seconds(root_pid: int) -> dict[int, float]:
    """Returns the CPU seconds of every process that is not a descendant of `root_pid`, without kernel threads."""
    running = read_process_table()
    own_pids = find_descendants(root_pid, running)
    return {
        process.pid: process_cpu_seconds(process.pid) + process.reaped_cpu_seconds
        for process in running.values()
        if process.pid not in own_pids and KTHREADD_PID not in (process.pid, process.parent_pid)
    }
