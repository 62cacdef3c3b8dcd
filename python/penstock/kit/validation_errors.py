"""Conversion of the web framework's validation errors into problems with field paths. It reports every problem of a
body and of the parameters, in terms that API clients know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import Problem
from penstock.kit.compat import iter_field_names
from penstock.type_validation import describe_type, find_problems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar import Request
    from litestar.exceptions import HTTPException
    from litestar.handlers import BaseRouteHandler

MISSING_PARAMETER = re.compile(r"Missing required \w+ parameter '(.+)' for")
MALFORMED_JSON = re.compile(r"(?:JSON is malformed: |Input data was truncated)(.*)", re.DOTALL)
# Maximum number of problems in the message, which only counts the others. The list of problems contains all.
MAX_SUMMARIZED = 5
# Name of the handler argument that takes the body.
BODY = "data"
# Message of the framework for a missing argument.
MISSING_BODY = f"'{BODY}'"


class RouteParameter(NamedTuple):
    """Parameter of a route handler: its name in requests and its type."""

    name: str
    annotation: Any
    lowest: float | None = None
    highest: float | None = None


READ_ONLY_MESSAGE = "can only be read: the gateway sets it; leave it out"
# Placeholder for the body of a request without a body or without JSON.
NO_BODY = object()


def route_parameters(handler: BaseRouteHandler | None) -> dict[str, RouteParameter]:
    """Returns the parameters of a route and its dependencies, keyed by Python argument name. The request body has the
    key `data`.
    """
    if handler is None:
        return {}
    parts = [handler, *handler.resolve_dependencies().values()]
    fields = [field for part in parts for field in part.parsed_fn_signature.parameters.values()]
    return {
        field.name: RouteParameter(
            getattr(field.kwarg_definition, "name", None) or field.name,
            field.annotation,
            getattr(field.kwarg_definition, "ge", None),
            getattr(field.kwarg_definition, "le", None),
        )
        for field in fields
    }


def parse_problems(
    error: HTTPException, request: Request[Any, Any, Any], used: Mapping[str, RouteParameter], body: object = NO_BODY
) -> list[Problem]:
    """Converts a framework error to a list of problems with field paths. `used` has the parameters of the route, and
    `body` is the decoded body.
    """
    listed = _listed_errors(error)
    problems = list(_parameter_problems(error, request, used, listed))
    if not (listed or isinstance(error.__cause__, msgspec.ValidationError)):
        return problems
    if body is not NO_BODY and BODY in used:
        body_problems = find_problems(used[BODY].annotation, body, strict=False)
        read_only = _read_only_fields(request, used[BODY].annotation)
        problems += [
            Problem(item.path, READ_ONLY_MESSAGE) if item.path in read_only else item for item in body_problems
        ]
    elif any(item.get("message") == MISSING_BODY for item in listed):
        problems.append(Problem("", "a body is needed"))
    # If `find_problems` finds nothing wrong, the messages of the framework's decoder are used.
    return problems or [Problem(_field_path(item), _lower_first(str(item.get("message", "")))) for item in listed]


def summarize_problems(problems: Sequence[Problem], message: str) -> str:
    """Returns the problems in one line, or the framework's message `message` if there are no problems."""
    if problems:
        listed = "; also ".join(f"{item.path} {item.message}".strip() for item in problems[:MAX_SUMMARIZED])
        rest = len(problems) - MAX_SUMMARIZED
        return f"{listed}; and {rest} more" if rest > 0 else listed
    if malformed := MALFORMED_JSON.match(message):
        return f"the body is not valid JSON: {malformed[1] or 'it is incomplete'}"
    return message.lower() if message.istitle() else _lower_first(message)


def _parameter_problems(
    error: HTTPException,
    request: Request[Any, Any, Any],
    used: Mapping[str, RouteParameter],
    listed: Sequence[Mapping[str, Any]],
) -> list[Problem]:
    """Returns the problems of path and query parameters."""
    if missing := MISSING_PARAMETER.match(error.detail):
        return [Problem(missing[1], "is needed")]
    problems: list[Problem] = []
    for item in listed:
        name = str(item.get("key", ""))
        parameter = used.get(name)
        # If a field of the body has the same name as a parameter, the framework attributes its error to that parameter.
        if parameter is None or name == BODY or item.get("source") == "body":
            continue
        sent = {**request.path_params, **dict(request.query_params.items())}.get(parameter.name)
        if sent is not None:
            expected = describe_type(parameter.annotation).removesuffix(" or null")
            if parameter.lowest is not None:
                expected += f" from {parameter.lowest} to {parameter.highest}"
            problems.append(Problem(parameter.name, f"{str(sent)[:80]!r} is not allowed: expected {expected}"))
    return problems


def _read_only_fields(request: Request[Any, Any, Any], body_type: object) -> set[str]:
    """Returns the fields that responses for an object contain, but that a client cannot send when it creates one."""
    if request.method != "POST":
        return set()
    scope = cast("dict[str, Any]", request.scope)
    path = str(scope.get("path_template", "")).rstrip("/")
    readable: set[str] = set()
    for route in request.app.routes:
        parent, _, last = route.path_format.rpartition("/")
        if parent == path and last.startswith("{"):
            handlers: Sequence[Any] = getattr(route, "route_handlers", ())
            for handler in handlers:
                if "GET" in handler.http_methods:
                    readable |= {*dict(iter_field_names(handler.parsed_fn_signature.return_type.annotation)).values()}
    return readable - {*dict(iter_field_names(body_type)).values()}


def _field_path(item: Mapping[str, Any]) -> str:
    path = str(item.get("key", ""))
    return "" if path == BODY else path


def _listed_errors(error: HTTPException) -> list[dict[str, Any]]:
    try:
        return msgspec.convert(error.extra, list[dict[str, Any]])
    except msgspec.ValidationError:
        return []


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
