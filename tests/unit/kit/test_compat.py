"""Bodies in other words: what the path says too, and names spelt in another way."""

from __future__ import annotations

import pytest

from penstock.kit.compat import normalise_body

OWN = {"name": "name", "is_default": "isDefault", "kind": "type"}


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
def test_what_is_meant_is_read_and_all_else_is_left_to_be_refused(
    given: dict[str, object], said: dict[str, str], told: dict[str, object]
):
    assert normalise_body(given, OWN, said) == told
