"""Order of a run: every round runs every workload, and every workload measures all gateways in turn."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benches.compare import load, ports, provider
from benches.compare.gateway import Gateway, Invalid, NotStarted, running
from benches.compare.peers.direct import Direct
from benches.compare.result import Result, Sample
from benches.compare.works import BURST, Bench, Scale, Work

if TYPE_CHECKING:
    from benches.compare.cores import Cores
    from benches.compare.peers.peer import Peer

RECORD_SECONDS = 5


@dataclass
class Run:
    """One comparison from its first round to its last."""

    peers: list[Peer]
    works: list[Work]
    scale: Scale
    cores: Cores
    result: Result
    framing: int = 0
    began: float = field(default_factory=time.monotonic)

    def all_rounds(self) -> None:
        """Runs all rounds. The result contains all measurements even if some fail."""
        self.framing = _framing()
        for number in range(1, self.result.rounds + 1):
            for work in self.works:
                self._visit(number, work)

    def _visit(self, number: int, work: Work) -> None:
        for peer in self.peers:
            if self._takes_part(peer, work, number) and peer.name not in self.result.left_out:
                sample = self._sample(number, work, peer)
                self.result.samples.append(sample)
                self._say(sample)

    def _sample(self, number: int, work: Work, peer: Peer) -> Sample:
        try:
            # Each sample has its own provider, so that connections left open by one gateway do not affect the next.
            with (
                provider.running(ports.free()) as address,
                running(peer, address, self.cores.gateway) as gateway,
            ):
                bench = Bench(gateway, self.cores.gateway, self.scale, self.framing)
                values = work.measure(bench)
                check_records(gateway)
        except NotStarted as reason:
            self.result.left_out[peer.name] = str(reason)
            return Sample(number, work.name, peer.name, {}, str(reason))
        except Invalid as reason:
            return Sample(number, work.name, peer.name, {}, str(reason))
        return Sample(number, work.name, peer.name, values)

    def _say(self, sample: Sample) -> None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in sample.values.items())
        where = f"round {sample.round}/{self.result.rounds} {sample.work} {sample.peer}"
        print(f"{where}: {sample.invalid or values} ({self._left()})", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """Returns the remaining time, estimated from the average so far."""
        done = len(self.result.samples)
        minutes = (time.monotonic() - self.began) / done * max(self._visits() - done, 0) / 60
        return f"{minutes:.1f} minutes left"

    def _takes_part(self, peer: Peer, work: Work, number: int) -> bool:
        named = not work.only or peer.name in work.only
        enough = number > min(peer.rounds_at_most, self.scale.rare_rounds if work.rare else number)
        return named and (peer.process or work.direct) and not enough

    def _visits(self) -> int:
        peers = [peer for peer in self.peers if peer.name not in self.result.left_out]
        numbers = range(1, self.result.rounds + 1)
        return sum(self._takes_part(peer, work, number) for number in numbers for work in self.works for peer in peers)


def _framing() -> int:
    """Returns the number of opening and closing events of a stream. The provider determines it, so it is measured
    directly.
    """
    with provider.running(ports.free()) as address, running(Direct(), address, None) as direct:
        report = load.run(direct, "stream", BURST, {"streams": 1, "rounds": 1, "seconds": 30})
    if report["chunks"] < BURST.chunks:
        message = f"the pretend provider sent {report['chunks']:g} events for {BURST.model!r}"
        raise SystemExit(message)
    return int(report["chunks"]) - BURST.chunks


def check_records(gateway: Gateway) -> None:
    """Checks that each sent request has left one record, if the gateway writes records."""
    deadline = time.monotonic() + RECORD_SECONDS
    while (written := gateway.peer.written(gateway.stand)) not in (None, gateway.sent):
        if time.monotonic() > deadline:
            message = f"{written} records of {gateway.sent} requests"
            raise Invalid(message)
        time.sleep(0.1)
