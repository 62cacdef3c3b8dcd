"""Keeps the figures that the engines push, and renders them for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORGET_SECONDS = 60.0


class Histogram(msgspec.Struct, frozen=True):
    """Counts below bounds, as Prometheus has them: cumulative."""

    buckets: list[tuple[float, int]]
    sum: float
    count: int


class Labelled(msgspec.Struct, frozen=True):
    """One sample with labels of its own."""

    labels: dict[str, str]
    value: float


class Push(msgspec.Struct, frozen=True):
    """What one engine says about itself about once a second."""

    worker: int
    pid: int
    figures: dict[str, Any]


class Figures:
    """The last push of each worker."""

    def __init__(self) -> None:
        """Start with none."""
        self._pushes: dict[int, tuple[float, Push]] = {}

    def accept(self, data: bytes) -> None:
        """Keep a push in the place of the worker's last."""
        try:
            raw = msgspec.json.decode(data, type=dict[str, Any])
            push = Push(int(raw.pop("worker")), int(raw.pop("pid")), raw)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            message = f"not a push of figures: {error}"
            raise InvalidError(message) from None
        self._pushes[push.worker] = (time.monotonic(), push)

    def workers(self) -> list[Push]:
        """List the workers that were heard of lately."""
        oldest = time.monotonic() - FORGET_SECONDS
        return [push for heard, push in self._pushes.values() if heard >= oldest]

    def render(self, own: dict[str, float]) -> str:
        """Write everything in the text format of Prometheus."""
        families: dict[str, list[str]] = {}
        for push in self.workers():
            for name, value in push.figures.items():
                families.setdefault(f"penstock_{name}", []).extend(_samples(f"penstock_{name}", push.worker, value))
        for name, value in own.items():
            families[f"penstock_{name}"] = [f"penstock_{name} {_number(value)}"]
        return "".join(
            f"# TYPE {name} {_kind(name, lines)}\n" + "".join(f"{line}\n" for line in lines)
            for name, lines in sorted(families.items())
            if lines
        )


def _samples(name: str, worker: int, value: Any) -> Iterator[str]:  # noqa: ANN401
    """A number is a sample, a list holds labelled ones, an object with buckets is a histogram."""
    labels = {"worker": str(worker)}
    if isinstance(value, bool | int | float):
        yield f"{name}{_labels(labels)} {_number(value)}"
    elif isinstance(value, list):
        for sample in msgspec.convert(value, list[Labelled]):
            yield f"{name}{_labels({**labels, **sample.labels})} {_number(sample.value)}"
    elif isinstance(value, dict) and "buckets" in value:
        histogram = msgspec.convert(value, Histogram)
        for bound, count in histogram.buckets:
            yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}"
        yield f"{name}_bucket{_labels({**labels, 'le': '+Inf'})} {histogram.count}"
        yield f"{name}_sum{_labels(labels)} {_number(histogram.sum)}"
        yield f"{name}_count{_labels(labels)} {histogram.count}"


def _kind(name: str, lines: list[str]) -> str:
    if any(line.startswith(f"{name}_bucket") for line in lines):
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


def _labels(labels: dict[str, str]) -> str:
    escaped = ((name, text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, text in labels.items())
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped) + "}"


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) and not value.is_integer() else str(int(value))
