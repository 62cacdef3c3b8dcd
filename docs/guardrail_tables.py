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
STORED = "stored encrypted"
SECRET_MEANINGS = {"credentials": f"{STORED}; without it, those of the organisation"}
NO_PARAMETERS = "It has no parameters."
HOOKS = {"input": "requests", "output": "responses"}


def check_sections(checks: Sequence[Schema]) -> Iterator[str]:
    """Yields the introduction, and the heading, description and parameters of each check, sorted by id."""
    yield INTRODUCTION
    for check in sorted(checks, key=lambda check: check["id"]):
        description = check["description"].rstrip(".")
        hooks = " and ".join(HOOKS[hook] for hook in check["hooks"])
        yield f"## {check['id']}"
        aliases = "".join(f" `{alias}` is the same check." for alias in check["aliases"])
        yield f"{check['name']}: {description}. It checks {hooks}.{aliases}"
        yield parameter_table(check["parameters"], check["secrets"])


def parameter_table(schema: Schema, secrets: Sequence[str]) -> str:
    """Returns the table of the parameters of a check: required ones first, then by name."""
    rows = list(parameter_rows(schema, schema, secrets))
    if not rows:
        return NO_PARAMETERS
    return "\n".join(["| parameter | type | default | meaning |", "| --- | --- | --- | --- |", *rows])


def parameter_rows(own: Schema, root: Schema, secrets: Sequence[str], prefix: str = "") -> Iterator[str]:
    """Yields the table rows of an object's parameters. Rows of a nested object follow the row of the parameter that has
    it.
    """
    required = own.get("required", [])
    for name in sorted(own["properties"], key=lambda name: (name not in required, name)):
        schema = resolve_reference(own["properties"][name], root)
        default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
        if name in required:
            default = "required, or shared" if name in secrets and name in SECRET_MEANINGS else "required"
        meaning = [schema.get("description", ""), SECRET_MEANINGS.get(name, STORED) if name in secrets else ""]
        text = "; ".join(part for part in meaning if part)
        cells = [f"`{prefix}{name}`", describe_schema(schema, root), default, text]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        if "properties" in schema:
            yield from parameter_rows(schema, root, secrets, f"{prefix}{name}.")


def resolve_reference(own: Schema, root: Schema) -> Schema:
    """Returns the schema in `root` that a `$ref` names, updated with the keys next to the `$ref`. Returns others
    unchanged.
    """
    reference = own.get("$ref", "")
    schema: Any = root
    for part in reference.split("/")[1:]:
        schema = schema[part]
    return {**schema, **own} if reference else own


def describe_schema(own: Schema, root: Schema) -> str:
    """Returns the type of a value in words, with its bounds."""
    own = resolve_reference(own, root)
    if "enum" in own:
        return ", ".join(f"`{value}`" for value in own["enum"])
    for union in ("oneOf", "anyOf"):
        if union in own:
            return " or ".join(dict.fromkeys(describe_schema(option, root) for option in own[union]))
    kinds = own.get("type", "any value")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if text == "array" and "items" in own:
        text = f"list of: {describe_schema(own['items'], root)}"
    bounds = [own.get("minimum"), own.get("maximum")]
    if None not in bounds:
        return f"{text} from {bounds[0]} to {bounds[1]}"
    return text if bounds[0] is None else f"{text}, at least {bounds[0]}"
