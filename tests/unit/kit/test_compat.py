"""Compatible request bodies: fields that repeat the path, and alternative spellings of field names."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.kit.compat import normalise_body, take_query_workspace

WIRE_NAMES = {"name": "name", "is_default": "isDefault", "kind": "type"}


@pytest.mark.parametrize(
    ("body", "content", "reported"),
    [
        ({"name": "n", "slug": "pc-1"}, {"id": "pc-1"}, {"name": "n"}),
        ({"name": "n", "slug": "pc-2"}, {"id": "pc-1"}, {"name": "n", "slug": "pc-2"}),
        ({"name": "pc-1"}, {"id": "pc-1"}, {"name": "pc-1"}),
        ({"is_default": 1}, {}, {"isDefault": 1}),
        ({"is_default": 1, "isDefault": 0}, {}, {"is_default": 1, "isDefault": 0}),
        ({"kind": "x"}, {}, {"kind": "x"}),
        ({"other": 7}, {"id": "7"}, {"other": 7}),
    ],
)
def test_normalises_aliases_and_leaves_other_fields(
    body: dict[str, object], content: dict[str, str], reported: dict[str, object]
):
    assert normalise_body(body, WIRE_NAMES, content) == reported


@pytest.mark.parametrize(
    ("body", "sent", "expected"),
    [
        ({}, ["ws-a"], "ws-a"),
        ({"workspace_id": None}, ["ws-a"], "ws-a"),
        ({"workspace_id": "ws-a"}, ["ws-a", "ws-a"], "ws-a"),
        ({"workspace_id": "ws-a"}, [], "ws-a"),
    ],
)
def test_workspace_of_the_query_is_not_ignored(body: dict[str, Any], sent: list[str], expected: str):
    take_query_workspace(body, sent)
    assert body["workspace_id"] == expected


@pytest.mark.parametrize(("body", "sent"), [({"workspace_id": "ws-b"}, ["ws-a"]), ({}, ["ws-a", "ws-b"])])
def test_two_different_workspaces_are_rejected(body: dict[str, Any], sent: list[str]):
    with pytest.raises(InvalidError, match="workspace_id is not 'ws-"):
        take_query_workspace(body, sent)
