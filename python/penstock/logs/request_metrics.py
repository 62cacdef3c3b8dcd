"""Request metrics for Prometheus, counted from the records of requests. The number of series is bounded."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine import RequestCounts
from penstock.metrics import format_labels, format_number
from penstock.settings.monitoring import optional_labels, prometheus_label_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.logs.observed_records import ObservedLine
    from penstock.settings import Settings

NANODOLLARS_PER_DOLLAR = 1_000_000_000
# Labels of every series. `app`, `env` and the labels of the settings are added to them.
LABELS = ("method", "endpoint", "code", "provider", "source", "stream", "cacheStatus")
# Upper bounds of buckets. Dashboards for other gateways rely on them.
SECONDS_BOUNDS = (0.1, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 240, 500, 1000, 3000)
MILLISECONDS_BOUNDS = (
    *(0.1, 1, 2, 5, 10, 30, 50, 75, 100, 150, 200, 350, 500, 1000, 2500, 5000, 10_000, 50_000),
    *(100_000, 300_000, 500_000, 10_000_000),
)


class HistogramFamily(NamedTuple):
    """Name, help text and bucket bounds of a histogram. The engine computes its values from records."""

    name: str
    help: str
    bounds: tuple[float, ...]


HISTOGRAMS = (
    HistogramFamily(
        "http_request_duration_seconds",
        "time from the first request byte to the last response byte",
        SECONDS_BOUNDS,
    ),
    HistogramFamily(
        "gateway_request_duration_milliseconds",
        "time from the first request byte to the last response byte",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "llm_request_duration_milliseconds",
        "time that the gateway waited for providers, retries and the rest of streams included",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "llm_last_byte_diff_duration_milliseconds",
        "time from the first to the last byte of a provider's response",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "gateway_processing_time_excluding_last_byte_ms",
        "time that the gateway added until the first byte of the response",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "pre_request_processing_duration_milliseconds",
        "time from the first request byte until the request was sent to a provider",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "post_request_processing_duration_milliseconds",
        "time to translate the provider's response",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "llm_cache_processing_duration_milliseconds",
        "time to look up the response cache",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "authentication_duration_milliseconds",
        "time to find who sent the request",
        MILLISECONDS_BOUNDS,
    ),
    HistogramFamily(
        "api_key_rate_limit_check_duration_milliseconds",
        "time to count the request in the limits of its caller",
        MILLISECONDS_BOUNDS,
    ),
)
# Name, label and help text of the counters of verdicts.
VERDICT_FAMILIES = (
    (
        "guardrail_verdict_count",
        "guardrail",
        "guardrails that ran, by verdict: passed, failed, denied, would_deny, skipped",
    ),
    ("guardrail_check_count", "check", "checks of guardrails that ran, by verdict: passed, failed, error"),
)


class LabelSetCounts(NamedTuple):
    """Counters and histograms of all requests with the same labels."""

    labels: str
    """The labels in Prometheus' format, without braces."""
    requests: int
    tokens: int
    cost_nanodollars: int
    histograms: list[tuple[list[int], float] | None]
    """Counts by bucket and sum of the values, in the order of `HISTOGRAMS`; `None` for histograms without a value."""


class RequestMetrics:
    """Counters and histograms of requests by labels. They start at 0 with the process.

    Records are counted after they and their spool position were saved, so none is counted twice. The engine counts
    them, because Python code for each record would take several times as long.
    """

    def __init__(self, settings: Settings) -> None:
        """Stores the bounds and the optional labels."""
        self._is_enabled = settings.metrics.enabled
        optional = optional_labels(settings)
        self._names = (*LABELS, *map(prometheus_label_name, optional))
        self._fixed = {"app": settings.metrics.app, "env": settings.metrics.environment}
        buckets = [list(map(float, family.bounds)) for family in HISTOGRAMS]
        self._counts = RequestCounts(
            list(optional), settings.metrics.label_values, settings.metrics.label_sets, buckets
        )

    @property
    def label_sets(self) -> int:
        """Number of different combinations of label values."""
        return len(self._counts)

    @property
    def overflows(self) -> int:
        """Number of values that were counted as `other`."""
        return self._counts.overflow_count

    @property
    def invalid(self) -> int:
        """Number of records that could not be read."""
        return self._counts.invalid_count

    def observe(self, written: Iterable[ObservedLine]) -> None:
        """Counts records, and usage that became known after its record was written."""
        accepted: list[bytes] = []
        refused: list[bytes] = []
        amendments: list[tuple[bytes, bytes]] = []
        for line in written:
            if line.original:
                amendments.append((line.line, line.original))
            else:
                (refused if line.is_refused else accepted).append(line.line)
        self.count(accepted, refused, amendments)

    def count(self, accepted: list[bytes], refused: list[bytes], amendments: list[tuple[bytes, bytes]]) -> None:
        """Counts the records of requests with a valid key, those of refused requests, and amendments with the records
        that they amend.
        """
        if not self._is_enabled:
            return
        self._counts.add_records(accepted, is_refused=False)
        self._counts.add_records(refused, is_refused=True)
        self._counts.add_amendments(amendments)

    def render(self) -> str:
        """Renders all metrics in the Prometheus text format."""
        return "".join(f"{line}\n" for line in self._render_lines())

    def _load_counts(self) -> list[LabelSetCounts]:
        return [
            LabelSetCounts(self._render_labels(values), requests, tokens, nanodollars, histograms)
            for values, requests, tokens, nanodollars, histograms in self._counts.label_sets()
        ]

    def _render_labels(self, values: list[str]) -> str:
        texts = dict(zip(self._names, values, strict=True)) | self._fixed
        return format_labels({name: text for name, text in texts.items() if text})

    def _render_lines(self) -> Iterator[str]:
        all_counts = self._load_counts()
        yield from _render_head("request_count", "counter", "completed requests")
        yield from (f"request_count{{{counts.labels}}} {counts.requests}" for counts in all_counts)
        yield from _render_head("llm_cost_sum", "gauge", "cost of requests in US dollars, since the log worker started")
        for counts in all_counts:
            yield f"llm_cost_sum{{{counts.labels}}} {format_number(counts.cost_nanodollars / NANODOLLARS_PER_DOLLAR)}"
        yield from _render_head("llm_token_sum", "gauge", "tokens of requests, since the log worker started")
        yield from (f"llm_token_sum{{{counts.labels}}} {counts.tokens}" for counts in all_counts)
        for index, family in enumerate(HISTOGRAMS):
            yield from _render_head(family.name, "histogram", family.help)
            bounds = [*map(format_number, family.bounds), "+Inf"]
            for counts in all_counts:
                if histogram := counts.histograms[index]:
                    yield from _render_histogram(family.name, counts.labels, bounds, histogram)
        for (name, label, about), verdicts in zip(VERDICT_FAMILIES, self._counts.verdicts(), strict=True):
            yield from _render_head(name, "counter", about)
            for value, verdict, count in verdicts:
                labels = format_labels({label: value, "verdict": verdict, **self._fixed})
                yield f"{name}{{{labels}}} {count}"


def _render_head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _render_histogram(name: str, labels: str, bounds: list[str], histogram: tuple[list[int], float]) -> Iterator[str]:
    counts, sum_of_values = histogram
    totals = list(accumulate(counts))
    for bound, total in zip(bounds, totals, strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
    yield f"{name}_sum{{{labels}}} {format_number(sum_of_values)}"
    yield f"{name}_count{{{labels}}} {totals[-1]}"
