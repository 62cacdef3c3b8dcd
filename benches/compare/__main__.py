"""`python -m benches.compare`: installs the compared gateways, runs all rounds and prints the result table."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare import cores, figures, report
from benches.compare.peers import ALL
from benches.compare.peers.peer import Peer, Unavailable
from benches.compare.provider import binary
from benches.compare.result import Result
from benches.compare.rounds import Run
from benches.compare.works import GROUPS, QUICK, WORKS, Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUT = Path(__file__).resolve().parent / "out"
NAMES = tuple(peer.name for peer in ALL)
QUICK_PEERS = ("direct", "nginx", "penstock", "haproxy")
FULL_ROUNDS = 5
INTERRUPTED = "interrupted: later rounds are missing"
QUICK_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a target is missed, or if a target is not measured in a run that was not restricted to named peers."""
    asked = _parser().parse_args(arguments)
    for program in ("penstock-mock", "penstock-load"):
        binary(program)
    chosen = cores.choose()
    result = _result(asked.quick, asked.rounds or (QUICK_ROUNDS if asked.quick else FULL_ROUNDS))
    names = asked.peers or list(QUICK_PEERS if asked.quick else NAMES)
    peers = _install(names, result)
    cores.pin(chosen.load)
    # Child processes run in their own sessions and would survive SIGTERM. Raising KeyboardInterrupt lets the context
    # managers stop them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    works = [work for work in WORKS if work.group in asked.work]
    run = Run(peers, works, QUICK if asked.quick else Scale(), chosen, result)
    try:
        run.all_rounds()
    except KeyboardInterrupt:
        result.warnings.append(INTERRUPTED)
    print(_write(result))
    return verdict(result, named=bool(asked.peers), peers=names, works=[work.name for work in works])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short run with few peers, about 3 minutes")
    parser.add_argument("--rounds", type=_positive, help=f"default: {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    parser.add_argument("--peers", "--only", type=_listed(NAMES), metavar="A,B", help=f"of {', '.join(NAMES)}")
    parser.add_argument(
        "--work",
        type=_listed(GROUPS),
        default=list(GROUPS),
        metavar="A,B",
        help=f"of {', '.join(GROUPS)}",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = "at least 1"
        raise argparse.ArgumentTypeError(message)
    return number


def _listed(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            message = f"unknown name {', '.join(unknown)!r}; allowed: {', '.join(known)}"
            raise argparse.ArgumentTypeError(message)
        return names

    return parse


def _result(quick: bool, rounds: int) -> Result:
    at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    return Result(at, quick, rounds, _machine())


def _machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return {"cpu": model, "cores": str(os.cpu_count()), "kernel": platform.release()}


def _install(names: Sequence[str], result: Result) -> list[Peer]:
    peers = []
    for peer in (kind() for kind in ALL if kind.name in names):
        print(f"installing {peer.name} …", file=sys.stderr, flush=True)
        try:
            result.versions[peer.name] = peer.install()
        except Unavailable as reason:
            print(f"{peer.name} is skipped: {reason}", file=sys.stderr, flush=True)
            result.left_out[peer.name] = str(reason)
        else:
            peers.append(peer)
    return peers


def _write(result: Result) -> str:
    OUT.mkdir(parents=True, exist_ok=True)
    source = OUT / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    result.save(source)
    return report.write(result, source) + f"\nWritten to {os.path.relpath(source)}"


def verdict(result: Result, *, named: bool, peers: Sequence[str], works: Sequence[str]) -> int:
    """Returns 0 if the run is good, else 1.

    All targets of the selected workloads must be met. If the user named the peers, targets that could not be
    measured are accepted.
    """
    if figures.OURS not in peers:
        return 0
    found = figures.verdicts(result)
    bad = figures.OURS in result.left_out or INTERRUPTED in result.warnings or any(one.met is False for one in found)
    against = {one.figure.against for one in found}
    due = [one for one in found if one.figure.work in works and one.figure.against in {None, *peers}]
    lacking = bool(against & result.left_out.keys()) or any(one.met is None for one in due)
    return int(bad or (lacking and not named))


if __name__ == "__main__":
    sys.exit(main())
