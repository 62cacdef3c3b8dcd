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
from benches.compare.provider import find_binary
from loadtests.options import make_int_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW_REQUEST_RATE = 50
BASELINE_SECONDS = 8
OPEN_TIMEOUT_SECONDS = 10
"""Time after which all streams should be open."""
MAX_CHUNK_GAP_SECONDS = 45
"""Maximum time between two chunks of a stream. It is below the gateway's own limit for silence."""
MAX_RUN_SECONDS = 3700
HEARTBEAT_BYTES = len(": keep-alive\n\n")
SPARE_FILE_COUNT = 500
IMBALANCE_FACTOR = 1.1
PER_PAIR_KB, SLOWER_MS, CORE_PART = 40.0, 5.0, 0.1


@dataclass
class IdleStreamResults:
    stream_count: int
    dropped_count: int
    heartbeats: float
    """Number of heartbeats for each stream."""
    kb_per_pair: float
    """Memory of the gateway in KB, for each pair of a client and a provider."""
    core_share: float
    """Share of a core that the gateway used while no new requests arrived."""
    baseline_p99_ms: float
    loaded_p99_ms: float
    failed_requests: int

    @property
    def problems(self) -> list[str]:
        checks = {
            f"{self.dropped_count} streams were dropped": self.dropped_count > 0,
            f"{self.failed_requests} new requests failed": self.failed_requests > 0,
            f"{self.kb_per_pair:.1f} KB for each pair of client and provider": self.kb_per_pair > PER_PAIR_KB,
            f"new requests are {self.loaded_p99_ms - self.baseline_p99_ms:.1f} ms slower": self.loaded_p99_ms
            - self.baseline_p99_ms
            > SLOWER_MS,
            f"heartbeats take {self.core_share:.0%} of a core": self.core_share > CORE_PART,
        }
        return [problem for problem, is_so in checks.items() if is_so]

    def render_table(self) -> str:
        rows = [
            ("streams held", str(self.stream_count)),
            ("dropped", str(self.dropped_count)),
            ("heartbeats per stream", f"{self.heartbeats:.1f}"),
            ("memory per client and provider pair", f"{self.kb_per_pair:.1f} KB"),
            ("CPU without new requests", f"{self.core_share:.1%} of a core"),
            (f"p99 of {NEW_REQUEST_RATE} requests a second, without streams", f"{self.baseline_p99_ms:.2f} ms"),
            (f"p99 of {NEW_REQUEST_RATE} requests a second, with streams", f"{self.loaded_p99_ms:.2f} ms"),
        ]
        return "\n".join(["| what | figure |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a measured value exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.idle", description=__doc__)
    parser.add_argument("--streams", type=make_int_parser(1, 100_000), default=1000, metavar="N")
    parser.add_argument("--seconds", type=make_int_parser(15, 3600), default=40, metavar="S")
    options = parser.parse_args(arguments)
    penstock = Penstock(_required_workers(options.streams))
    penstock.install()
    with (
        provider.run_provider(ports.find_free_port()) as address,
        gateway.run_gateway(penstock, address, core=None) as loaded,
    ):
        figures = _measure_streams(loaded, options.streams, options.seconds)
    print(figures.render_table())
    print("\n".join(figures.problems), file=sys.stderr)
    return int(bool(figures.problems))


def _required_workers(streams: int) -> int:
    """Raises the limit of open files and returns how many edge processes stay below it. A stream uses two files."""
    limit = _raise_file_limit(2 * streams + SPARE_FILE_COUNT)
    if limit < streams + SPARE_FILE_COUNT:
        message = f"{streams + SPARE_FILE_COUNT} open files are required, but only {limit} are allowed; raise `ulimit -n` as root or use fewer streams"
        raise SystemExit(message)
    # The kernel does not distribute connections evenly among processes.
    return math.ceil(2 * streams * IMBALANCE_FACTOR / (limit - SPARE_FILE_COUNT))


def _raise_file_limit(count: int) -> int:
    """Raises the limit of open files to `count`, or as far as possible, and returns it. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for allowed in (count, hard):
        if allowed > soft:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, max(hard, allowed)))
                return allowed
    return soft


def _measure_streams(loaded: gateway.RunningGateway, streams: int, seconds: int) -> IdleStreamResults:
    gap = min(MAX_CHUNK_GAP_SECONDS, seconds)
    chunks = math.ceil(seconds / gap) + 1
    before = _send_new_requests(loaded, BASELINE_SECONDS)
    quick = _read_report(_start_client(loaded, "stream", f"mock?chunks={chunks}", streams=1, rounds=1, seconds=30))
    empty = loaded.memory_kb()
    model = f"mock?chunks={chunks}&chunk_ms={gap * 1000}"
    started_at = time.monotonic()
    holding = _start_client(loaded, "hold", model, streams=streams, seconds=seconds + 60)
    try:
        time.sleep(OPEN_TIMEOUT_SECONDS)
        cpu, since = _gateway_cpu_seconds(loaded), time.monotonic()
        time.sleep(max(1.0, (seconds - OPEN_TIMEOUT_SECONDS) / 2))
        core = (_gateway_cpu_seconds(loaded) - cpu) / (time.monotonic() - since)
        full = loaded.memory_kb()
        load_report = _send_new_requests(loaded, max(1, int(started_at + seconds - 2 - time.monotonic())))
        hold_report = _read_report(holding)
    finally:
        _stop_client(holding)
    return IdleStreamResults(
        stream_count=streams,
        dropped_count=hold_report["failed"],
        heartbeats=(hold_report["bytes"] / streams - quick["bytes"]) / HEARTBEAT_BYTES,
        kb_per_pair=(full - empty) / streams,
        core_share=core,
        baseline_p99_ms=before["p99_us"] / 1000,
        loaded_p99_ms=load_report["p99_us"] / 1000,
        failed_requests=before["errors"] + load_report["errors"],
    )


def _gateway_cpu_seconds(loaded: gateway.RunningGateway) -> float:
    return loaded.process_tree.cpu_seconds() if loaded.process_tree else 0.0


def _send_new_requests(loaded: gateway.RunningGateway, seconds: int) -> dict[str, Any]:
    return _read_report(
        _start_client(loaded, "rate", "mock?response_bytes=1041", rate=NEW_REQUEST_RATE, connections=8, seconds=seconds)
    )


def _start_client(loaded: gateway.RunningGateway, mode: str, model: str, **options: float) -> subprocess.Popen[str]:
    command = [str(find_binary("penstock-load")), mode, "--url", f"http://{loaded.host}/v1/chat/completions"]
    command += ["--model", model]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    for name, value in loaded.request_headers().items():
        command += ["-H", f"{name}: {value}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _read_report(client: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        return json.loads(client.communicate(timeout=MAX_RUN_SECONDS)[0])
    finally:
        _stop_client(client)


def _stop_client(client: subprocess.Popen[str]) -> None:
    if client.poll() is None:
        client.kill()
        client.communicate()


if __name__ == "__main__":
    sys.exit(main())
