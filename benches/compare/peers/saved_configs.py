"""Configs that are added to a running gateway, from one target to a thousand conditions."""

from __future__ import annotations

import json
from typing import Any

from benches.compare import bodies, guarded

MOCK_TARGET: dict[str, Any] = {"provider": "mock"}
LEVELS, TARGETS, CONDITIONS = 5, 100, 1000


def _nested_config() -> dict[str, Any]:
    """Returns nested groups with the targets in the innermost groups.

    The targets are spread over four branches, because no first target may have more than 50 targets below it.
    """

    def build_branch(count: int) -> dict[str, Any]:
        group: dict[str, Any] = {
            "strategy": {"mode": "loadbalance"},
            "targets": [{**MOCK_TARGET, "weight": number % 7 + 1} for number in range(count)],
        }
        for _ in range(LEVELS - 2):
            group = {"strategy": {"mode": "fallback"}, "targets": [group]}
        return group

    return {"strategy": {"mode": "fallback"}, "targets": [build_branch(TARGETS // 4) for _ in range(4)]}


def _conditional_config() -> dict[str, Any]:
    """Returns a conditional config in which only the last condition matches."""
    models = [f"model {number}" for number in range(CONDITIONS - 1)] + [bodies.non_streaming_request().model]
    conditions = [
        {"query": {"url.pathname": {"$regex": "^/v1/"}, "params.model": {"$eq": model}}, "then": model}
        for model in models
    ]
    return {
        "strategy": {"mode": "conditional", "conditions": conditions, "default": models[0]},
        "targets": [{**MOCK_TARGET, "name": model} for model in models],
    }


CONFIGS = {
    "single": MOCK_TARGET,
    "nested": _nested_config(),
    "conditional": _conditional_config(),
    **{name: guarded.make_config(name, MOCK_TARGET) for name in guarded.CONFIG_NAMES},
}


def render_tables() -> str:
    """Returns all configs as `[[configs]]` tables of a TOML file."""
    return "".join(
        f'\n[[configs]]\nslug = "pc-{name}"\nconfig = {_render_inline(config)}\n' for name, config in CONFIGS.items()
    )


def _render_inline(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_render_inline(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_render_inline, value)) + "]"
    return json.dumps(value)
