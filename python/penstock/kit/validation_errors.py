"""Conversion of the web framework's validation errors into problems with field paths. It rewords the framework's
messages for API clients.
"""

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

INDEX_PATTERN = re.compile(r"\[[^\]]*\]")
INVALID_ENUM_VALUE = re.compile(r"Invalid enum value (.+)")
MISSING_PARAMETER = re.compile(r"Missing required \w+ parameter '(.+)' for")
BODY_FIELD_ERROR = re.compile(r"(.+) - at (?:`key` in )?`\$\.data(.*)`$", re.DOTALL)
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")


class RouteParameter(NamedTuple):
    """Parameter of a route handler: its name in requests and its type."""

    name: str
    annotation: Any


def route_parameters(handler: BaseRouteHandler | None) -> dict[str, RouteParameter]:
    """Returns the parameters of a route and its dependencies, keyed by Python argument name. The request body has the
    key `data`.
    """
    if handler is None:
        return {}
    parts = [handler, *handler.resolve_dependencies().values()]
    fields = [field for part in parts for field in part.parsed_fn_signature.parameters.values()]
    return {
        field.name: RouteParameter(getattr(field.kwarg_definition, "name", None) or field.name, field.annotation)
        for field in fields
    }


def parse_problems(error: HTTPException, taken: Mapping[str, RouteParameter]) -> list[Problem]:
    """Converts a framework error to a list of problems with field paths. `taken` has the parameters of the route."""
    if found := BODY_FIELD_ERROR.match(str(error.__cause__)):
        # If a body field has the same name as a handler argument, the framework attributes its error to that argument
        # and answers with a server error.
        return [_parse_problem(found[2].removeprefix("."), found[1], {"data": taken["data"]})]
    if missing := MISSING_PARAMETER.match(error.detail):
        return [Problem(missing[1], "is needed")]
    try:
        listed = msgspec.convert(error.extra, list[dict[str, Any]])
    except msgspec.ValidationError:
        return []
    return [_parse_problem(str(item.get("key", "")), str(item.get("message", "")), taken) for item in listed]


def summarize_problems(found: list[Problem], message: str) -> str:
    """Returns one sentence about the first problem, or about the framework's message `message` if there are no problems."""
    if not found:
        return (
            f"the body cannot be read: {_lowercase_message(message)}"
            if message.startswith(("Input data", "JSON"))
            else _lowercase_message(message)
        )
    return f"{found[0].path} {found[0].message}".strip()


def _parse_problem(path: str, message: str, taken: Mapping[str, RouteParameter]) -> Problem:
    # The framework reports errors of the body itself under the name of the handler argument.
    path = "" if path == "data" else path
    if path == "" and message == "'data'":
        return Problem("", "a body is needed")
    for pattern, reason in ((UNKNOWN_FIELD, "is not known"), (MISSING_FIELD, "is needed")):
        if found := pattern.match(message):
            return Problem(f"{path}.{found[1]}" if path else found[1], reason)
    text = _lowercase_message(message)
    if (found := INVALID_ENUM_VALUE.match(message)) and (allowed := _allowed_values(path, taken)):
        text = f"{found[1]} is not allowed: expected {' or '.join(allowed)}"
    return Problem(taken[path].name if path in taken else path, text)


def _allowed_values(path: str, taken: Mapping[str, RouteParameter]) -> list[str]:
    """Returns the values that are allowed at a path."""
    first, *others = names = INDEX_PATTERN.sub("", path).split(".")
    if first in taken:
        return _literal_values(taken[first].annotation, others)
    return list(dict.fromkeys(_literal_values(taken["data"].annotation, names))) if "data" in taken else []


def _literal_values(kind: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401 - any type that a body may be of
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [] if names else [str(value) for value in inside]
    if origin is Annotated:
        return _literal_values(inside[0], names)
    if origin in {Union, UnionType} or origin is list:
        return [word for one in inside for word in _literal_values(one, names)]
    if names and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        field_types = [field.type for field in msgspec.structs.fields(kind) if field.encode_name == names[0]]
        return [word for one in field_types for word in _literal_values(one, names[1:])]
    return []


def _lowercase_message(message: str) -> str:
    return message.lower() if message.istitle() else message[:1].lower() + message[1:]
