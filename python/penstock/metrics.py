"""Metrics of the engine workers and the control process, rendered for Prometheus."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FORGET_SECONDS = 60.0
# Maximum number of tokens whose limits wait until they are stored. Workers report further ones again.
MAX_SEEN_TOKENS = 20_000


class MetricFamily(NamedTuple):
    """Name, type and help text of a Prometheus metric."""

    name: str
    kind: str
    help: str


# Metric family for each name of a metric that the engine pushes. Metrics with other names are exported under these
# names.
METRIC_FAMILIES = {
    "requests": MetricFamily("penstock_requests_total", "counter", "completed requests, by status class"),
    "in_flight": MetricFamily("penstock_requests_in_flight", "gauge", "requests in progress"),
    "durations": MetricFamily(
        "penstock_request_duration_seconds", "histogram", "time from the first request byte to the last response byte"
    ),
    "aborted": MetricFamily(
        "penstock_requests_aborted_total", "counter", "requests whose client disconnected before the end"
    ),
    "cut": MetricFamily("penstock_responses_truncated_total", "counter", "responses that the provider cut off"),
    "streams": MetricFamily("penstock_streams_total", "counter", "streamed answers"),
    "stream_chunks": MetricFamily(
        "penstock_stream_chunks_total", "counter", "chunks of streamed responses sent to clients"
    ),
    "bytes_out": MetricFamily("penstock_bytes_out_total", "counter", "response bytes sent to clients"),
    "tokens_in": MetricFamily("penstock_tokens_in_total", "counter", "input tokens, as the providers count them"),
    "tokens_out": MetricFamily("penstock_tokens_out_total", "counter", "output tokens, as the providers count them"),
    "tokens_estimated": MetricFamily(
        "penstock_tokens_estimated_total",
        "counter",
        "input and output tokens that the gateway counted because the provider reported none",
    ),
    "cost": MetricFamily("penstock_cost_nanodollars_total", "counter", "cost of requests, in billionths of a dollar"),
    "unpriced": MetricFamily(
        "penstock_requests_unpriced_total", "counter", "requests that used tokens without a known price"
    ),
    "counts_guessed": MetricFamily(
        "penstock_token_counts_estimated_by_length_total",
        "counter",
        "responses whose tokens were estimated by length because the counting queue was full",
    ),
    "translated": MetricFamily(
        "penstock_requests_translated_total", "counter", "requests translated to another API format"
    ),
    "lost": MetricFamily(
        "penstock_requests_partly_translated_total",
        "counter",
        "requests with fields dropped in translation, in the request or the response",
    ),
    "streams_buffered": MetricFamily(
        "penstock_streams_buffered_total", "counter", "streams that were buffered and sent when complete"
    ),
    "continued": MetricFamily("penstock_streams_continued_total", "counter", "streams that another target continued"),
    "buffer_exceeded": MetricFamily(
        "penstock_stream_recovery_overflows_total",
        "counter",
        "streams too long to be buffered or continued: sent as they arrived",
    ),
    "hedged": MetricFamily(
        "penstock_requests_hedged_total", "counter", "requests that were hedged with a second attempt"
    ),
    "management": MetricFamily(
        "penstock_management_requests_total", "counter", "requests forwarded to the management API"
    ),
    "management_refused": MetricFamily(
        "penstock_management_requests_refused_total",
        "counter",
        "management requests rejected because no memory was left for their bodies",
    ),
    "audit_refusals_dropped": MetricFamily(
        "penstock_audit_refusals_dropped_total",
        "counter",
        "refused management requests without an entry in the audit log, because there were too many at once",
    ),
    "bodies_refused": MetricFamily(
        "penstock_request_bodies_refused_total",
        "counter",
        "model requests rejected because no memory was left for their bodies",
    ),
    "buffered_body_bytes": MetricFamily(
        "penstock_request_bodies_bytes", "gauge", "bytes of large request bodies that are buffered until the response"
    ),
    "panics": MetricFamily("penstock_panics_total", "counter", "requests that ended with a panic of the engine"),
    "intercepted": MetricFamily(
        "penstock_requests_fast_path_total", "counter", "requests that the engine handled without a Python task"
    ),
    "plain": MetricFamily(
        "penstock_requests_asgi_fallback_total", "counter", "requests that passed through a Python task"
    ),
    "retries": MetricFamily("penstock_retries_total", "counter", "retries"),
    "retries_refused": MetricFamily(
        "penstock_retries_refused_total", "counter", "retries that a target's retry budget did not allow"
    ),
    "cache_hits": MetricFamily("penstock_cache_hits_total", "counter", "requests served from the response cache"),
    "cache_misses": MetricFamily("penstock_cache_misses_total", "counter", "requests without a cached response"),
    "cache_refreshes": MetricFamily(
        "penstock_cache_refreshes_total", "counter", "requests that forced a refresh of the cached response"
    ),
    "breakers_open": MetricFamily("penstock_circuit_breakers_open", "gauge", "targets whose circuit breaker is open"),
    "breakers_opened": MetricFamily(
        "penstock_circuit_breakers_opened_total",
        "counter",
        "circuit breakers opened after too many failures of a target",
    ),
    "breaker_skips": MetricFamily(
        "penstock_circuit_breaker_skips_total",
        "counter",
        "targets that requests skipped because their circuit breaker was open",
    ),
    "guardrails_passed": MetricFamily("penstock_guardrails_passed_total", "counter", "guardrails that passed"),
    "guardrails_failed": MetricFamily(
        "penstock_guardrails_failed_total", "counter", "guardrails that failed without denying anything"
    ),
    "guardrails_denied": MetricFamily(
        "penstock_guardrails_denied_total", "counter", "guardrails that denied a request or a response"
    ),
    "guardrails_skipped": MetricFamily(
        "penstock_guardrails_skipped_total", "counter", "guardrails that could not read what they should check"
    ),
    "redis_up": MetricFamily(
        "penstock_redis_up", "gauge", "1 while Redis responds in time, 0 while a worker runs without it"
    ),
    "redis_lookups": MetricFamily("penstock_redis_lookups_total", "counter", "cache lookups in Redis"),
    "redis_hits": MetricFamily("penstock_redis_hits_total", "counter", "cache lookups in Redis that found a response"),
    "redis_slow": MetricFamily("penstock_redis_slow_total", "counter", "cache lookups in Redis that timed out"),
    "redis_refused": MetricFamily("penstock_redis_refused_total", "counter", "commands that Redis rejected"),
    "redis_dropped": MetricFamily(
        "penstock_redis_dropped_total",
        "counter",
        "commands not sent to Redis: it was unreachable, or the queue was full",
    ),
    "redis_lost": MetricFamily(
        "penstock_redis_connections_lost_total", "counter", "connections to Redis that were lost"
    ),
    "redis_messages": MetricFamily(
        "penstock_redis_messages_total", "counter", "messages received from other workers over Redis"
    ),
    "records": MetricFamily("penstock_records_total", "counter", "records added to the outbox"),
    "records_dropped": MetricFamily(
        "penstock_records_dropped_total",
        "counter",
        "records lost because the outbox was full, or because their workspace used its share of it",
    ),
    "refused_records": MetricFamily(
        "penstock_refused_records_total",
        "counter",
        "records of requests without a valid key, kept in a file of their own",
    ),
    "refused_records_dropped": MetricFamily(
        "penstock_refused_records_dropped_total",
        "counter",
        "records of requests without a valid key that were lost because their outbox was full",
    ),
    "record_bodies_dropped": MetricFamily(
        "penstock_record_bodies_dropped_total",
        "counter",
        "records whose bodies were left out because the spool was nearly full or could not be written",
    ),
    "spool_bytes": MetricFamily(
        "penstock_spool_bytes", "gauge", "bytes of the spool that the log worker has not deleted yet"
    ),
    "spool_syncs": MetricFamily(
        "penstock_spool_syncs_total", "counter", 'writes of records to the disk, with `records.durability = "power"`'
    ),
    "spool_sync_failures": MetricFamily(
        "penstock_spool_sync_failures_total",
        "counter",
        "writes of records to the disk that failed, and responses that did not wait longer for one",
    ),
    "node_store_dropped": MetricFamily(
        "penstock_node_store_dropped_total",
        "counter",
        "node store entries of workers that were dropped because the queue was full",
    ),
    "node_store_unanswered": MetricFamily(
        "penstock_node_store_unanswered_total",
        "counter",
        "requests that continued because the control process did not return a value of the node store in time",
    ),
    "limits_rejected": MetricFamily(
        "penstock_limit_rejections_total", "counter", "requests and attempts that a rate limit or budget rejected"
    ),
    "limits_would_reject": MetricFamily(
        "penstock_limit_dry_run_rejections_total", "counter", "rejections that limits with `dry_run` only counted"
    ),
    "limit_counter_updates": MetricFamily(
        "penstock_limit_counter_updates_total", "counter", "accesses of workers to the counters that they share"
    ),
    "limit_counter_failures": MetricFamily(
        "penstock_limit_counter_failures_total", "counter", "accesses that failed; the worker then admits its share"
    ),
    "limit_redis_trips": MetricFamily(
        "penstock_limit_redis_trips_total", "counter", "requests and renewals that sent a command to Redis for limits"
    ),
    "limit_redis_failures": MetricFamily(
        "penstock_limit_redis_failures_total", "counter", "of these, those that Redis did not answer in time"
    ),
    "limit_alerts": MetricFamily("penstock_limit_alerts_total", "counter", "alerts of budgets"),
    "limit_alerts_dropped": MetricFamily(
        "penstock_limit_alerts_dropped_total", "counter", "alerts that the webhook of the settings did not accept"
    ),
    "limit_usage_dropped": MetricFamily(
        "penstock_limit_usage_dropped_total", "counter", "sums of usage that the database of the store rejected"
    ),
    "limit_groups_shared": MetricFamily(
        "penstock_limit_shared_groups_total",
        "counter",
        "requests whose group value shares a counter, because the limit has too many values",
    ),
    "outbox_bytes": MetricFamily(
        "penstock_outbox_bytes", "gauge", "bytes of records in the outbox that wait to be written"
    ),
    "idle_connections": MetricFamily(
        "penstock_upstream_idle_connections", "gauge", "idle upstream connections kept for the next request"
    ),
    "batches_running": MetricFamily("penstock_batches_running", "gauge", "batches that run on this node"),
    "batch_lines_answered": MetricFamily(
        "penstock_batch_lines_answered_total", "counter", "batch lines that succeeded"
    ),
    "batch_lines_failed": MetricFamily("penstock_batch_lines_failed_total", "counter", "batch lines that failed"),
    "batch_cost": MetricFamily(
        "penstock_batch_cost_nanodollars_total",
        "counter",
        "cost of lines in batches that providers ran, in billionths of a dollar",
    ),
    "files_deleted": MetricFamily("penstock_files_deleted_total", "counter", "files deleted because they expired"),
    "job_restarts": MetricFamily(
        "penstock_job_restarts_total", "counter", "restarts of control process jobs after a failure"
    ),
    "publish_waits": MetricFamily(
        "penstock_publish_waits_total", "counter", "changes whose response waited until the workers applied them"
    ),
    "publish_waits_given_up": MetricFamily(
        "penstock_publish_waits_given_up_total",
        "counter",
        "changes whose response was sent before all workers applied them",
    ),
    "log_worker_up": MetricFamily("penstock_log_worker_up", "gauge", "1 while the log worker responds"),
    "log_store_up": MetricFamily("penstock_log_store_up", "gauge", "1 while the log store can be written"),
    "log_records_stored": MetricFamily("penstock_log_records_stored_total", "counter", "records in the log store"),
    "log_records_invalid": MetricFamily(
        "penstock_log_records_invalid_total", "counter", "records that the log store could not read"
    ),
    "log_store_failures": MetricFamily(
        "penstock_log_store_failures_total", "counter", "failed writes to the log store; each is repeated"
    ),
    "log_worker_lag_seconds": MetricFamily(
        "penstock_log_worker_lag_seconds", "gauge", "time since the log store had everything that was in the spool"
    ),
    "record_file_lag_seconds": MetricFamily(
        "penstock_record_file_lag_seconds", "gauge", "time since the record file had everything that was in the spool"
    ),
    "record_file_failures": MetricFamily(
        "penstock_record_file_failures_total", "counter", "failed writes to the record file; each is repeated"
    ),
    "log_refused_records_dropped": MetricFamily(
        "penstock_log_refused_records_dropped_total",
        "counter",
        "records of refused requests that could not be written to their file",
    ),
    "log_spool_bytes": MetricFamily("penstock_log_spool_bytes", "gauge", "size of the spool as the log worker sees it"),
    "log_spool_age_seconds": MetricFamily(
        "penstock_log_spool_age_seconds", "gauge", "age of the oldest segment of the spool"
    ),
    "log_spool_damaged": MetricFamily(
        "penstock_log_spool_damaged_total", "counter", "damaged places of the spool that were skipped"
    ),
    "log_bodies_dropped": MetricFamily(
        "penstock_log_bodies_dropped_total", "counter", "records whose bodies the log worker could not keep"
    ),
    "log_bodies_waiting_bytes": MetricFamily(
        "penstock_log_bodies_waiting_bytes", "gauge", "bytes of bodies that wait for their upload"
    ),
    "log_uploads": MetricFamily("penstock_log_uploads_total", "counter", "packs of bodies that were uploaded"),
    "log_seal_failures": MetricFamily(
        "penstock_log_seal_failures_total",
        "counter",
        "failed attempts to move the records of earlier days to files; each is repeated",
    ),
    "log_upload_failures": MetricFamily(
        "penstock_log_upload_failures_total", "counter", "failed uploads and probes; each is repeated"
    ),
    "log_breaker_state": MetricFamily(
        "penstock_log_breaker_state",
        "gauge",
        "circuit breaker of the bucket for bodies: 0 closed, 1 probing, 2 open",
    ),
    "otel_records_exported": MetricFamily(
        "penstock_otel_records_exported_total", "counter", "requests whose spans the OpenTelemetry collector accepted"
    ),
    "otel_records_failed": MetricFamily(
        "penstock_otel_records_failed_total", "counter", "requests whose spans the collector refused for good"
    ),
    "otel_records_skipped": MetricFamily(
        "penstock_otel_records_skipped_total",
        "counter",
        "requests that were not exported because the collector did not respond for too long",
    ),
    "otel_spans_rejected": MetricFamily(
        "penstock_otel_spans_rejected_total", "counter", "spans of accepted exports that the collector rejected"
    ),
    "otel_export_failures": MetricFamily(
        "penstock_otel_export_failures_total", "counter", "exports that failed; each is repeated"
    ),
    "otel_lag_seconds": MetricFamily(
        "penstock_otel_lag_seconds", "gauge", "age of the oldest request whose spans are not exported yet"
    ),
    "request_metrics_label_sets": MetricFamily(
        "penstock_request_metrics_label_sets", "gauge", "combinations of labels of the request metrics"
    ),
    "request_metrics_overflows": MetricFamily(
        "penstock_request_metrics_overflows_total",
        "counter",
        "requests counted with the label value `other`, because there are too many values or combinations",
    ),
    "request_metrics_invalid": MetricFamily(
        "penstock_request_metrics_invalid_total", "counter", "records that the request metrics could not read"
    ),
    "log_tail_subscribers": MetricFamily("penstock_log_tail_subscribers", "gauge", "open live tails of logs"),
}


class BatchMetrics:
    """Metrics of batches and files that the control process counts itself."""

    running_batches = 0
    succeeded_lines = 0
    failed_lines = 0
    cost_nanodollars = 0
    deleted_files = 0

    def values_by_name(self) -> dict[str, float]:
        """Returns the values by metric name."""
        return {
            "batches_running": self.running_batches,
            "batch_lines_answered": self.succeeded_lines,
            "batch_lines_failed": self.failed_lines,
            "batch_cost": self.cost_nanodollars,
            "files_deleted": self.deleted_files,
        }


class JobMetrics:
    """Metrics of the control process's background jobs."""

    restart_count = 0
    limit_alerts = 0
    dropped_limit_alerts = 0
    dropped_limit_usage = 0

    def values_by_name(self) -> dict[str, float]:
        """Returns the values by metric name."""
        return {
            "job_restarts": self.restart_count,
            "limit_alerts": self.limit_alerts,
            "limit_alerts_dropped": self.dropped_limit_alerts,
            "limit_usage_dropped": self.dropped_limit_usage,
        }


class RefusalCounter:
    """Counts refused management requests that were dropped without an entry in the audit log."""

    dropped = 0

    def values_by_name(self) -> dict[str, float]:
        """Returns the values by metric name."""
        return {"audit_refusals_dropped": self.dropped}


class TokenLimit(msgspec.Struct, frozen=True):
    """A limit of a token, as the data plane enforces it. Amounts are in requests, tokens or nano-dollars."""

    limit_id: str
    type: str
    limit: int
    alert: int | None = None
    # Unit of a rate limit, such as `minute`; `None` for a budget.
    unit: str | None = None
    # Period of a budget in Unix milliseconds.
    period_start: int | None = None
    period_end: int | None = None


class SeenToken(msgspec.Struct, frozen=True):
    """Limits of the token of one user in one workspace."""

    organisation_id: str
    workspace_id: str
    user: str
    limits: list[TokenLimit]


class MetricsPush(msgspec.Struct, frozen=True):
    """Metrics that one engine worker pushes about once a second."""

    worker: int
    pid: int
    requests: dict[str, int] = {}
    duration_bounds_ms: tuple[float, ...] = ()
    durations: tuple[int, ...] = ()
    duration_us: int = 0
    held: list[tuple[str, str, int]] = []
    """Amounts of budgets that are reserved for requests in progress: limit id, group value and amount. They include the
    requests of other workers, as far as this worker knows them.
    """
    tokens: list[SeenToken] = []
    """Limits of tokens that the worker has seen, if they may be new."""


class MetricsStore:
    """Stores the last metrics that each engine worker pushed."""

    def __init__(self) -> None:
        """Creates an empty store."""
        self._pushes: dict[int, tuple[float, MetricsPush, dict[str, float]]] = {}
        self._seen_tokens: list[SeenToken] = []

    def accept_push(self, data: bytes) -> None:
        """Stores a push in place of the worker's previous one. Raises InvalidError if it is malformed."""
        try:
            push = msgspec.json.decode(data, type=MetricsPush)
            plain = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            message = f"not a valid metrics push: {error}"
            raise InvalidError(message) from None
        numbers = {name: float(bytes(raw)) for name, raw in plain.items() if bytes(raw)[:1].isdigit()}
        for name in MetricsPush.__struct_fields__:
            numbers.pop(name, None)
        self._seen_tokens += push.tokens[: MAX_SEEN_TOKENS - len(self._seen_tokens)]
        self._pushes[push.worker] = (time.monotonic(), push, numbers)

    def take_seen_tokens(self) -> list[SeenToken]:
        """Returns the tokens with limits that workers have reported since the last call."""
        tokens, self._seen_tokens = self._seen_tokens, []
        return tokens

    def live_workers(self) -> list[MetricsPush]:
        """Returns the last pushes of the workers that reported recently."""
        return [push for push, _ in self.recent_pushes()]

    def held_amounts(self) -> dict[tuple[str, str], int]:
        """Returns the amounts of budgets that are reserved for requests in progress, by limit id and group value."""
        amounts: dict[tuple[str, str], int] = {}
        for push in self.live_workers():
            for limit_id, group, amount in push.held:
                amounts[limit_id, group] = max(amount, amounts.get((limit_id, group), 0))
        return amounts

    def render(self, control_metrics: Mapping[str, float]) -> str:
        """Renders all metrics in the Prometheus text format. `control_metrics` has the control process's metrics."""
        samples: dict[str, list[str]] = {}
        for push, numbers in self.recent_pushes():
            worker = {"worker": str(push.worker)}
            for status, count in push.requests.items():
                samples.setdefault("requests", []).append(_format_sample("", {**worker, "status": status}, count))
            samples.setdefault("durations", []).extend(_histogram_samples(push, worker))
            for name, number in numbers.items():
                samples.setdefault(name, []).append(_format_sample("", worker, number))
        for name, number in control_metrics.items():
            samples[name] = [_format_sample("", {}, number)]
        return "".join(_format_family(name, lines) for name, lines in samples.items())

    def recent_pushes(self) -> Iterator[tuple[MetricsPush, dict[str, float]]]:
        """Returns the last pushes of the workers that reported recently, and their plain metrics by name."""
        oldest = time.monotonic() - FORGET_SECONDS
        return ((push, numbers) for reported_at, push, numbers in self._pushes.values() if reported_at >= oldest)


def _histogram_samples(push: MetricsPush, worker: dict[str, str]) -> Iterator[str]:
    counts = list(accumulate(push.durations))
    bounds = [*(format_number(bound / 1000) for bound in push.duration_bounds_ms), "+Inf"]
    # The last bucket counts the requests that took longer than all bounds, so it has the bound `+Inf`.
    for bound, count in zip(bounds, counts, strict=False):
        yield _format_sample("_bucket", {**worker, "le": bound}, count)
    yield _format_sample("_sum", worker, push.duration_us / 1e6)
    yield _format_sample("_count", worker, counts[-1] if counts else 0)


def _format_family(name: str, lines: Iterable[str]) -> str:
    family = METRIC_FAMILIES.get(name, MetricFamily(f"penstock_{name}", "untyped", ""))
    about = f"# HELP {family.name} {family.help}\n" if family.help else ""
    return f"{about}# TYPE {family.name} {family.kind}\n" + "".join(f"{family.name}{line}\n" for line in lines)


def _format_sample(suffix: str, labels: Mapping[str, str], value: float) -> str:
    inside = format_labels(labels)
    return f"{suffix}{{{inside}}} {format_number(value)}" if inside else f"{suffix} {format_number(value)}"


def format_labels(labels: Mapping[str, str]) -> str:
    """Returns labels in Prometheus' format without the braces. The values are escaped."""
    return ",".join(f'{name}="{_escape_label_value(text)}"' for name, text in labels.items())


def _escape_label_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def format_number(value: float) -> str:
    """Formats a number for Prometheus. Whole numbers have no decimal point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
