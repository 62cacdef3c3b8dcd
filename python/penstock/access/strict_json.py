"""JSON parser for tokens. Rejects JSON that two parsers could read differently, because the engine verifies the same
tokens in Rust (`rust/core/src/auth/jwt/strict_json.rs`).
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn, cast

# Maximum nesting of objects and arrays. The outermost object is the first level.
MAX_DEPTH = 32
# Half a pair of surrogates, which a `str` may contain although it is not Unicode text.
SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(content: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError if it is malformed, has a duplicate name, a number outside the range of a
    double, or more than 32 levels.
    """
    try:
        value: object = json.loads(content.decode(), object_pairs_hook=_build_object, parse_constant=_reject)
    except RecursionError:
        value = None
    if not isinstance(value, dict):
        _reject()
    members = cast("dict[str, Any]", value)
    if not _is_allowed(members, MAX_DEPTH):
        _reject()
    return members


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        _reject()
    return members


def _is_allowed(value: object, levels: int) -> bool:
    match value:
        case str():
            return not SURROGATE.search(value)
        case float() | int():
            return abs(value) <= sys.float_info.max
        case list():
            return levels > 0 and all(_is_allowed(inner, levels - 1) for inner in cast("list[object]", value))
        case dict():
            members = cast("dict[str, object]", value)
            return levels > 0 and all(
                _is_allowed(name, 0) and _is_allowed(inner, levels - 1) for name, inner in members.items()
            )
        case _:
            return True


def _reject(_constant: str = "") -> NoReturn:
    message = "not a JSON object that every parser reads in the same way"
    raise ValueError(message)
