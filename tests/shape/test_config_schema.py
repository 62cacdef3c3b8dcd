"""Examples in the JSON Schema of configs: the parser that requests use accepts each of them, in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from penstock import engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Wrap = Callable[[Any], dict[str, Any]]

TARGET_LIMITS = (100, 100, 100)
SCHEMA = engine.config_schema()
CONFIG = SCHEMA["$defs"]["config"]["properties"]
TARGETS = [{"name": "large", "provider": "openai"}, {"name": "small", "provider": "openai"}]
# What else a config needs so that the parser accepts a key.
SURROUNDINGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "api_key": lambda value: {"provider": "openai", "api_key": value},
    "passthrough": lambda value: {"passthrough": value},
    "provider": lambda value: {"provider": value},
    "strategy": lambda value: {"strategy": value, "targets": TARGETS},
    "targets": lambda value: {"strategy": {"mode": "fallback"}, "targets": value},
    "virtual_key": lambda value: {"virtual_key": value},
}
# Keys of a strategy belong to its mode, and a condition needs a default.
STRATEGIES: dict[str, dict[str, Any]] = {
    "conditions": {"mode": "conditional", "default": "small"},
    "default": {"mode": "conditional"},
    "hedge": {"mode": "fallback"},
    "on_status_codes": {"mode": "fallback"},
    "sticky": {"mode": "loadbalance"},
    "sticky_session": {"mode": "loadbalance"},
}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """Follows a reference to a shared definition; the annotations of the property itself win."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**SCHEMA["$defs"][name], **schema} if name else schema


def strategy_of(key: str, value: Any) -> dict[str, Any]:
    if key == "mode" and value == "conditional":
        return {
            "mode": value,
            "default": "small",
            "conditions": CONFIG["strategy"]["properties"]["conditions"]["examples"][0],
        }
    conditions = (
        {"conditions": CONFIG["strategy"]["properties"]["conditions"]["examples"][0]} if key == "default" else {}
    )
    return {**STRATEGIES.get(key, {"mode": "fallback"}), **conditions, key: value}


def iter_examples(schema: dict[str, Any], path: str, wrap: Wrap) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each example below a property as a whole config, with the path of the property."""
    schema = resolve(schema)
    for number, example in enumerate(schema.get("examples", [])):
        yield f"{path}#{number}", wrap(example)
    inner = resolve(schema.get("items", {}))
    base = next((item for item in schema.get("examples", []) if isinstance(item, dict)), {})
    if "properties" not in inner and "properties" in (alternative := find_object(inner)):
        inner = alternative
    if "properties" in inner and path != "targets":
        below = next((items[0] for items in schema.get("examples", []) if isinstance(items[0], dict)), {})
        for name, property_schema in inner["properties"].items():
            yield from iter_examples(
                property_schema, f"{path}[].{name}", lambda value, name=name: wrap([{**below, name: value}])
            )
    for name, property_schema in find_object(schema).get("properties", {}).items():
        if path == "strategy":
            yield from iter_examples(
                property_schema, f"{path}.{name}", lambda value, name=name: wrap(strategy_of(name, value))
            )
        elif not name.startswith("$"):
            yield from iter_examples(
                property_schema, f"{path}.{name}", lambda value, name=name: wrap({**base, name: value})
            )


def find_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the alternative of a schema that is an object."""
    alternatives = (resolve(item) for item in [schema, *schema.get("oneOf", []), *schema.get("anyOf", [])])
    return next((item for item in alternatives if "properties" in item), {})


def iter_conditions() -> Iterator[tuple[str, dict[str, Any]]]:
    query = SCHEMA["$defs"]["query"]
    (fields,) = query["patternProperties"].values()
    operators = [
        (name, {"metadata.plan": {name: item["examples"][0]}})
        for name, item in find_object(fields)["properties"].items()
    ]
    groups = [(name, {name: item["examples"][0]}) for name, item in query["properties"].items()]
    for name, condition in operators + groups:
        yield (
            f"query.{name}",
            SURROUNDINGS["strategy"](strategy_of("conditions", [{"query": condition, "then": "large"}])),
        )


def examples() -> dict[str, dict[str, Any]]:
    configs = dict(iter_conditions())
    for key, schema in CONFIG.items():
        configs.update(
            iter_examples(schema, key, SURROUNDINGS.get(key, lambda value, key=key: {"provider": "openai", key: value}))
        )
    return configs


EXAMPLES = examples()


def test_every_key_has_an_example():
    assert {path.partition("#")[0] for path in EXAMPLES} >= CONFIG.keys()
    assert len(EXAMPLES) > 180


@pytest.mark.parametrize("path", EXAMPLES)
def test_parser_and_schema_accept_the_example(path: str):
    config = EXAMPLES[path]
    engine.check("config", msgspec.json.encode(config), TARGET_LIMITS)
    assert [str(error) for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(config)] == []
