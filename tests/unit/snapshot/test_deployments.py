"""Deployments of an integration: which of their names requests may use."""

from __future__ import annotations

import pytest

from penstock.snapshot.query import merge_deployments

FIRST, SECOND = {"deployment_id": "d-1", "api_version": "v1"}, {"deployment_id": "d-2", "api_version": "v1"}
# The names of two deployments: alias, model and deployment.
DEPLOYMENTS = {"a": FIRST, "gpt-4o": FIRST, "d-1": FIRST, "b": SECOND, "gpt-4o-mini": SECOND, "d-2": SECOND}
FIRST_NAMES, SECOND_NAMES = {"a", "gpt-4o", "d-1"}, {"b", "gpt-4o-mini", "d-2"}


@pytest.mark.parametrize(
    ("entries", "allow_all", "allowed"),
    [
        ({}, True, FIRST_NAMES | SECOND_NAMES),
        ({}, False, set()),
        ({"gpt-4o": True}, True, FIRST_NAMES | SECOND_NAMES),
        # If not all models are allowed, only the deployment of the enabled model may be used.
        ({"gpt-4o": True}, False, FIRST_NAMES),
        # A disabled model cannot be reached by another name of its deployment.
        ({"gpt-4o": False}, True, SECOND_NAMES),
        ({"gpt-4o": False, "a": True}, True, {"a"} | SECOND_NAMES),
        ({"gpt-4o": True, "other": False}, False, FIRST_NAMES),
    ],
)
def test_names_of_a_deployment_follow_its_models(entries: dict[str, bool], allow_all: bool, allowed: set[str]):
    rows = [{"slug": slug, "enabled": enabled} for slug, enabled in entries.items()]
    merged = merge_deployments(rows, DEPLOYMENTS, allow_all=allow_all)
    assert {row["slug"] for row in merged if row["enabled"]} == allowed
    assert {row["slug"] for row in merged} == {*DEPLOYMENTS, *entries}
    assert all(row["options"] == DEPLOYMENTS.get(row["slug"], {}) for row in merged)
