"""Metrics of the comparison with their target values, and the check of a run against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.compare import paired

if TYPE_CHECKING:
    from benches.compare.result import Result, Sample

OURS = "penstock"
LATENCY = "latency"


@dataclass(frozen=True)
class Figure:
    """One measured value of one workload. With a limit it is a target; without one it is informational."""

    title: str
    unit: str
    work: str
    value: str
    at_most: float | None = None
    against: str | None = None
    """The limit is a multiple of this gateway's value, or the value's own without one."""


def _cpu(title: str, unit: str, work: str, at_most: float, against: str = "nginx") -> Figure:
    return Figure(title, f"CPU µs/{unit}", work, "cpu_us", at_most, against)


FIGURES: tuple[Figure, ...] = (
    _cpu("complete response, 16 connections", "request", "whole16", 2.5),
    _cpu("complete response, 64 connections", "request", "whole64", 2.5),
    _cpu("complete response, 16 connections", "request", "whole16", 1.0, "envoy"),
    _cpu("complete response, 64 connections", "request", "whole64", 1.0, "envoy"),
    _cpu("2,000 requests a second", "request", "rate", 3.0),
    _cpu("64 streams, one chunk every 10 ms", "chunk", "paced", 1.5),
    _cpu("burst stream, 100 chunks without pause", "chunk", "burst", 1.0),
    _cpu("1 MB request body", "request", "body", 1.5),
    _cpu("cached response, 16 connections", "request", "cache", 2.5),
    Figure("kept answer", "× the CPU of the same response forwarded", "cache", "of_forwarded", 0.8),
    Figure("5 levels, 100 targets: added to one target", "CPU µs/request", "routing", "nested_us", 5),
    Figure("1,000 conditions: added to one target", "CPU µs/request", "routing", "conditional_us", 50),
    Figure("added latency, 1 connection, p50", "µs", LATENCY, "added_p50_us", 2.5, "nginx"),
    Figure("added latency, 1 connection, p99", "µs", LATENCY, "added_p99_us", 2.5, "nginx"),
    Figure("500 slow streams", "KB/stream", "hold", "kb_per_stream", 40),
    Figure("a client that never reads", "KB/client", "stuck", "kb_per_client", 256),
    Figure("p99 while management burns CPU in Python: increase", "ms", "tail", "rise_ms", 1),
    Figure("start to first response", "s", "start", "start_s", 1),
    Figure("idle memory", "MB", "start", "idle_mb", 80),
    Figure("p99 while management pages are requested at capacity: increase", "ms", "tail", "pages_rise_ms"),
    Figure("64 streams in step, one chunk every 10 ms", "CPU µs/chunk", "instep", "cpu_us"),
    Figure("100 chunks in one write", "CPU µs/chunk", "onewrite", "cpu_us"),
    Figure("complete responses, 16 connections", "requests/s", "whole16", "rps"),
    Figure("complete responses, 64 connections", "requests/s", "whole64", "rps"),
    Figure("1 connection, p50", "µs", LATENCY, "p50_us"),
    Figure("1 connection, p99", "µs", LATENCY, "p99_us"),
    Figure("40 requests a second, p50", "µs", "steady", "p50_us"),
    Figure("40 requests a second, p99", "µs", "steady", "p99_us"),
    Figure("64 paced streams: first byte, p50", "µs", "paced", "first_byte_p50_us"),
    Figure("64 paced streams: delay, p99", "µs", "paced", "late_p99_us"),
)


@dataclass(frozen=True)
class Verdict:
    """A target with the value that was measured for it."""

    figure: Figure
    ours: paired.Spread | None
    reached: paired.Spread | None
    """What the limit speaks of: the ratio to the other gateway, or our value itself."""
    invalid: str | None

    @property
    def met(self) -> bool | None:
        """True if the target is met; `None` if nothing was measured or the metric has no limit."""
        if self.invalid:
            return False
        if self.reached is None or self.figure.at_most is None:
            return None
        return self.reached.median <= self.figure.at_most


def samples(result: Result) -> list[Sample]:
    """Returns the run's samples, extended by the latency that each gateway adds to direct requests."""
    return paired.added(result.samples, LATENCY, ("p50_us", "p99_us"))


def verdicts(result: Result) -> list[Verdict]:
    """Returns a verdict for every target, in the order of the table."""
    known = samples(result)
    return [_judge(figure, known) for figure in FIGURES if figure.at_most is not None]


def _judge(figure: Figure, known: list[Sample]) -> Verdict:
    ours = paired.spread(paired.by_round(known, figure.work, OURS, figure.value).values())
    reached = ours
    if figure.against:
        reached = paired.ratios(known, figure.work, figure.value, (OURS, figure.against))
    invalid = next((s.invalid for s in known if (s.work, s.peer) == (figure.work, OURS) and s.invalid), None)
    return Verdict(figure, ours, reached, invalid)
