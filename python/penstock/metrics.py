"""Keeps the figures that the engines push, and renders them for Prometheus."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FORGET_SECONDS = 60.0


class MetricFamily(NamedTuple):
    """A figure as it is called outside."""

    name: str
    kind: str
    help: str


# By the names that the engine uses. What it pushes besides these is shown under its own name.
METRIC_FAMILIES = {
    "requests": MetricFamily("penstock_requests_total", "counter", "requests answered, by class of status"),
    "in_flight": MetricFamily("penstock_requests_in_flight", "gauge", "requests being answered"),
    "durations": MetricFamily(
        "penstock_request_duration_seconds", "histogram", "time from the first byte in to the last out"
    ),
    "aborted": MetricFamily("penstock_requests_aborted_total", "counter", "requests whose caller left before the end"),
    "cut": MetricFamily("penstock_answers_cut_total", "counter", "answers that the provider broke off"),
    "streams": MetricFamily("penstock_streams_total", "counter", "streamed answers"),
    "pieces": MetricFamily(
        "penstock_stream_pieces_total", "counter", "portions in which streamed answers were passed on"
    ),
    "bytes_out": MetricFamily("penstock_bytes_out_total", "counter", "bytes of answers passed on"),
    "tokens_in": MetricFamily("penstock_tokens_in_total", "counter", "tokens asked, as the providers count them"),
    "tokens_out": MetricFamily("penstock_tokens_out_total", "counter", "tokens answered, as the providers count them"),
    "tokens_estimated": MetricFamily(
        "penstock_tokens_estimated_total", "counter", "tokens, of both, that the gateway counted because none were told"
    ),
    "cost": MetricFamily("penstock_cost_nanodollars_total", "counter", "what requests cost, in billionths of a dollar"),
    "unpriced": MetricFamily(
        "penstock_requests_unpriced_total", "counter", "requests that used tokens of which no price is known"
    ),
    "counts_guessed": MetricFamily(
        "penstock_token_counts_guessed_total", "counter", "answers whose tokens were guessed: too many waited"
    ),
    "translated": MetricFamily("penstock_requests_translated_total", "counter", "requests said in another dialect"),
    "lost": MetricFamily(
        "penstock_requests_partly_translated_total",
        "counter",
        "requests of which not all could be told, to the provider or back",
    ),
    "held": MetricFamily("penstock_streams_held_total", "counter", "streams that were passed on once they were whole"),
    "continued": MetricFamily("penstock_streams_continued_total", "counter", "streams that another target continued"),
    "unheld": MetricFamily(
        "penstock_streams_unheld_total", "counter", "streams too long to be held or continued: passed on as they came"
    ),
    "hedged": MetricFamily("penstock_requests_hedged_total", "counter", "requests of which a second attempt was sent"),
    "management": MetricFamily(
        "penstock_management_requests_total", "counter", "requests forwarded to the management API"
    ),
    "management_refused": MetricFamily(
        "penstock_management_requests_refused_total", "counter", "management requests whose bodies found no room"
    ),
    "bodies_refused": MetricFamily(
        "penstock_request_bodies_refused_total", "counter", "requests to providers whose bodies found no room"
    ),
    "gathered_bytes": MetricFamily(
        "penstock_request_bodies_bytes", "gauge", "large request bodies that are held whole until they are answered"
    ),
    "panics": MetricFamily("penstock_panics_total", "counter", "requests ended by a defect of the engine"),
    "intercepted": MetricFamily(
        "penstock_requests_intercepted_total", "counter", "requests that never entered a Python task"
    ),
    "plain": MetricFamily("penstock_requests_plain_total", "counter", "requests that came through a Python task"),
    "retries": MetricFamily("penstock_retries_total", "counter", "further attempts at a target"),
    "retries_refused": MetricFamily(
        "penstock_retries_refused_total", "counter", "further attempts that a target's budget did not allow"
    ),
    "cache_hits": MetricFamily("penstock_cache_hits_total", "counter", "requests that a kept answer served"),
    "cache_misses": MetricFamily("penstock_cache_misses_total", "counter", "requests for which no answer was kept"),
    "cache_refreshes": MetricFamily(
        "penstock_cache_refreshes_total", "counter", "requests that asked for a new answer"
    ),
    "breakers_open": MetricFamily("penstock_circuit_breakers_open", "gauge", "targets that are closed off now"),
    "breakers_opened": MetricFamily(
        "penstock_circuit_breakers_opened_total", "counter", "how often a target failed too often and was closed off"
    ),
    "breaker_skips": MetricFamily(
        "penstock_circuit_breaker_skips_total", "counter", "targets that a request passed over because closed off"
    ),
    "redis_up": MetricFamily(
        "penstock_redis_up", "gauge", "1 while Redis answers in time, 0 while a worker goes on without"
    ),
    "redis_lookups": MetricFamily("penstock_redis_lookups_total", "counter", "answers that Redis was asked for"),
    "redis_hits": MetricFamily("penstock_redis_hits_total", "counter", "answers that Redis had"),
    "redis_slow": MetricFamily("penstock_redis_slow_total", "counter", "look-ups that were given up"),
    "redis_refused": MetricFamily("penstock_redis_refused_total", "counter", "commands that Redis refused"),
    "redis_dropped": MetricFamily(
        "penstock_redis_dropped_total", "counter", "what was not told to Redis: it was away, or too much waited"
    ),
    "redis_lost": MetricFamily(
        "penstock_redis_connections_lost_total", "counter", "connections to Redis that were lost"
    ),
    "redis_heard": MetricFamily("penstock_redis_messages_total", "counter", "messages of other workers"),
    "records": MetricFamily("penstock_records_total", "counter", "records taken into the outbox"),
    "records_dropped": MetricFamily(
        "penstock_records_dropped_total", "counter", "records lost because the outbox was full"
    ),
    "notes_dropped": MetricFamily(
        "penstock_notes_dropped_total", "counter", "notes of workers for each other without room"
    ),
    "outbox_bytes": MetricFamily("penstock_outbox_bytes", "gauge", "records waiting to be written"),
    "idle_connections": MetricFamily(
        "penstock_upstream_idle_connections", "gauge", "connections kept for the next request"
    ),
    "batches_running": MetricFamily("penstock_batches_running", "gauge", "batches that this node runs now"),
    "batch_lines_answered": MetricFamily(
        "penstock_batch_lines_answered_total", "counter", "lines of batches answered well"
    ),
    "batch_lines_failed": MetricFamily("penstock_batch_lines_failed_total", "counter", "lines of batches that failed"),
    "batch_cost": MetricFamily(
        "penstock_batch_cost_nanodollars_total",
        "counter",
        "what lines cost that providers ran in batches, in billionths of a dollar",
    ),
    "files_deleted": MetricFamily("penstock_files_deleted_total", "counter", "files deleted because of their age"),
    "job_restarts": MetricFamily(
        "penstock_job_restarts_total", "counter", "how often a job of the control process failed, and began again"
    ),
    "publish_waits": MetricFamily(
        "penstock_publish_waits_total", "counter", "changes whose answer waited for the workers"
    ),
    "publish_waits_given_up": MetricFamily(
        "penstock_publish_waits_given_up_total", "counter", "changes that were answered before all workers knew them"
    ),
    "record_batches_written": MetricFamily(
        "penstock_record_batches_written_total", "counter", "batches of records on disk"
    ),
    "record_batches_refused": MetricFamily(
        "penstock_record_batches_refused_total", "counter", "batches sent back unwritten"
    ),
}


class BatchMetrics:
    """What the control process itself did with batches and files."""

    running_batches = 0
    succeeded_lines = 0
    failed_lines = 0
    cost_nanodollars = 0
    deleted_files = 0

    def values_by_name(self) -> dict[str, float]:
        """Give them by the names that they have here."""
        return {
            "batches_running": self.running_batches,
            "batch_lines_answered": self.succeeded_lines,
            "batch_lines_failed": self.failed_lines,
            "batch_cost": self.cost_nanodollars,
            "files_deleted": self.deleted_files,
        }


class JobMetrics:
    """How the jobs of the control process do."""

    restart_count = 0

    def values_by_name(self) -> dict[str, float]:
        """Give it by the name that it has here."""
        return {"job_restarts": self.restart_count}


class MetricsPush(msgspec.Struct, frozen=True):
    """What one engine says about itself about once a second."""

    worker: int
    pid: int
    requests: dict[str, int] = {}
    duration_bounds_ms: tuple[float, ...] = ()
    durations: tuple[int, ...] = ()
    duration_us: int = 0


class MetricsStore:
    """The last push of each worker."""

    def __init__(self) -> None:
        """Start with none."""
        self._heard: dict[int, tuple[float, MetricsPush, dict[str, float]]] = {}

    def accept_push(self, data: bytes) -> None:
        """Keep a push in the place of the worker's last."""
        try:
            push = msgspec.json.decode(data, type=MetricsPush)
            plain = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            message = f"not a push of figures: {error}"
            raise InvalidError(message) from None
        numbers = {name: float(bytes(raw)) for name, raw in plain.items() if bytes(raw)[:1].isdigit()}
        for name in MetricsPush.__struct_fields__:
            numbers.pop(name, None)
        self._heard[push.worker] = (time.monotonic(), push, numbers)

    def live_workers(self) -> list[MetricsPush]:
        """List the workers that were heard of lately."""
        return [push for push, _ in self._recent_pushes()]

    def render(self, own: Mapping[str, float]) -> str:
        """Write everything in the text format of Prometheus."""
        samples: dict[str, list[str]] = {}
        for push, numbers in self._recent_pushes():
            worker = {"worker": str(push.worker)}
            for status, count in push.requests.items():
                samples.setdefault("requests", []).append(_format_sample("", {**worker, "status": status}, count))
            samples.setdefault("durations", []).extend(_histogram_samples(push, worker))
            for name, number in numbers.items():
                samples.setdefault(name, []).append(_format_sample("", worker, number))
        for name, number in own.items():
            samples[name] = [_format_sample("", {}, number)]
        return "".join(_format_family(name, lines) for name, lines in samples.items())

    def _recent_pushes(self) -> Iterator[tuple[MetricsPush, dict[str, float]]]:
        oldest = time.monotonic() - FORGET_SECONDS
        return ((push, numbers) for heard, push, numbers in self._heard.values() if heard >= oldest)


def _histogram_samples(push: MetricsPush, worker: dict[str, str]) -> Iterator[str]:
    counts = list(accumulate(push.durations))
    bounds = [*(_format_number(bound / 1000) for bound in push.duration_bounds_ms), "+Inf"]
    # The last count is of what took longer than every bound.
    for bound, count in zip(bounds, counts, strict=False):
        yield _format_sample("_bucket", {**worker, "le": bound}, count)
    yield _format_sample("_sum", worker, push.duration_us / 1e6)
    yield _format_sample("_count", worker, counts[-1] if counts else 0)


def _format_family(name: str, lines: Iterable[str]) -> str:
    family = METRIC_FAMILIES.get(name, MetricFamily(f"penstock_{name}", "untyped", ""))
    about = f"# HELP {family.name} {family.help}\n" if family.help else ""
    return f"{about}# TYPE {family.name} {family.kind}\n" + "".join(f"{family.name}{line}\n" for line in lines)


def _format_sample(suffix: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{suffix}{{{inside}}} {_format_number(value)}" if inside else f"{suffix} {_format_number(value)}"


def _format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
