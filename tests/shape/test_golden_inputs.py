"""Golden inputs are stored once: two cases with the same request or response name the same file."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.shape.repository import ROOT

INPUTS = Path("rust/llm/tests/golden/inputs")


@pytest.mark.parametrize("kind", ["requests", "responses"])
def test_no_two_golden_inputs_are_equal(kind: str):
    paths_by_content = defaultdict[bytes, list[str]](list)
    for path in sorted((ROOT / INPUTS / kind).rglob("*")):
        if path.is_file():
            paths_by_content[path.read_bytes().strip()].append(path.relative_to(ROOT / INPUTS).as_posix())
    assert len(paths_by_content) > 100
    assert not [paths for paths in paths_by_content.values() if len(paths) > 1]
