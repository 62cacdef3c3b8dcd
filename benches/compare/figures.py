"""Metrics of the comparison with their target values, and the check of a run against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.compare import paired

if TYPE_CHECKING:
    from benches.compare.result import Result, Sample

PENSTOCK = "penstock"
LATENCY_WORKLOAD = "latency"


@dataclass(frozen=True)
class Metric:
    """One measured value of one workload. With a limit it is a target; without one it is informational."""

    title: str
    unit: str
    workload: str
    value_key: str
    max_value: float | None = None
    baseline: str | None = None
    """Gateway of whose value `max_value` is a multiple. `None`: `max_value` limits the value itself."""


def _cpu_metric(title: str, unit: str, workload: str, at_most: float, against: str = "nginx") -> Metric:
    return Metric(title, f"CPU µs/{unit}", workload, "cpu_us", at_most, against)


METRICS: tuple[Metric, ...] = (
    _cpu_metric("complete response, 16 connections", "request", "whole16", 2.5),
    _cpu_metric("complete response, 64 connections", "request", "whole64", 2.5),
    _cpu_metric("complete response, 16 connections", "request", "whole16", 1.0, "envoy"),
    _cpu_metric("complete response, 64 connections", "request", "whole64", 1.0, "envoy"),
    _cpu_metric("saved provider, price, log without bodies, 16 connections", "request", "realistic16", 2.8),
    _cpu_metric("saved provider, price, log without bodies, 64 connections", "request", "realistic64", 2.2),
    Metric(
        "the same with bodies, 64 connections (a multiple of nginx without)",
        "CPU µs/request",
        "realistic64",
        "bodies_us",
        3.0,
        "nginx",
    ),
    Metric("three policies that match", "× the CPU of the same request without", "realistic64", "of_unlimited", 1.04),
    Metric("saved prompt: added to a plain request", "CPU µs/request", "realistic64", "prompt_us", 15),
    Metric("log without bodies: added, log worker included", "CPU µs/request", "realistic64", "log_us"),
    Metric("log without bodies: added to the edge process", "CPU µs/request", "realistic64", "edge_log_us", 4),
    Metric("edge process alone: complete response, 16 connections", "CPU µs/request", "whole16", "edge_us"),
    Metric("edge process alone: saved provider, 16 connections", "CPU µs/request", "realistic16", "edge_us"),
    Metric("edge process alone: saved provider, 64 connections", "CPU µs/request", "realistic64", "edge_us"),
    Metric("edge process alone: three policies", "× the same without", "realistic64", "edge_of_unlimited"),
    _cpu_metric("2,000 requests a second", "request", "rate", 3.0),
    _cpu_metric("64 streams, one chunk every 10 ms", "chunk", "paced", 1.5),
    _cpu_metric("burst stream, 100 chunks without pause", "chunk", "burst", 1.0),
    _cpu_metric("1 MB request body", "request", "body", 1.5),
    _cpu_metric("cached response, 16 connections", "request", "cache", 2.5),
    Metric("cached response", "× the CPU of the same response forwarded", "cache", "of_forwarded", 0.8),
    Metric("5 levels, 100 targets: added to one target", "CPU µs/request", "routing", "nested_us", 5),
    Metric("1,000 conditions: added to one target", "CPU µs/request", "routing", "conditional_us", 50),
    Metric("five checks of a text of 2 KB: added", "CPU µs/request", "guardrails", "checks_us", 30),
    Metric("five checks of a text of 2 KB: added", "CPU µs/request", "guardrails", "checks_us", 1 / 30, "portkey"),
    Metric("added latency, 1 connection, p50", "µs", LATENCY_WORKLOAD, "added_p50_us", 2.5, "nginx"),
    Metric("added latency, 1 connection, p99", "µs", LATENCY_WORKLOAD, "added_p99_us", 2.5, "nginx"),
    Metric("500 slow streams", "KB/stream", "hold", "kb_per_stream", 40),
    Metric("a client that never reads", "KB/client", "stuck", "kb_per_client", 256),
    Metric("p99 while management burns CPU in Python: increase", "ms", "tail", "rise_ms", 1),
    Metric("start to first response", "s", "start", "start_s", 1),
    Metric("idle memory", "MB", "start", "idle_mb", 80),
    Metric("p99 while management pages are requested at capacity: increase", "ms", "tail", "pages_rise_ms"),
    Metric("64 streams in step, one chunk every 10 ms", "CPU µs/chunk", "instep", "cpu_us"),
    Metric("100 chunks in one write", "CPU µs/chunk", "onewrite", "cpu_us"),
    Metric("complete responses, 16 connections", "requests/s", "whole16", "rps"),
    Metric("complete responses, 64 connections", "requests/s", "whole64", "rps"),
    Metric("1 connection, p50", "µs", LATENCY_WORKLOAD, "p50_us"),
    Metric("1 connection, p99", "µs", LATENCY_WORKLOAD, "p99_us"),
    Metric("40 requests a second, p50", "µs", "steady", "p50_us"),
    Metric("40 requests a second, p99", "µs", "steady", "p99_us"),
    Metric("64 paced streams: first byte, p50", "µs", "paced", "first_byte_p50_us"),
    Metric("64 paced streams: delay, p99", "µs", "paced", "late_p99_us"),
)


@dataclass(frozen=True)
class Verdict:
    """A target with the value that was measured for it."""

    metric: Metric
    penstock_value: paired.Spread | None
    measured: paired.Spread | None
    """Value that is compared with the limit: the ratio to the baseline gateway, or Penstock's value without one."""
    invalid_reason: str | None

    @property
    def is_met(self) -> bool | None:
        """True if the target is met; `None` if nothing was measured or the metric has no limit."""
        if self.invalid_reason:
            return False
        if self.measured is None or self.metric.max_value is None:
            return None
        return self.measured.median <= self.metric.max_value


def add_latency_overhead(result: Result) -> list[Sample]:
    """Returns the run's samples, extended by the latency that each gateway adds to direct requests."""
    return paired.add_overhead(result.samples, LATENCY_WORKLOAD, ("p50_us", "p99_us"))


def evaluate_targets(result: Result) -> list[Verdict]:
    """Returns a verdict for every target, in the order of the table."""
    samples = add_latency_overhead(result)
    return [_evaluate_target(figure, samples) for figure in METRICS if figure.max_value is not None]


def _evaluate_target(figure: Metric, samples: list[Sample]) -> Verdict:
    penstock_spread = paired.compute_spread(
        paired.values_by_round(samples, figure.workload, PENSTOCK, figure.value_key).values()
    )
    reached = penstock_spread
    if figure.baseline:
        reached = paired.ratio_spread(samples, figure.workload, figure.value_key, (PENSTOCK, figure.baseline))
    invalid = next(
        (s.invalid_reason for s in samples if (s.workload, s.peer) == (figure.workload, PENSTOCK) and s.invalid_reason),
        None,
    )
    return Verdict(figure, penstock_spread, reached, invalid)
