"""Limits of metadata that is stored with a key or workspace."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.kit.default_metadata import check_default_metadata


def test_accepts_metadata_within_the_limits():
    check_default_metadata("defaults.metadata", None)
    check_default_metadata("defaults.metadata", {f"k{number}": "é" * 512 for number in range(64)})
    check_default_metadata("defaults.metadata", {"nested": {"a": [1, 2]}, "k" * 256: ""})


@pytest.mark.parametrize(
    ("metadata", "path", "limit"),
    [
        ({f"k{number}": "" for number in range(65)}, "defaults.metadata", "64"),
        ({"k" * 257: ""}, "defaults.metadata", "256"),
        ({"a": "x", "b": "x" * 513}, "defaults.metadata.b", "512"),
        ({"a": ["x" * 600]}, "defaults.metadata.a", "512"),
    ],
)
def test_rejects_larger_metadata_with_its_path(metadata: dict[str, object], path: str, limit: str):
    with pytest.raises(InvalidError) as caught:
        check_default_metadata("defaults.metadata", metadata)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert limit in problem.message
