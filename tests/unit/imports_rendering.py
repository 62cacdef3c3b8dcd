"""Renders an imported config as text: `a|b` for load balancing with weights, `a > b` for a fallback."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]


def render_targets(state: JsonObject, workspace: int = 0, config: int = 0) -> dict[str, str]:
    """Returns the targets of each model name of a config, in the order in which they are tried."""
    integrations = {row["slug"]: row["ai_provider_id"] for row in state["organisation"]["integrations"]}
    root = state["workspaces"][workspace]["configs"][config]["config"]
    named_items = {item["name"]: item for item in root["targets"]}
    actual: dict[str, str] = {}
    for condition in root["strategy"]["conditions"]:
        (query,) = condition["query"].values()
        names = query if isinstance(query, str) else query.get("$regex") or " ".join(query["$in"])
        actual[names] = render_target(named_items[condition["then"]], integrations)
    return actual


def render_target(target: JsonObject, integrations: dict[str, str]) -> str:
    strategy = target.get("strategy")
    if strategy is None:
        return f"{integrations[target['provider'][1:]]}/{target.get('override_params', {}).get('model', '*')}"
    parts = [render_target(item, integrations) for item in target["targets"]]
    if strategy["mode"] == "loadbalance":
        weights = [item.get("weight") for item in target["targets"]]
        displayed = [
            part if weight is None else f"{part}*{weight}" for part, weight in zip(parts, weights, strict=True)
        ]
        return f"({' | '.join(displayed)})"
    statuses = strategy.get("on_status_codes", [])
    arrow = f" >{','.join(map(str, statuses))}> " if 0 < len(statuses) < 5 else " >> " if statuses else " > "
    return f"({arrow.join(parts)})"
