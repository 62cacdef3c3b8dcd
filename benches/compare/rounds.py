"""Order of a run: every round runs every workload, and every workload measures all gateways in turn."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benches.compare import load, ports, provider
from benches.compare.gateway import InvalidSample, NotStarted, RunningGateway, run_gateway
from benches.compare.peers.direct import Direct
from benches.compare.result import Result, Sample
from benches.compare.works import BURST_STREAM, BenchContext, Durations, Workload

if TYPE_CHECKING:
    from benches.compare.cores import CoreAssignment
    from benches.compare.peers.peer import Peer

# The log worker inserts up to 1,000 records at once, which takes ten seconds if each has a body of 1 MB.
RECORD_TIMEOUT_SECONDS = 60


@dataclass
class ComparisonRun:
    """One comparison from its first round to its last."""

    peers: list[Peer]
    workloads: list[Workload]
    durations: Durations
    cores: CoreAssignment
    result: Result
    framing_events: int = 0
    started_at: float = field(default_factory=time.monotonic)

    def run_all_rounds(self) -> None:
        """Runs all rounds. The result contains all measurements even if some fail."""
        self.framing_events = _count_framing_events()
        for number in range(1, self.result.rounds + 1):
            for workload in self.workloads:
                self._measure_peers(number, workload)

    def _measure_peers(self, number: int, workload: Workload) -> None:
        for peer in self.peers:
            if self._should_measure(peer, workload, number) and peer.name not in self.result.left_out:
                sample = self._measure_sample(number, workload, peer)
                self.result.samples.append(sample)
                self._print_progress(sample)

    def _measure_sample(self, number: int, workload: Workload, peer: Peer) -> Sample:
        try:
            # Each sample has its own provider, so that connections left open by one gateway do not affect the next.
            with (
                provider.run_provider(ports.find_free_port()) as address,
                run_gateway(peer, address, self.cores.gateway) as gateway,
            ):
                bench = BenchContext(gateway, self.cores.gateway, self.durations, self.framing_events)
                values = workload.measure(bench)
                check_records(gateway)
        except NotStarted as reason:
            self.result.left_out[peer.name] = str(reason)
            return Sample(number, workload.name, peer.name, {}, str(reason))
        except InvalidSample as reason:
            return Sample(number, workload.name, peer.name, {}, str(reason))
        return Sample(number, workload.name, peer.name, values)

    def _print_progress(self, sample: Sample) -> None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in sample.values.items())
        label = f"round {sample.round}/{self.result.rounds} {sample.workload} {sample.peer}"
        print(f"{label}: {sample.invalid_reason or values} ({self._remaining_time()})", file=sys.stderr, flush=True)

    def _remaining_time(self) -> str:
        """Returns the remaining time, estimated from the average so far."""
        done = len(self.result.samples)
        minutes = (time.monotonic() - self.started_at) / done * max(self._count_samples() - done, 0) / 60
        return f"{minutes:.1f} minutes left"

    def _should_measure(self, peer: Peer, workload: Workload, number: int) -> bool:
        is_selected = not workload.only_peers or peer.name in workload.only_peers
        enough = number > min(
            peer.max_rounds, self.durations.low_variance_rounds if workload.is_low_variance else number
        )
        return is_selected and (peer.has_process or workload.includes_direct) and not enough

    def _count_samples(self) -> int:
        peers = [peer for peer in self.peers if peer.name not in self.result.left_out]
        numbers = range(1, self.result.rounds + 1)
        return sum(
            self._should_measure(peer, workload, number)
            for number in numbers
            for workload in self.workloads
            for peer in peers
        )


def _count_framing_events() -> int:
    """Returns the number of opening and closing events of a stream. The provider determines it, so it is measured
    directly.
    """
    with provider.run_provider(ports.find_free_port()) as address, run_gateway(Direct(), address, None) as direct:
        report = load.run(direct, "stream", BURST_STREAM, {"streams": 1, "rounds": 1, "seconds": 30})
    if report["chunks"] < BURST_STREAM.chunk_count:
        message = f"the mock provider sent {report['chunks']:g} events for {BURST_STREAM.model!r}"
        raise SystemExit(message)
    return int(report["chunks"]) - BURST_STREAM.chunk_count


def check_records(gateway: RunningGateway) -> None:
    """Checks that each sent request has left one record, if the gateway writes records.

    A backlog takes as long as it needs. Only a number that no longer grows is wrong.
    """
    last_written, last_growth = None, time.monotonic()
    while (written := gateway.peer.count_records(gateway.launch)) not in (None, gateway.sent_requests):
        if written != last_written:
            last_written, last_growth = written, time.monotonic()
        if time.monotonic() > last_growth + RECORD_TIMEOUT_SECONDS:
            message = f"{written} records for {gateway.sent_requests} requests"
            raise InvalidSample(message)
        time.sleep(0.1)
