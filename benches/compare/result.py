"""What a run hands to its report: samples, versions, what was left out, and warnings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """One work done once by one gateway."""

    round: int
    work: str
    peer: str
    values: dict[str, float]
    invalid: str | None = None
    """Why its values count for nothing: an error, a lost chunk, a missing record."""


@dataclass
class Result:
    """Everything one run learnt; the report is a function of this alone."""

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


def load(path: Path) -> Result:
    """Read what `save` wrote."""
    data = json.loads(path.read_text())
    data["samples"] = [Sample(**sample) for sample in data["samples"]]
    return Result(**data)
