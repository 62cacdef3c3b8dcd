"""`python -m loadtests`: starts a gateway with a mock provider, runs load scenarios and renders the results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from benches.compare import gateway, ports, provider
from benches.compare.peers.peer import PeerUnavailable
from benches.compare.peers.penstock import Penstock
from loadtests import report
from loadtests.options import HEADERS_VARIABLE, RESULT_VARIABLE, make_int_parser
from loadtests.scenarios import SCENARIO_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOADTESTS_DIR = Path(__file__).resolve().parent
GRACE_SECONDS = 60
RECORD_TIMEOUT_SECONDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a response was not as expected, a record is missing, or nothing was sent."""
    options = _build_parser().parse_args(arguments)
    out = LOADTESTS_DIR / "out" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    out.mkdir(parents=True)
    # Child processes run in their own sessions and would survive SIGTERM. Raising KeyboardInterrupt lets the context
    # managers stop them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _run_gateway() as loaded:
            received = [_run_scenario(loaded, name, options, out) for name in options.scenarios]
            unrecorded = _find_missing_records(loaded, sum(item.sent_count for item in received))
    except (PeerUnavailable, gateway.InvalidSample) as reason:
        print(f"cannot start a gateway: {reason}", file=sys.stderr)
        return 1
    title = f"Load of {options.users} clients, {options.seconds} s per scenario"
    print(report.write_report(out, title, received))
    print(f"Written to {os.path.relpath(out)}")
    problems = [problem for item in received if (problem := _find_problem(item))] + unrecorded
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests", description=__doc__)
    parser.add_argument(
        "--users", type=make_int_parser(1, 1000), default=20, metavar="N", help="number of concurrent clients"
    )
    parser.add_argument("--seconds", type=make_int_parser(1, 3600), default=15, metavar="S", help="per scenario")
    parser.add_argument(
        "--scenarios",
        nargs="+",
        default=list(SCENARIO_NAMES),
        choices=SCENARIO_NAMES,
        help="scenarios to run, in this order",
    )
    return parser


@contextmanager
def _run_gateway() -> Iterator[gateway.RunningGateway]:
    penstock = Penstock()
    penstock.install()
    with (
        provider.run_provider(ports.find_free_port()) as address,
        gateway.run_gateway(penstock, address, core=None) as loaded,
    ):
        yield loaded


def _run_scenario(
    loaded: gateway.RunningGateway, scenario: str, options: argparse.Namespace, out: Path
) -> report.ScenarioResult:
    """Runs one scenario and returns its result. A failure of locust itself is added to the errors of the result."""
    print(f"{scenario}: {options.users} clients for {options.seconds} s …", file=sys.stderr, flush=True)
    command = [
        sys.executable,
        "-m",
        "locust",
        "--locustfile",
        str(LOADTESTS_DIR / "locustfile.py"),
        scenario.capitalize(),
    ]
    command += [
        "--headless",
        "--only-summary",
        "--host",
        f"http://{loaded.host}",
        "--stop-timeout",
        "10",
        "--loglevel",
        "WARNING",
    ]
    command += ["--users", str(options.users), "--spawn-rate", str(options.users), "--run-time", f"{options.seconds}s"]
    result = out / f"{scenario}.json"
    environment = {
        **os.environ,
        HEADERS_VARIABLE: json.dumps(loaded.request_headers()),
        RESULT_VARIABLE: str(result),
    }
    limit = options.seconds + GRACE_SECONDS
    with (out / f"{scenario}.log").open("wb") as log:
        status = _run_locust(command, environment, log, limit)
    received = report.read_result(result)
    # Also reports an exception in a scenario's own code, which locust does not count.
    if status and not received.errors:
        received.errors.append({"name": "locust", "error": f"exited with {status}; see {scenario}.log", "count": 1})
    return received


def _run_locust(command: list[str], environment: dict[str, str], log: BinaryIO, limit: float) -> int | str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=LOADTESTS_DIR.parent, timeout=limit, stdout=log, stderr=log, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    return done.returncode


def _find_problem(received: report.ScenarioResult) -> str | None:
    if not received.sent_count or received.failed_count:
        return f"{received.scenario}: {received.failed_count} of {received.sent_count} responses were not as expected"
    return next((f"{received.scenario}: {error['name']} {error['error']}" for error in received.errors), None)


def _find_missing_records(loaded: gateway.RunningGateway, sent: int) -> list[str]:
    """Checks that every request leaves a record, including requests that were cut off or cancelled. Returns a problem
    if not.
    """
    deadline = time.monotonic() + RECORD_TIMEOUT_SECONDS
    while (written := loaded.peer.count_records(loaded.launch) or 0) < sent and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{written} records for {sent} requests"] if written < sent else []


if __name__ == "__main__":
    sys.exit(main())
