"""What of a written state differs from what is there is told, though of credentials only the masks are known."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.declarative.document import diff_fields

KEY, MASK = "sk-0123456789-abc", "sk*****abc"


def config(value: object) -> dict[str, Any]:
    return {"config": {"provider": "mock", "override_params": {"metadata": {"api_key": value, "status": value}}}}


@pytest.mark.parametrize(
    ("wanted", "there"),
    [("gold", "*****"), (KEY, MASK), (True, 1), (1, True), ("a", "b"), ("", None), ("2030-01-01", "2030-01-01T00:00")],
)
def test_what_a_config_says_in_clear_is_sent(wanted: object, there: object):
    assert diff_fields(config(wanted), config(there)) == config(wanted)
    assert diff_fields(config(there), config(there)) == {}


def test_a_config_is_the_same_in_any_order_and_with_its_masks():
    there = {"config": {"provider": "mock", "api_key": MASK}, "name": "a"}
    assert diff_fields({"name": "a", "config": {"api_key": MASK, "provider": "mock"}}, there) == {}
    assert diff_fields({"config": {"api_key": MASK, "provider": "openai"}}, there).keys() == {"config"}


@pytest.mark.parametrize(("wanted", "there"), [(KEY, MASK), (MASK, MASK), ("gold", "*****")])
def test_a_credential_elsewhere_is_the_same_where_its_mask_is(wanted: str, there: str):
    assert diff_fields({"key": wanted}, {"key": there}) == {}
    assert diff_fields({"key": "another"}, {"key": MASK}) == {"key": "another"}
