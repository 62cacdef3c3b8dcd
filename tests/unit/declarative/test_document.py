"""Diff between a declared document and the stored state. Credentials are compared by mask, since only masks can be
read.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.declarative.document import diff_fields

KEY, MASK = "sk-0123456789-abc", "sk*****abc"


def make_config(value: object) -> dict[str, Any]:
    return {"config": {"provider": "mock", "override_params": {"metadata": {"api_key": value, "status": value}}}}


@pytest.mark.parametrize(
    ("declared", "current"),
    [("gold", "*****"), (KEY, MASK), (True, 1), (1, True), ("a", "b"), ("", None), ("2030-01-01", "2030-01-01T00:00")],
)
def test_plain_config_values_are_compared_exactly(declared: object, current: object):
    assert diff_fields(make_config(declared), make_config(current)) == make_config(declared)
    assert diff_fields(make_config(current), make_config(current)) == {}


def test_config_diff_ignores_key_order_and_masked_values():
    current = {"config": {"provider": "mock", "api_key": MASK}, "name": "a"}
    assert diff_fields({"name": "a", "config": {"api_key": MASK, "provider": "mock"}}, current) == {}
    assert diff_fields({"config": {"api_key": MASK, "provider": "openai"}}, current).keys() == {"config"}


@pytest.mark.parametrize(("declared", "current"), [(KEY, MASK), (MASK, MASK), ("gold", "*****")])
def test_credential_fields_are_compared_by_mask(declared: str, current: str):
    assert diff_fields({"key": declared}, {"key": current}) == {}
    assert diff_fields({"key": "another"}, {"key": MASK}) == {"key": "another"}
