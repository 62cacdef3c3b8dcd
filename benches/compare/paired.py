"""Medians, and ratios between two gateways that are paired by round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benches.compare.result import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Spread:
    """A median with its lowest and highest value."""

    median: float
    low: float
    high: float
    count: int


def compute_spread(values: Iterable[float]) -> Spread | None:
    """Returns the spread of the values; `None` if there are none."""
    numbers = list(values)
    if not numbers:
        return None
    return Spread(median(numbers), min(numbers), max(numbers), len(numbers))


def values_by_round(samples: list[Sample], workload: str, peer: str, value: str) -> dict[int, float]:
    """Returns one gateway's values by round, without invalid samples."""
    return {
        sample.round: sample.values[value]
        for sample in samples
        if (sample.workload, sample.peer) == (workload, peer)
        and sample.invalid_reason is None
        and value in sample.values
    }


def ratio_spread(samples: list[Sample], workload: str, value: str, pair: tuple[str, str]) -> Spread | None:
    """Returns the spread of the first gateway's value divided by the second's in the same round."""
    numerators, denominators = (values_by_round(samples, workload, peer, value) for peer in pair)
    # A difference at or below zero is noise; dividing by it gives meaningless ratios.
    return compute_spread(
        numerators[number] / denominators[number]
        for number in numerators.keys() & denominators.keys()
        if denominators[number] > 0
    )


def add_overhead(samples: list[Sample], workload: str, values: tuple[str, ...]) -> list[Sample]:
    """Returns all samples; those of this workload also get `added_…` values: the difference to direct requests in the
    same round.
    """
    return [
        _add_sample_overhead(sample, samples, values) if sample.workload == workload else sample for sample in samples
    ]


def _add_sample_overhead(sample: Sample, samples: list[Sample], values: tuple[str, ...]) -> Sample:
    if sample.peer == "direct":
        return sample
    extra = {}
    for value in values:
        direct = values_by_round(samples, sample.workload, "direct", value)
        if sample.round in direct and value in sample.values:
            extra[f"added_{value}"] = sample.values[value] - direct[sample.round]
    merged = {**sample.values, **extra}
    return Sample(sample.round, sample.workload, sample.peer, merged, sample.invalid_reason)
