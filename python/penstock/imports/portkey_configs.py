"""Routing configs of Portkey, which have the same structure as those of this gateway. Renames camelCase keys. Omits
values that the engine would reject, and adds a finding for each.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock import engine
from penstock.imports.findings import SEVERITY, Ledger, Node, Status
from penstock.imports.output import find_config_errors
from penstock.imports.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]

CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
PATH_PART = re.compile(r"\.([A-Za-z0-9_$-]+)|\[(\d+)\]")
# Fields with arbitrary keys, such as metadata or a request's parameters. Their keys are not keys of a config.
FREE_FORM = frozenset({"override_params", "default_params", "query", "metadata", "vertex_service_account_json"})
MAX_ATTEMPTS, MIN_CACHE_SECONDS, MAX_CACHE_SECONDS, MIN_COOLDOWN_MS = 5, 60, 7_776_000, 30_000
MAX_ROUNDS = 50
LEFT_OUT = "is not allowed in a config here, so it is left out"
# Keys that refer to Portkey's guardrails by id or slug. They cannot be imported, because the guardrails have other ids
# here.
GUARDRAIL_KEYS = frozenset(
    [
        "before_request_hooks",
        "after_request_hooks",
        "input_guardrails",
        "output_guardrails",
        "input_mutators",
        "output_mutators",
    ]
)
CLEAR_TEXT_MESSAGE = "copied in clear to the state document; hint: replace it there with ${NAME}"


def read_config(node: Node) -> JsonObject | None:
    """Reads a config from a mapping or a JSON string. Returns `None` and marks the values if it cannot be used."""
    if isinstance(node.value, str):
        return _read_encoded(node)
    if not node.is_mapping:
        node.report_unsupported("a config must be a mapping")
        return None
    config = _convert(node)
    for _ in range(MAX_ROUNDS):
        errors = find_config_errors(config)
        if not errors:
            return config
        if not all(_remove(config, node, path) for path in errors):
            node.report_unsupported("the config is not valid here, so it is left out; see docs/config.schema.json")
            return None
    node.report_unsupported("the config is not valid here, so it is left out; see docs/config.schema.json")
    return None


def _read_encoded(node: Node) -> JsonObject | None:
    """Reads a config in a JSON string. The string is marked with the most severe status of the values in it."""
    try:
        tree = msgspec.json.decode(node.value)
    except (msgspec.DecodeError, RecursionError):
        node.report_unsupported("must be JSON")
        return None
    ledger = Ledger([Source("", tree)])
    config = read_config(ledger.roots()[0])
    findings = ledger.findings()
    worst = max(findings, key=lambda item: SEVERITY[item.status])
    others = [finding for finding in findings if finding.status is worst.status and finding.status is not Status.EXACT]
    message = "; ".join(f"{item.path} {item.message}".strip() for item in others[:10]) or "imported"
    getattr(node, f"report_{worst.status.value}")(message)
    return config


def _convert(node: Node) -> JsonObject:
    """Returns a config, or a part of one, with keys converted to the names that this gateway uses."""
    config: JsonObject = {}
    for field in node.fields():
        name = CAMEL_BOUNDARY.sub("_", field.name).lower()
        name = name if name in _known_keys() else field.name
        if name in GUARDRAIL_KEYS:
            field.report_manual("create the guardrails, and name them in the config")
        elif name in {"api_key", *_secret_keys()} and isinstance(field.value, str):
            field.report_exact(CLEAR_TEXT_MESSAGE)
            config[name] = field.value
        else:
            config[name] = _convert_value(name, field)
    return config


def _convert_value(name: str, field: Node) -> object:
    if name in FREE_FORM:
        field.report_exact()
        return field.value
    if name == "cache":
        return _convert_cache(field)
    if field.is_mapping:
        if not field.value:
            field.report_exact()
        converted = _convert(field)
        return _clamp(name, field, converted)
    if field.is_list and field.value:
        return [_convert(item) if item.is_mapping and item.value else _take_value(item) for item in field.items()]
    return _take_value(field)


def _take_value(node: Node) -> object:
    node.report_exact()
    return node.value


def _convert_cache(field: Node) -> object:
    mode = field.child("mode") if field.is_mapping else field
    if field.is_mapping and mode is None:
        mode = field
    if mode and mode.value == "semantic":
        mode.report_approximate("cache mode simple: equal requests share a response, similar ones do not")
    elif mode:
        mode.report_exact()
    if not field.is_mapping:
        return "simple" if field.value == "semantic" else field.value
    strategy: JsonObject = {"mode": "simple"} if mode and mode.value == "semantic" else {"mode": mode and mode.value}
    for name in ("max_age", "maxAge"):
        if (age := field.child(name)) and (seconds := age.number()) is not None:
            bounded = min(max(int(seconds), MIN_CACHE_SECONDS), MAX_CACHE_SECONDS)
            (age.report_exact if bounded == seconds else age.report_approximate)("max_age: from 60 seconds to 90 days")
            strategy["max_age"] = bounded
    for item in field.fields():
        if item.name not in {"mode", "max_age", "maxAge"}:
            item.report_unsupported(LEFT_OUT)
    return strategy


def _clamp(name: str, field: Node, part: JsonObject) -> JsonObject:
    """Replaces too many retry attempts, and a too short cool-down, by the limits of a config."""
    attempts = part.get("attempts")
    if name == "retry" and isinstance(attempts, int) and attempts > MAX_ATTEMPTS and (item := field.child("attempts")):
        item.report_approximate(f"retry.attempts: at most {MAX_ATTEMPTS}")
        part["attempts"] = MAX_ATTEMPTS
    interval = part.get("cooldown_interval")
    if name == "cb_config" and isinstance(interval, int) and interval < MIN_COOLDOWN_MS:
        for spelling in ("cooldown_interval", "cooldownInterval"):
            if item := field.child(spelling):
                item.report_approximate(f"cooldown_interval: at least {MIN_COOLDOWN_MS} milliseconds")
        part["cooldown_interval"] = MIN_COOLDOWN_MS
    return part


def _remove(config: JsonObject, node: Node, path: str) -> bool:
    """Removes the value at the path of a validation error, and marks it. Returns false if this value cannot be removed
    singly.
    """
    parts = [int(index) if index else name for name, index in PATH_PART.findall(path)]
    if not parts or "".join(_render(parts)) != path.removeprefix("$") or not isinstance(parts[-1], str):
        return False
    location: Any = config
    source: Node | None = node
    for part in parts[:-1]:
        try:
            location = location[part]
        except (KeyError, IndexError, TypeError):
            return False
        source = _find_child(source, part) if source else None
    if not isinstance(location, dict) or parts[-1] not in location:
        return False
    cast("JsonObject", location).pop(parts[-1])
    if source and (marked := _find_child(source, parts[-1])):
        marked.report_unsupported(LEFT_OUT)
    return True


def _render(parts: list[str | int]) -> Iterator[str]:
    yield from (f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _find_child(node: Node, part: str | int) -> Node | None:
    if isinstance(part, int):
        return node.item(part)
    if child := node.child(part):
        return child
    names = (field for field in node.fields() if CAMEL_BOUNDARY.sub("_", field.name).lower() == part)
    return next(names, None)


@cache
def _known_keys() -> frozenset[str]:
    """Returns all keys of configs, from their schema."""
    names: set[str] = set()

    def collect(value: Any) -> None:  # noqa: ANN401 - JSON
        if isinstance(value, dict):
            table = cast("JsonObject", value)
            names.update(table.get("properties", ()))
            for item in table.values():
                collect(item)
        elif isinstance(value, list):
            for item in cast("list[Any]", value):
                collect(item)

    collect(engine.config_schema())
    return frozenset(names)


@cache
def _secret_keys() -> frozenset[str]:
    return frozenset(name for name in _known_keys() if engine.is_secret_field(name))
