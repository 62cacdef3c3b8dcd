"""Load test of idle streams. Measures memory, CPU time of heartbeats, and the latency of new requests."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benches.compare import gateway, ports, provider
from benches.compare.peers.penstock import Penstock
from benches.compare.provider import binary
from loadtests.options import between

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = 50
BASE_SECONDS = 8
OPEN_SECONDS = 10
"""Within this all streams are expected to be open."""
LONGEST_GAP = 45
"""Below the gateway's own limit for a silence."""
LONGEST_RUN = 3700
BEAT = len(": keep-alive\n\n")
SPARE_FILES = 500
UNEVEN = 1.1
PER_PAIR_KB, SLOWER_MS, CORE_PART = 40.0, 5.0, 0.1


@dataclass
class Figures:
    streams: int
    dropped: int
    beats: float
    """For each stream."""
    kilobytes: float
    """Of the gateway's memory, for each pair of a client and a provider."""
    core: float
    """The part of a core that the gateway took while there was no new work."""
    before_ms: float
    beside_ms: float
    failed: int

    @property
    def problems(self) -> list[str]:
        checks = {
            f"{self.dropped} streams were dropped": self.dropped > 0,
            f"{self.failed} requests of new work failed": self.failed > 0,
            f"{self.kilobytes:.1f} KB for each pair": self.kilobytes > PER_PAIR_KB,
            f"new work is {self.beside_ms - self.before_ms:.1f} ms slower": self.beside_ms - self.before_ms > SLOWER_MS,
            f"heartbeats take {self.core:.0%} of a core": self.core > CORE_PART,
        }
        return [problem for problem, is_so in checks.items() if is_so]

    def table(self) -> str:
        rows = [
            ("streams held", str(self.streams)),
            ("dropped", str(self.dropped)),
            ("heartbeats per stream", f"{self.beats:.1f}"),
            ("memory per client and provider pair", f"{self.kilobytes:.1f} KB"),
            ("CPU without new requests", f"{self.core:.1%} of a core"),
            (f"p99 of {RATE} requests a second, alone", f"{self.before_ms:.2f} ms"),
            (f"p99 of {RATE} requests a second, beside them", f"{self.beside_ms:.2f} ms"),
        ]
        return "\n".join(["| what | figure |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a measured value exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.idle", description=__doc__)
    parser.add_argument("--streams", type=between(1, 100_000), default=1000, metavar="N")
    parser.add_argument("--seconds", type=between(15, 3600), default=40, metavar="S")
    asked = parser.parse_args(arguments)
    penstock = Penstock(_workers(asked.streams))
    penstock.install()
    with provider.running(ports.free()) as address, gateway.running(penstock, address, core=None) as loaded:
        figures = _measure(loaded, asked.streams, asked.seconds)
    print(figures.table())
    print("\n".join(figures.problems), file=sys.stderr)
    return int(bool(figures.problems))


def _workers(streams: int) -> int:
    """Raises the limit of open files and returns how many edge processes stay below it. A stream uses two files."""
    limit = _allow_files(2 * streams + SPARE_FILES)
    if limit < streams + SPARE_FILES:
        message = f"{streams + SPARE_FILES} open files are needed and {limit} allowed; hint: `ulimit -n` as root, or fewer streams"
        raise SystemExit(message)
    # The kernel does not distribute connections evenly among processes.
    return math.ceil(2 * streams * UNEVEN / (limit - SPARE_FILES))


def _allow_files(count: int) -> int:
    """Raises the limit of open files to `count`, or as far as possible, and returns it. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for allowed in (count, hard):
        if allowed > soft:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, max(hard, allowed)))
                return allowed
    return soft


def _measure(loaded: gateway.Gateway, streams: int, seconds: int) -> Figures:
    gap = min(LONGEST_GAP, seconds)
    chunks = math.ceil(seconds / gap) + 1
    before = _work(loaded, BASE_SECONDS)
    quick = _report(_client(loaded, "stream", f"mock?chunks={chunks}", streams=1, rounds=1, seconds=30))
    empty = loaded.memory_kb()
    model = f"mock?chunks={chunks}&chunk_ms={gap * 1000}"
    began = time.monotonic()
    holding = _client(loaded, "hold", model, streams=streams, seconds=seconds + 60)
    try:
        time.sleep(OPEN_SECONDS)
        cpu, since = _cpu(loaded), time.monotonic()
        time.sleep(max(1.0, (seconds - OPEN_SECONDS) / 2))
        core = (_cpu(loaded) - cpu) / (time.monotonic() - since)
        full = loaded.memory_kb()
        beside = _work(loaded, max(1, int(began + seconds - 2 - time.monotonic())))
        held = _report(holding)
    finally:
        _end(holding)
    return Figures(
        streams=streams,
        dropped=held["failed"],
        beats=(held["bytes"] / streams - quick["bytes"]) / BEAT,
        kilobytes=(full - empty) / streams,
        core=core,
        before_ms=before["p99_us"] / 1000,
        beside_ms=beside["p99_us"] / 1000,
        failed=before["errors"] + beside["errors"],
    )


def _cpu(loaded: gateway.Gateway) -> float:
    return loaded.tree.cpu() if loaded.tree else 0.0


def _work(loaded: gateway.Gateway, seconds: int) -> dict[str, Any]:
    return _report(_client(loaded, "rate", "mock?answer_bytes=1041", rate=RATE, connections=8, seconds=seconds))


def _client(loaded: gateway.Gateway, mode: str, model: str, **options: float) -> subprocess.Popen[str]:
    command = [str(binary("penstock-load")), mode, "--url", f"http://{loaded.host}/v1/chat/completions"]
    command += ["--model", model]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    for name, value in loaded.headers().items():
        command += ["-H", f"{name}: {value}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _report(client: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        return json.loads(client.communicate(timeout=LONGEST_RUN)[0])
    finally:
        _end(client)


def _end(client: subprocess.Popen[str]) -> None:
    if client.poll() is None:
        client.kill()
        client.communicate()


if __name__ == "__main__":
    sys.exit(main())
