"""Medians, and ratios between two gateways paired round by round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benches.compare.result import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Spread:
    """A median with what it lies between."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """Nothing when nothing was measured."""
    known = list(values)
    if not known:
        return None
    return Spread(median(known), min(known), max(known), len(known))


def by_round(samples: list[Sample], work: str, peer: str, value: str) -> dict[int, float]:
    """What one gateway reached, by round, invalid samples left out."""
    return {
        sample.round: sample.values[value]
        for sample in samples
        if (sample.work, sample.peer) == (work, peer) and sample.invalid is None and value in sample.values
    }


def ratios(samples: list[Sample], work: str, value: str, pair: tuple[str, str]) -> Spread | None:
    """The first gateway's value over the second's in the same round."""
    ours, theirs = (by_round(samples, work, peer, value) for peer in pair)
    # A difference that came out at or below nothing is noise and divides into nonsense.
    return spread(ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number] > 0)


def added(samples: list[Sample], work: str, values: tuple[str, ...]) -> list[Sample]:
    """The samples, where those of one work also say what they add to asking directly."""
    return [_added(sample, samples, values) if sample.work == work else sample for sample in samples]


def _added(sample: Sample, samples: list[Sample], values: tuple[str, ...]) -> Sample:
    if sample.peer == "direct":
        return sample
    extra = {}
    for value in values:
        direct = by_round(samples, sample.work, "direct", value)
        if sample.round in direct and value in sample.values:
            extra[f"added_{value}"] = sample.values[value] - direct[sample.round]
    known = {**sample.values, **extra}
    return Sample(sample.round, sample.work, sample.peer, known, sample.invalid)
