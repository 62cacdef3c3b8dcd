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
from benches.compare.peers.peer import Unavailable
from benches.compare.peers.penstock import Penstock
from loadtests import report
from loadtests.options import HEADERS_VARIABLE, RESULT_VARIABLE, between
from loadtests.scenarios import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER = Path(__file__).resolve().parent
GRACE_SECONDS = 60
RECORD_SECONDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a response was not as expected, a record is missing, or nothing was sent."""
    asked = _parser().parse_args(arguments)
    out = FOLDER / "out" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    out.mkdir(parents=True)
    # Child processes run in their own sessions and would survive SIGTERM. Raising KeyboardInterrupt lets the context
    # managers stop them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _gateway() as loaded:
            seen = [_load(loaded, name, asked, out) for name in asked.scenarios]
            unrecorded = _unrecorded(loaded, sum(one.sent for one in seen))
    except (Unavailable, gateway.Invalid) as reason:
        print(f"cannot start a gateway: {reason}", file=sys.stderr)
        return 1
    title = f"Load of {asked.users} clients, {asked.seconds} s per scenario"
    print(report.write(out, title, seen))
    print(f"Written to {os.path.relpath(out)}")
    problems = [problem for one in seen if (problem := _problem(one))] + unrecorded
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests", description=__doc__)
    parser.add_argument("--users", type=between(1, 1000), default=20, metavar="N", help="number of concurrent clients")
    parser.add_argument("--seconds", type=between(1, 3600), default=15, metavar="S", help="per scenario")
    parser.add_argument(
        "--scenarios", nargs="+", default=list(NAMES), choices=NAMES, help="scenarios to run, in this order"
    )
    return parser


@contextmanager
def _gateway() -> Iterator[gateway.Gateway]:
    penstock = Penstock()
    penstock.install()
    with (
        provider.running(ports.free()) as address,
        gateway.running(penstock, address, core=None) as loaded,
    ):
        yield loaded


def _load(loaded: gateway.Gateway, scenario: str, asked: argparse.Namespace, out: Path) -> report.Seen:
    """Runs one scenario and returns its result. A failure of locust itself is added to the errors of the result."""
    print(f"{scenario}: {asked.users} clients for {asked.seconds} s …", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "locust", "--locustfile", str(FOLDER / "locustfile.py"), scenario.capitalize()]
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
    command += ["--users", str(asked.users), "--spawn-rate", str(asked.users), "--run-time", f"{asked.seconds}s"]
    result = out / f"{scenario}.json"
    environment = {
        **os.environ,
        HEADERS_VARIABLE: json.dumps(loaded.headers()),
        RESULT_VARIABLE: str(result),
    }
    limit = asked.seconds + GRACE_SECONDS
    with (out / f"{scenario}.log").open("wb") as log:
        status = _run(command, environment, log, limit)
    seen = report.read(result)
    # Also reports an exception in a scenario's own code, which locust does not count.
    if status and not seen.errors:
        seen.errors.append({"name": "locust", "error": f"exited with {status}; see {scenario}.log", "count": 1})
    return seen


def _run(command: list[str], environment: dict[str, str], log: BinaryIO, limit: float) -> int | str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=FOLDER.parent, timeout=limit, stdout=log, stderr=log, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    return done.returncode


def _problem(seen: report.Seen) -> str | None:
    if not seen.sent or seen.failed:
        return f"{seen.scenario}: {seen.failed} of {seen.sent} answers were not as promised"
    return next((f"{seen.scenario}: {error['name']} {error['error']}" for error in seen.errors), None)


def _unrecorded(loaded: gateway.Gateway, sent: int) -> list[str]:
    """Checks that every request leaves a record, including requests that were cut off or cancelled. Returns a problem
    if not.
    """
    deadline = time.monotonic() + RECORD_SECONDS
    while (written := loaded.peer.written(loaded.stand) or 0) < sent and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{written} records for {sent} requests"] if written < sent else []


if __name__ == "__main__":
    sys.exit(main())
