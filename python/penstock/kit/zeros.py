"""Texts with a NUL in them are refused by their place: databases do not take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.enums import RequestEncodingType

from penstock.errors import InvalidError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Request

NUL, SPELLED = "\0", b"\\u0000"
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WHY = "must not hold the character U+0000"
DEEPEST = 128


async def refuse_zeros(request: Request[Any, Any, Any]) -> None:
    """Look at the path, the query and a body of JSON; who reads a form looks at what it keeps of it."""
    problems = [Problem("path", WHY)] if NUL in request.scope["path"] else []
    # Most requests have no query, and to read one costs more than to see that.
    if b"%00" in request.scope["query_string"]:
        problems += [
            Problem(name.replace(NUL, ""), WHY)
            for name, value in request.query_params.multi_items()
            if NUL in name + str(value)
        ]
    if request.method in WRITES and _takes_json(request):
        body = await request.body()
        # It may also be an escaped backslash before four digits.
        if SPELLED in body:
            problems += [Problem(place, WHY) for place in _places(_read(body))]
    if problems:
        raise InvalidError(f"{problems[0].path} {WHY}", problems)


def _takes_json(request: Request[Any, Any, Any]) -> bool:
    """Whether the route reads a body as JSON: it does so whatever the request calls it."""
    taken = request.scope["route_handler"].parsed_data_field
    said = taken and taken.kwarg_definition
    return taken is not None and getattr(said, "media_type", None) != RequestEncodingType.MULTI_PART


def _read(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        # What is wrong with it is told by who reads it as what it should be.
        return None


def _places(value: object, path: str = "", depth: int = 0) -> Iterator[str]:
    if isinstance(value, str) and NUL in value:
        yield path
    elif depth > DEEPEST:
        return
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            place = f"{path}.{name}".lstrip(".").replace(NUL, "")
            if NUL in name:
                yield place
            yield from _places(item, place, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _places(item, f"{path}[{index}]", depth + 1)
