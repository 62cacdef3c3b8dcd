"""Golden cases of the Rust translation tests: a client request, an upstream response, and what the gateway must send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.gateway import ROOT

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN_DIR = ROOT / "rust" / "llm" / "tests" / "golden"


@dataclass(frozen=True)
class GoldenCase:
    """One row of `golden/<provider>/<operation>/cases.json`."""

    provider: str
    operation: str
    name: str

    @property
    def request(self) -> Path:
        return self._input("request")

    @property
    def response(self) -> Path:
        return self._input("response")

    def path(self, expectation: str) -> Path:
        return GOLDEN_DIR / self.provider / self.operation / self.name / expectation

    def sibling(self, name: str) -> GoldenCase:
        """Returns another case of the same provider and operation."""
        return GoldenCase(self.provider, self.operation, name)

    def _input(self, kind: str) -> Path:
        manifest = json.loads((GOLDEN_DIR / self.provider / self.operation / "cases.json").read_text())
        return GOLDEN_DIR / "inputs" / manifest[self.name][kind]
