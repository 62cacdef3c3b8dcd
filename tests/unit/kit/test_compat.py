"""Compatible request bodies: fields that repeat the path, and alternative spellings of field names."""

from __future__ import annotations

import pytest

from penstock.kit.compat import normalise_body

WIRE_NAMES = {"name": "name", "is_default": "isDefault", "kind": "type"}


@pytest.mark.parametrize(
    ("given", "said", "told"),
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
    given: dict[str, object], said: dict[str, str], told: dict[str, object]
):
    assert normalise_body(given, WIRE_NAMES, said) == told
