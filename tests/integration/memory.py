"""Memory use of processes, read from /proc."""

from __future__ import annotations

from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


def pss(pid: int) -> int:
    """Returns the proportional set size in bytes: shared pages are divided among the processes that share them."""
    return _read_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def rss(pid: int) -> int:
    return _read_field(Path(f"/proc/{pid}/status"), "VmRSS:")


def peak_rss(pid: int) -> int:
    """Returns the peak resident set size in bytes since the process began or since `reset_peak_rss`."""
    return _read_field(Path(f"/proc/{pid}/status"), "VmHWM:")


def reset_peak_rss(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _read_field(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * KIB
