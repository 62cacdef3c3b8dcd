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


class Family(NamedTuple):
    """A figure as it is called outside."""

    name: str
    kind: str
    help: str


# By the names that the engine uses. What it pushes besides these is shown under its own name.
FAMILIES = {
    "requests": Family("penstock_requests_total", "counter", "requests answered, by class of status"),
    "in_flight": Family("penstock_requests_in_flight", "gauge", "requests being answered"),
    "durations": Family(
        "penstock_request_duration_seconds", "histogram", "time from the first byte in to the last out"
    ),
    "aborted": Family("penstock_requests_aborted_total", "counter", "requests whose caller left before the end"),
    "cut": Family("penstock_answers_cut_total", "counter", "answers that the provider broke off"),
    "streams": Family("penstock_streams_total", "counter", "streamed answers"),
    "pieces": Family("penstock_stream_pieces_total", "counter", "portions in which streamed answers were passed on"),
    "bytes_out": Family("penstock_bytes_out_total", "counter", "bytes of answers passed on"),
    "tokens_in": Family("penstock_tokens_in_total", "counter", "tokens asked, as the providers count them"),
    "tokens_out": Family("penstock_tokens_out_total", "counter", "tokens answered, as the providers count them"),
    "tokens_estimated": Family(
        "penstock_tokens_estimated_total", "counter", "tokens, of both, that the gateway counted because none were told"
    ),
    "cost": Family("penstock_cost_nanodollars_total", "counter", "what requests cost, in billionths of a dollar"),
    "unpriced": Family(
        "penstock_requests_unpriced_total", "counter", "requests that used tokens of which no price is known"
    ),
    "counts_guessed": Family(
        "penstock_token_counts_guessed_total", "counter", "answers whose tokens were guessed: too many waited"
    ),
    "translated": Family("penstock_requests_translated_total", "counter", "requests said in another dialect"),
    "lost": Family(
        "penstock_requests_partly_translated_total",
        "counter",
        "requests of which not all could be told, to the provider or back",
    ),
    "management": Family("penstock_management_requests_total", "counter", "requests forwarded to the management API"),
    "panics": Family("penstock_panics_total", "counter", "requests ended by a defect of the engine"),
    "intercepted": Family(
        "penstock_requests_intercepted_total", "counter", "requests that never entered a Python task"
    ),
    "plain": Family("penstock_requests_plain_total", "counter", "requests that came through a Python task"),
    "records": Family("penstock_records_total", "counter", "records taken into the outbox"),
    "records_dropped": Family("penstock_records_dropped_total", "counter", "records lost because the outbox was full"),
    "outbox_bytes": Family("penstock_outbox_bytes", "gauge", "records waiting to be written"),
    "idle_connections": Family("penstock_upstream_idle_connections", "gauge", "connections kept for the next request"),
    "record_batches_written": Family("penstock_record_batches_written_total", "counter", "batches of records on disk"),
    "record_batches_refused": Family("penstock_record_batches_refused_total", "counter", "batches sent back unwritten"),
}


class Push(msgspec.Struct, frozen=True):
    """What one engine says about itself about once a second."""

    worker: int
    pid: int
    requests: dict[str, int] = {}
    duration_bounds_ms: tuple[float, ...] = ()
    durations: tuple[int, ...] = ()
    duration_us: int = 0


class Figures:
    """The last push of each worker."""

    def __init__(self) -> None:
        """Start with none."""
        self._heard: dict[int, tuple[float, Push, dict[str, float]]] = {}

    def accept(self, data: bytes) -> None:
        """Keep a push in the place of the worker's last."""
        try:
            push = msgspec.json.decode(data, type=Push)
            plain = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            message = f"not a push of figures: {error}"
            raise InvalidError(message) from None
        numbers = {name: float(bytes(raw)) for name, raw in plain.items() if bytes(raw)[:1].isdigit()}
        for name in Push.__struct_fields__:
            numbers.pop(name, None)
        self._heard[push.worker] = (time.monotonic(), push, numbers)

    def workers(self) -> list[Push]:
        """List the workers that were heard of lately."""
        return [push for push, _ in self._fresh()]

    def render(self, own: Mapping[str, float]) -> str:
        """Write everything in the text format of Prometheus."""
        samples: dict[str, list[str]] = {}
        for push, numbers in self._fresh():
            worker = {"worker": str(push.worker)}
            for status, count in push.requests.items():
                samples.setdefault("requests", []).append(_sample("", {**worker, "status": status}, count))
            samples.setdefault("durations", []).extend(_histogram(push, worker))
            for name, number in numbers.items():
                samples.setdefault(name, []).append(_sample("", worker, number))
        for name, number in own.items():
            samples[name] = [_sample("", {}, number)]
        return "".join(_family(name, lines) for name, lines in samples.items())

    def _fresh(self) -> Iterator[tuple[Push, dict[str, float]]]:
        oldest = time.monotonic() - FORGET_SECONDS
        return ((push, numbers) for heard, push, numbers in self._heard.values() if heard >= oldest)


def _histogram(push: Push, worker: dict[str, str]) -> Iterator[str]:
    counts = list(accumulate(push.durations))
    bounds = [*(_number(bound / 1000) for bound in push.duration_bounds_ms), "+Inf"]
    # The last count is of what took longer than every bound.
    for bound, count in zip(bounds, counts, strict=False):
        yield _sample("_bucket", {**worker, "le": bound}, count)
    yield _sample("_sum", worker, push.duration_us / 1e6)
    yield _sample("_count", worker, counts[-1] if counts else 0)


def _family(name: str, lines: Iterable[str]) -> str:
    family = FAMILIES.get(name, Family(f"penstock_{name}", "untyped", ""))
    about = f"# HELP {family.name} {family.help}\n" if family.help else ""
    return f"{about}# TYPE {family.name} {family.kind}\n" + "".join(f"{family.name}{line}\n" for line in lines)


def _sample(suffix: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{suffix}{{{inside}}} {_number(value)}" if inside else f"{suffix} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
