"""Load client `penstock-load`: its command line, its report, and the checks that make a report invalid."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare.gateway import Gateway, Invalid
from benches.compare.provider import binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.compare.bodies import Ask

Report = dict[str, float]
Options = dict[str, float | int]
GRACE_SECONDS = 60
WATCH_SECONDS = 0.25
# A report counts sent requests under one of the names in `SENT_COUNTERS`, and errors under some of those in
# `ERROR_COUNTERS`.
SENT = ("requests", "streams", "finished", "clients")
WRONG = ("errors", "incomplete", "failed")


def run(gateway: Gateway, kind: str, ask: Ask, options: Options) -> Report:
    """Runs the client to its end and returns its report. Raises `InvalidSample` if there were errors."""
    with working(gateway, kind, ask, options) as process:
        return _report(gateway, process, float(options.get("seconds", 0)))


def run_watched(gateway: Gateway, kind: str, ask: Ask, options: Options, watch: Callable[[], None]) -> Report:
    """Runs the client like `run`, and calls `watch` every `WATCH_INTERVAL_SECONDS` meanwhile."""
    with working(gateway, kind, ask, options) as process:
        deadline = float(options.get("seconds", 0)) + GRACE_SECONDS
        while process.poll() is None and deadline > 0:
            watch()
            deadline -= WATCH_SECONDS
            _pause(process)
        return _report(gateway, process, 0)


def _pause(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(WATCH_SECONDS)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def working(gateway: Gateway, kind: str, ask: Ask, options: Options) -> Iterator[subprocess.Popen[str]]:
    """Starts the client; kills it at the end of the block."""
    with tempfile.NamedTemporaryFile(suffix=".json", dir=gateway.stand.folder) as body:
        Path(body.name).write_bytes(gateway.body(ask))
        command = [str(binary("penstock-load")), kind, "--url", gateway.url(ask), "--body", body.name]
        for name, value in gateway.headers(ask).items():
            command += ["-H", f"{name}: {value}"]
        with _process(command + flags(options)) as process:
            yield process


@contextmanager
def asking(kind: str, url: str, options: Options) -> Iterator[subprocess.Popen[str]]:
    """Starts a client that requests one page repeatedly; kills it at the end of the block."""
    command = [str(binary("penstock-load")), kind, "--method", "GET", "--url", url, *flags(options)]
    with _process(command) as process:
        yield process


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def flags(options: Options) -> list[str]:
    """Converts options to command-line flags: `expect_chunks=3` becomes `--expect-chunks 3`."""
    return [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", f"{value:g}" if value < 1e6 else str(int(value)))
    ]


def _report(gateway: Gateway, process: subprocess.Popen[str], seconds: float) -> Report:
    report = read(process, seconds)
    gateway.sent += int(next((report[name] for name in SENT if name in report), 0))
    wrong = [f"{report[name]:g} {name}" for name in WRONG if report.get(name)]
    if wrong:
        raise Invalid(", ".join(wrong))
    return report


def read(process: subprocess.Popen[str], seconds: float) -> Report:
    """Returns the JSON object that the client prints when it exits."""
    try:
        out, err = process.communicate(timeout=seconds + GRACE_SECONDS)
    except subprocess.TimeoutExpired as error:
        message = "the load client did not exit in time"
        raise Invalid(message) from error
    try:
        report = json.loads(out)
    except ValueError as error:
        message = f"the load client printed no JSON report: {(err or out).strip()[-200:]!r}"
        raise Invalid(message) from error
    return {name: value for name, value in report.items() if isinstance(value, int | float)}
