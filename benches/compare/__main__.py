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
from benches.compare.peers import ALL_PEERS
from benches.compare.peers.peer import Peer, PeerUnavailable
from benches.compare.provider import find_binary
from benches.compare.result import Result
from benches.compare.rounds import ComparisonRun
from benches.compare.works import QUICK_DURATIONS, WORKLOAD_GROUPS, WORKLOADS, Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUTPUT_DIR = Path(__file__).resolve().parent / "out"
PEER_NAMES = tuple(peer.name for peer in ALL_PEERS)
QUICK_PEERS = ("direct", "nginx", "penstock", "haproxy")
FULL_ROUNDS = 5
INTERRUPTED_WARNING = "interrupted: later rounds are missing"
QUICK_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a target is missed, or if a target is not measured in a run that was not restricted to named peers."""
    options = _build_parser().parse_args(arguments)
    for program in ("penstock-mock", "penstock-load"):
        find_binary(program)
    core_plan = cores.choose_cores()
    result = _new_result(options.quick, options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS))
    names = options.peers or list(QUICK_PEERS if options.quick else PEER_NAMES)
    peers = _install_peers(names, result)
    cores.pin_to_core(core_plan.load_client)
    # Child processes run in their own sessions and would survive SIGTERM. Raising KeyboardInterrupt lets the context
    # managers stop them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workloads = [workload for workload in WORKLOADS if workload.group in options.work]
    run = ComparisonRun(peers, workloads, QUICK_DURATIONS if options.quick else Durations(), core_plan, result)
    try:
        run.run_all_rounds()
    except KeyboardInterrupt:
        result.warnings.append(INTERRUPTED_WARNING)
    print(_write_report(result))
    return exit_status(
        result, has_named_peers=bool(options.peers), peers=names, workloads=[work.name for work in workloads]
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short run with few peers, about 3 minutes")
    parser.add_argument("--rounds", type=_parse_positive_int, help=f"default: {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    parser.add_argument(
        "--peers", "--only", type=_make_list_parser(PEER_NAMES), metavar="A,B", help=f"of {', '.join(PEER_NAMES)}"
    )
    parser.add_argument(
        "--work",
        type=_make_list_parser(WORKLOAD_GROUPS),
        default=list(WORKLOAD_GROUPS),
        metavar="A,B",
        help=f"of {', '.join(WORKLOAD_GROUPS)}",
    )
    return parser


def _parse_positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        message = "at least 1"
        raise argparse.ArgumentTypeError(message)
    return number


def _make_list_parser(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse_list(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            message = f"unknown name {', '.join(unknown)!r}; allowed: {', '.join(allowed)}"
            raise argparse.ArgumentTypeError(message)
        return names

    return parse_list


def _new_result(quick: bool, rounds: int) -> Result:
    at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    return Result(at, quick, rounds, _describe_machine())


def _describe_machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return {"cpu": model, "cores": str(os.cpu_count()), "kernel": platform.release()}


def _install_peers(names: Sequence[str], result: Result) -> list[Peer]:
    peers = []
    for peer in (kind() for kind in ALL_PEERS if kind.name in names):
        print(f"installing {peer.name} …", file=sys.stderr, flush=True)
        try:
            result.versions[peer.name] = peer.install()
        except PeerUnavailable as reason:
            print(f"{peer.name} is skipped: {reason}", file=sys.stderr, flush=True)
            result.left_out[peer.name] = str(reason)
        else:
            peers.append(peer)
    return peers


def _write_report(result: Result) -> str:
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    source = OUTPUT_DIR / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    result.save(source)
    return report.write_report(result, source) + f"\nWritten to {os.path.relpath(source)}"


def exit_status(result: Result, *, has_named_peers: bool, peers: Sequence[str], workloads: Sequence[str]) -> int:
    """Returns 0 if the run is good, else 1.

    All targets of the selected workloads must be met. If the user named the peers, targets that could not be
    measured are accepted.
    """
    if figures.PENSTOCK not in peers:
        return 0
    actual = figures.evaluate_targets(result)
    bad = (
        figures.PENSTOCK in result.left_out
        or INTERRUPTED_WARNING in result.warnings
        or any(item.is_met is False for item in actual)
    )
    against = {item.metric.baseline for item in actual}
    due = [item for item in actual if item.metric.workload in workloads and item.metric.baseline in {None, *peers}]
    is_incomplete = bool(against & result.left_out.keys()) or any(item.is_met is None for item in due)
    return int(bad or (is_incomplete and not has_named_peers))


if __name__ == "__main__":
    sys.exit(main())
