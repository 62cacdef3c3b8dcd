"""What the framework says about a body or a query that did not fit, in our words and with the path of each field."""

from __future__ import annotations

import re
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from penstock.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar.exceptions import HTTPException
    from litestar.handlers import BaseRouteHandler

PLACE = re.compile(r"\[[^\]]*\]")
NO_CHOICE = re.compile(r"Invalid enum value (.+)")
NOT_THERE = re.compile(r"Missing required \w+ parameter '(.+)' for")
IN_BODY = re.compile(r"(.+) - at (?:`key` in )?`\$\.data(.*)`$", re.DOTALL)
UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
MISSING = re.compile(r"Object missing required field `(.+)`")


class Taken(NamedTuple):
    """Something that a route takes: its name in requests, and its type."""

    name: str
    kind: Any


def takes(handler: BaseRouteHandler | None) -> dict[str, Taken]:
    """Give what a route takes, by the names that its function has for it; the body is called `data`."""
    if handler is None:
        return {}
    parts = [handler, *handler.resolve_dependencies().values()]
    fields = [field for part in parts for field in part.parsed_fn_signature.parameters.values()]
    return {
        field.name: Taken(getattr(field.kwarg_definition, "name", None) or field.name, field.annotation)
        for field in fields
    }


def problems(error: HTTPException, taken: Mapping[str, Taken]) -> list[Problem]:
    """Read what was wrong, and where; `taken` is what the route takes."""
    if found := IN_BODY.match(str(error.__cause__)):
        # The framework takes fields of a body that are called like a part of ours for that part, and blames us.
        return [_problem(found[2].removeprefix("."), found[1], {"data": taken["data"]})]
    if missing := NOT_THERE.match(error.detail):
        return [Problem(missing[1], "is needed")]
    try:
        listed = msgspec.convert(error.extra, list[dict[str, Any]])
    except msgspec.ValidationError:
        return []
    return [_problem(str(item.get("key", "")), str(item.get("message", "")), taken) for item in listed]


def summary(found: list[Problem], said: str) -> str:
    """Say the first of it in one sentence."""
    if not found:
        return f"the body cannot be read: {_lower(said)}" if said.startswith(("Input data", "JSON")) else _lower(said)
    return f"{found[0].path} {found[0].message}".strip()


def _problem(path: str, message: str, taken: Mapping[str, Taken]) -> Problem:
    # The body itself is called by the name of the argument that it becomes.
    path = "" if path == "data" else path
    if path == "" and message == "'data'":
        return Problem("", "a body is needed")
    for pattern, words in ((UNKNOWN, "is not known"), (MISSING, "is needed")):
        if found := pattern.match(message):
            return Problem(f"{path}.{found[1]}" if path else found[1], words)
    said = _lower(message)
    if (found := NO_CHOICE.match(message)) and (allowed := _choices(path, taken)):
        said = f"{found[1]} is not allowed: expected {' or '.join(allowed)}"
    return Problem(taken[path].name if path in taken else path, said)


def _choices(path: str, taken: Mapping[str, Taken]) -> list[str]:
    """Give the words that are allowed at a path."""
    first, *others = names = PLACE.sub("", path).split(".")
    if first in taken:
        return _words(taken[first].kind, others)
    return list(dict.fromkeys(_words(taken["data"].kind, names))) if "data" in taken else []


def _words(kind: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401 - any type that a body may be of
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [] if names else [str(word) for word in inside]
    if origin is Annotated:
        return _words(inside[0], names)
    if origin in {Union, UnionType} or origin is list:
        return [word for one in inside for word in _words(one, names)]
    if names and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        own = [field.type for field in msgspec.structs.fields(kind) if field.encode_name == names[0]]
        return [word for one in own for word in _words(one, names[1:])]
    return []


def _lower(message: str) -> str:
    return message.lower() if message.istitle() else message[:1].lower() + message[1:]
