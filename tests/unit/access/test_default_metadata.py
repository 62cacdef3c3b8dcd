"""Metadata that is stored with a key or workspace: its limits, and how it is merged with that of requests."""

from __future__ import annotations

import pytest

from penstock.access.default_metadata import check_default_metadata, merge_metadata
from penstock.errors import InvalidError


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


def test_stored_metadata_overrides_that_of_the_request():
    header = '{"_user":"bob","team":"green","job":"nightly"}'
    merged = merge_metadata(header, {"_user": "ann", "team": "blue", "n": {"a": [1]}}, {"team": "red"})
    assert merged == {"_user": "ann", "team": "red", "n": '{"a":[1]}', "job": "nightly"}
    for header in (None, "{", "[]", '{"a":1}'):
        assert merge_metadata(header, None, {"team": "red"}) == {"team": "red"}


def test_stored_metadata_displaces_that_of_the_request():
    header = "{" + ",".join(f'"k{number}":"v"' for number in range(64)) + "}"
    merged = merge_metadata(header, {"team": "x" * 600, "k" * 257: ""}, {"k9": "stored"})
    assert (len(merged), merged["team"], merged["k9"]) == (64, "x" * 512, "stored")
