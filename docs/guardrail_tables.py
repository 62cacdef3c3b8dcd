"""Checks of guardrails, described by the engine, for docs/guardrail-checks.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Schema = Mapping[str, Any]

INTRODUCTION = (
    "A [guardrail](guardrails.md) has one or more of these checks. `GET /v1/guardrails/checks` returns the list with the "
    "JSON Schema of the parameters of each. Other parameters are rejected."
)
NO_PARAMETERS = "It has no parameters."
HOOKS = {"input": "requests", "output": "responses"}


def check_sections(checks: Sequence[Schema]) -> Iterator[str]:
    """Yields the introduction, and the heading, description and parameters of each check, sorted by id."""
    yield INTRODUCTION
    for check in sorted(checks, key=lambda one: one["id"]):
        description = check["description"].rstrip(".")
        hooks = " and ".join(HOOKS[hook] for hook in check["hooks"])
        yield f"## {check['id']}"
        yield f"{check['name']}: {description}. It checks {hooks}."
        yield parameter_table(check["parameters"], check["secrets"])


def parameter_table(schema: Schema, secrets: Sequence[str]) -> str:
    """Returns the table of the parameters of a check: required ones first, then by name."""
    required = schema.get("required", [])
    names = sorted(schema["properties"], key=lambda name: (name not in required, name))
    if not names:
        return NO_PARAMETERS
    lines = ["| parameter | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name in names:
        own = resolve_reference(schema["properties"][name], schema)
        default = "required" if name in required else f"`{json.dumps(own['default'])}`" if "default" in own else ""
        meaning = [own.get("description", ""), "stored encrypted" if name in secrets else ""]
        cells = [f"`{name}`", describe_schema(own, schema), default, "; ".join(part for part in meaning if part)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def resolve_reference(own: Schema, root: Schema) -> Schema:
    """Returns the schema that a reference within the same schema names, with what stands next to the reference."""
    reference = own.get("$ref", "")
    found: Any = root
    for part in reference.split("/")[1:]:
        found = found[part]
    return {**found, **own} if reference else own


def describe_schema(own: Schema, root: Schema) -> str:
    """Returns the type of a value in words, with its bounds."""
    own = resolve_reference(own, root)
    if "enum" in own:
        return ", ".join(f"`{value}`" for value in own["enum"])
    for union in ("oneOf", "anyOf"):
        if union in own:
            return " or ".join(dict.fromkeys(describe_schema(one, root) for one in own[union]))
    kinds = own.get("type", "any value")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if text == "array" and "items" in own:
        text = f"list of: {describe_schema(own['items'], root)}"
    bounds = [own.get("minimum"), own.get("maximum")]
    if None not in bounds:
        return f"{text} from {bounds[0]} to {bounds[1]}"
    return text if bounds[0] is None else f"{text}, at least {bounds[0]}"
