"""What processes hold in memory, from /proc."""

from __future__ import annotations

from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


def pss(pid: int) -> int:
    """Bytes of a process, what it shares divided among those who share it."""
    return _read_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def rss(pid: int) -> int:
    return _read_field(Path(f"/proc/{pid}/status"), "VmRSS:")


def peak_rss(pid: int) -> int:
    """The most that a process ever had resident, since it began or since `forget_peak`."""
    return _read_field(Path(f"/proc/{pid}/status"), "VmHWM:")


def reset_peak_rss(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _read_field(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * KIB
