"""Load client `penstock-load`: its command line, its report, and the checks that make a report invalid."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare.gateway import InvalidSample, RunningGateway
from benches.compare.provider import find_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.compare.bodies import RequestSpec

LoadReport = dict[str, float]
LoadOptions = dict[str, float | int]
GRACE_SECONDS = 60
WATCH_INTERVAL_SECONDS = 0.25
# A report counts sent requests under one of the names in `SENT_COUNTERS`, and errors under some of those in
# `ERROR_COUNTERS`.
SENT_COUNTERS = ("requests", "streams", "finished", "clients")
ERROR_COUNTERS = ("errors", "incomplete", "failed")


def run(gateway: RunningGateway, kind: str, request: RequestSpec, options: LoadOptions) -> LoadReport:
    """Runs the client to its end and returns its report. Raises `InvalidSample` if there were errors."""
    with start_client(gateway, kind, request, options) as process:
        return _collect_report(gateway, process, float(options.get("seconds", 0)))


def run_watched(
    gateway: RunningGateway, kind: str, request: RequestSpec, options: LoadOptions, watch: Callable[[], None]
) -> LoadReport:
    """Runs the client like `run`, and calls `watch` every `WATCH_INTERVAL_SECONDS` meanwhile."""
    with start_client(gateway, kind, request, options) as process:
        deadline = float(options.get("seconds", 0)) + GRACE_SECONDS
        while process.poll() is None and deadline > 0:
            watch()
            deadline -= WATCH_INTERVAL_SECONDS
            _wait_interval(process)
        return _collect_report(gateway, process, 0)


def _wait_interval(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(WATCH_INTERVAL_SECONDS)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def start_client(
    gateway: RunningGateway, kind: str, request: RequestSpec, options: LoadOptions
) -> Iterator[subprocess.Popen[str]]:
    """Starts the client; kills it at the end of the block."""
    with tempfile.NamedTemporaryFile(suffix=".json", dir=gateway.launch.folder) as body:
        Path(body.name).write_bytes(gateway.request_body(request))
        command = [str(find_binary("penstock-load")), kind, "--url", gateway.request_url(request), "--body", body.name]
        for name, value in gateway.request_headers(request).items():
            command += ["-H", f"{name}: {value}"]
        with _spawn_client(command + format_flags(options)) as process:
            yield process


@contextmanager
def start_page_client(kind: str, url: str, options: LoadOptions) -> Iterator[subprocess.Popen[str]]:
    """Starts a client that requests one page repeatedly; kills it at the end of the block."""
    command = [str(find_binary("penstock-load")), kind, "--method", "GET", "--url", url, *format_flags(options)]
    with _spawn_client(command) as process:
        yield process


@contextmanager
def _spawn_client(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def format_flags(options: LoadOptions) -> list[str]:
    """Converts options to command-line flags: `expect_chunks=3` becomes `--expect-chunks 3`."""
    return [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", f"{value:g}" if value < 1e6 else str(int(value)))
    ]


def _collect_report(gateway: RunningGateway, process: subprocess.Popen[str], seconds: float) -> LoadReport:
    report = read_report(process, seconds)
    gateway.sent_requests += int(next((report[name] for name in SENT_COUNTERS if name in report), 0))
    wrong = [f"{report[name]:g} {name}" for name in ERROR_COUNTERS if report.get(name)]
    if wrong:
        raise InvalidSample(", ".join(wrong))
    return report


def read_report(process: subprocess.Popen[str], seconds: float) -> LoadReport:
    """Returns the JSON object that the client prints when it exits."""
    try:
        out, err = process.communicate(timeout=seconds + GRACE_SECONDS)
    except subprocess.TimeoutExpired as error:
        message = "the load client did not exit in time"
        raise InvalidSample(message) from error
    try:
        report = json.loads(out)
    except ValueError as error:
        message = f"the load client printed no JSON report: {(err or out).strip()[-200:]!r}"
        raise InvalidSample(message) from error
    return {name: value for name, value in report.items() if isinstance(value, int | float)}
