"""Results of a run: samples, versions, excluded gateways and warnings. The report reads only these."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """One measurement of one workload with one gateway."""

    round: int
    workload: str
    peer: str
    values: dict[str, float]
    invalid_reason: str | None = None
    """Reason why the values do not count: an error, a lost chunk or a missing record. `None` if they count."""


@dataclass
class Result:
    """All results of one run. The report depends on nothing else."""

    at: str
    quick: bool
    rounds: int
    machine: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False))


def load_result(path: Path) -> Result:
    """Reads a file that `save` wrote."""
    data = json.loads(path.read_text())
    data["samples"] = [Sample(**sample) for sample in data["samples"]]
    return Result(**data)
