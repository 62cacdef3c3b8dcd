"""Request metrics for Prometheus, counted from the records of requests. The number of series is bounded."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.logs.guardrail_results import count_verdicts
from penstock.metrics import format_labels, format_number
from penstock.settings.monitoring import (
    CONFIG_LABEL,
    KEY_LABEL,
    MODEL_LABEL,
    WORKSPACE_LABEL,
    metadata_key,
    optional_labels,
    prometheus_label_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.logs.observed_records import ObservedLine
    from penstock.settings import Settings

NANODOLLARS_PER_DOLLAR = 1_000_000_000
OTHER = "other"
MAX_LABEL_CHARS = 128
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
# Values of the label `endpoint` for requests that are passed through, and for unknown paths.
PASS_THROUGH, UNKNOWN_ENDPOINT = "proxy", "unknown"
# Labels of every series. `app`, `env` and the labels of the settings are added to them.
LABELS = ("method", "endpoint", "code", "provider", "source", "stream", "cacheStatus")
# Upper bounds of buckets. Dashboards for other gateways rely on them.
SECONDS_BOUNDS = (0.1, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 240, 500, 1000, 3000)
MILLISECONDS_BOUNDS = (
    *(0.1, 1, 2, 5, 10, 30, 50, 75, 100, 150, 200, 350, 500, 1000, 2500, 5000, 10_000, 50_000),
    *(100_000, 300_000, 500_000, 10_000_000),
)


class MeteredRecord(msgspec.Struct, frozen=True):
    """Fields of a record from which metrics are computed. Durations are in milliseconds."""

    request_method: str = ""
    operation: str = ""
    is_proxy_call: bool = False
    response_status_code: int = 0
    ai_org: str = ""
    ai_model: str = ""
    source: str = "gateway"
    stream_mode: bool = False
    cache_status: str = "disabled"
    config: str | None = None
    api_key_name: str | None = None
    api_key_id: str | None = None
    workspace_slug: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    attempts: msgspec.Raw = msgspec.Raw(b"")
    response_time: float | None = None
    time_to_first_byte: float | None = None
    gateway_processing_time: float | None = None
    request_parsing_time: float | None = None
    pre_processing_time: float | None = None
    response_parsing_time: float | None = None
    cache_processing_time: float | None = None
    authentication_time: float | None = None
    limit_check_time: float | None = None
    total_units: int | None = None
    cost_nanodollars: int | None = None
    hook_results: msgspec.Raw = msgspec.Raw(b"")
    is_amendment: bool = False


def measure_times(record: MeteredRecord) -> tuple[float | None, ...]:
    """Returns the value of each histogram in `HISTOGRAMS`, in their order. One function computes all of them, because a
    request has most of the values.
    """
    took, first_byte, added = record.response_time, record.time_to_first_byte, record.gateway_processing_time
    before, parsing = record.pre_processing_time, record.request_parsing_time
    seconds = at_provider = after_first_byte = None
    if took is not None:
        seconds = took / 1000
        # Without attempts, no request was sent to a provider.
        if record.attempts:
            at_provider = None if added is None else max(0.0, took - added)
            after_first_byte = None if first_byte is None else max(0.0, took - first_byte)
    return (
        seconds,
        took,
        at_provider,
        after_first_byte,
        added,
        None if before is None else before + (parsing or 0),
        record.response_parsing_time,
        record.cache_processing_time,
        record.authentication_time,
        record.limit_check_time,
    )


class HistogramFamily(NamedTuple):
    """Name, help text and bucket bounds of a histogram. `measure_times` returns its values."""

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


class Histogram:
    """Counts of one series by bucket. The last bucket has the values above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Starts with no value."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0


class LabelSetCounts:
    """Counters and histograms of all requests with the same labels."""

    def __init__(self, labels: str) -> None:
        """Stores the labels in Prometheus' format, without braces."""
        self.labels = labels
        self.requests = 0
        self.tokens = 0
        self.cost_nanodollars = 0
        # Histograms in the order of `HISTOGRAMS`; `None` for those without a value.
        self.histograms: list[Histogram | None] = [None] * len(HISTOGRAMS)

    def add(self, record: MeteredRecord) -> None:
        """Counts a request."""
        self.requests += 1
        self.add_usage(record.total_units or 0, record.cost_nanodollars or 0)
        histograms = self.histograms
        for index, value in enumerate(measure_times(record)):
            if value is not None:
                histogram = histograms[index]
                if histogram is None:
                    histogram = histograms[index] = Histogram(HISTOGRAMS[index].bounds)
                histogram.counts[bisect_left(histogram.bounds, value)] += 1
                histogram.total += value

    def add_usage(self, tokens: int, cost_nanodollars: int) -> None:
        """Counts usage. A correction to a smaller usage is ignored, because counters must not decrease."""
        self.tokens += max(0, tokens)
        self.cost_nanodollars += max(0, cost_nanodollars)


class RequestMetrics:
    """Counters and histograms of requests by labels. They start at 0 with the process.

    Records are counted after they and their spool position were saved, so none is counted twice.
    """

    def __init__(self, settings: Settings) -> None:
        """Stores the bounds and the optional labels."""
        self.overflows = 0
        self.invalid = 0
        self._is_enabled = settings.metrics.enabled
        self._optional = optional_labels(settings)
        self._names = (*LABELS, *map(prometheus_label_name, self._optional))
        self._fixed = {"app": settings.metrics.app, "env": settings.metrics.environment}
        self._max_values = settings.metrics.label_values
        self._max_sets = settings.metrics.label_sets
        self._values: list[set[str]] = [set() for _ in self._names]
        self._counts: dict[tuple[str, ...], LabelSetCounts] = {}
        # One thread counts records while another renders the metrics.
        self._lock = threading.Lock()
        # Counts for each of `VERDICT_FAMILIES`, by the id of the guardrail or check and its verdict.
        self._verdicts: tuple[Counter[tuple[str, str]], ...] = tuple(Counter() for _ in VERDICT_FAMILIES)
        self._decode = msgspec.json.Decoder(MeteredRecord).decode

    @property
    def label_sets(self) -> int:
        """Number of different combinations of label values."""
        return len(self._counts)

    def observe(self, written: Iterable[ObservedLine]) -> None:
        """Counts records, and usage that became known after its record was written."""
        if not self._is_enabled:
            return
        with self._lock:
            for line in written:
                try:
                    record = self._decode(line.line)
                    original = self._decode(line.original) if line.original else record
                    labels = self._read_labels(original, is_refused=line.is_refused)
                except msgspec.MsgspecError:
                    self.invalid += 1
                    continue
                counts = self._find_counts(labels)
                if record.is_amendment:
                    tokens = (record.total_units or 0) - (original.total_units or 0)
                    counts.add_usage(tokens, (record.cost_nanodollars or 0) - (original.cost_nanodollars or 0))
                else:
                    counts.add(record)
                if record.hook_results:
                    self._count_verdicts(record, original if record.is_amendment else None)

    def render(self) -> str:
        """Renders all metrics in the Prometheus text format."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._render_lines())

    def _read_labels(self, record: MeteredRecord, *, is_refused: bool) -> tuple[str, ...]:
        method = record.request_method.upper()
        plain = (
            method if method in METHODS else OTHER,
            record.operation or (PASS_THROUGH if record.is_proxy_call else UNKNOWN_ENDPOINT),
            str(record.response_status_code),
            record.ai_org,
            record.source,
            "true" if record.stream_mode else "false",
            record.cache_status,
        )
        if not self._optional:
            return plain
        if is_refused:
            # Requests without a valid key have no optional labels: their clients must not choose label values.
            return (*plain, *("" for _ in self._optional))
        return (*plain, *(_read_optional_label(record, label)[:MAX_LABEL_CHARS] for label in self._optional))

    def _count_verdicts(self, record: MeteredRecord, original: MeteredRecord | None) -> None:
        """Counts the verdicts of guardrails and checks. For an amendment, counts only verdicts that the original record
        did not have.
        """
        try:
            verdicts = count_verdicts(record.hook_results)
            known = count_verdicts(original.hook_results if original else msgspec.Raw())
        except msgspec.MsgspecError:
            self.invalid += 1
            return
        for counts, now, before in zip(self._verdicts, verdicts, known, strict=True):
            for (name, verdict), count in (now - before).items():
                key = (name[:MAX_LABEL_CHARS], verdict)
                if key not in counts and len(counts) >= self._max_values:
                    key = (OTHER, verdict)
                    self.overflows += 1
                counts[key] += count

    def _find_counts(self, labels: tuple[str, ...]) -> LabelSetCounts:
        counts = self._counts.get(labels)
        if counts is not None:
            return counts
        values = tuple(
            OTHER if text not in known and len(known) >= self._max_values else text
            for text, known in zip(labels, self._values, strict=True)
        )
        is_full = values not in self._counts and len(self._counts) >= self._max_sets
        if is_full:
            values = (OTHER,) * len(labels)
        if values != labels:
            self.overflows += 1
        counts = self._counts.get(values)
        if counts is None:
            if not is_full:
                for text, known in zip(values, self._values, strict=True):
                    known.add(text)
            label_values = dict(zip(self._names, values, strict=True)) | self._fixed
            counts = self._counts[values] = LabelSetCounts(
                format_labels({name: text for name, text in label_values.items() if text})
            )
        return counts

    def _render_lines(self) -> Iterator[str]:
        all_counts = self._counts.values()
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
        for (name, label, about), verdicts in zip(VERDICT_FAMILIES, self._verdicts, strict=True):
            yield from _render_head(name, "counter", about)
            for (value, verdict), count in verdicts.items():
                labels = format_labels({label: value, "verdict": verdict, **self._fixed})
                yield f"{name}{{{labels}}} {count}"


def _read_optional_label(record: MeteredRecord, label: str) -> str:
    if key := metadata_key(label):
        return msgspec.json.decode(record.metadata, type=dict[str, str]).get(key, "")
    texts = {
        MODEL_LABEL: record.ai_model,
        CONFIG_LABEL: record.config,
        KEY_LABEL: record.api_key_name or record.api_key_id,
        WORKSPACE_LABEL: record.workspace_slug,
    }
    return texts[label] or ""


def _render_head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _render_histogram(name: str, labels: str, bounds: list[str], histogram: Histogram) -> Iterator[str]:
    totals = list(accumulate(histogram.counts))
    for bound, total in zip(bounds, totals, strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
    yield f"{name}_sum{{{labels}}} {format_number(histogram.total)}"
    yield f"{name}_count{{{labels}}} {totals[-1]}"
