"""Compatibility with request bodies of older clients. They repeat path parameters in the body and spell field names
differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import msgspec
from litestar import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Names that Python implementations report as their runtime.
PYTHON_RUNTIMES = frozenset({"cpython", "pypy", "ironpython", "jython"})


class CompatRequest(Request[Any, Any, Any]):
    """Request whose JSON body is normalised to the current field names."""

    async def json(self) -> Any:  # noqa: ANN401 - whatever it is
        """Returns the body without repeated path parameters and with the current field names."""
        given = await super().json()
        field = self.route_handler.parsed_data_field
        if field is None or not isinstance(given, dict):
            return given
        return normalise_body(cast("dict[str, Any]", given), dict(_field_names(field.annotation)), self.path_params)


def normalise_body(
    given: Mapping[str, Any], field_names: Mapping[str, str], path_params: Mapping[str, Any]
) -> dict[str, Any]:
    """Renames fields to the current spelling and drops unknown fields whose value repeats a path parameter.

    `field_names` maps Python field names to the names in requests, and `path_params` has the path parameters. Other unknown fields
    remain, and the route's schema rejects them.
    """
    known_names, values = set(field_names.values()), {str(value) for value in path_params.values()}
    normalised: dict[str, Any] = {}
    for name, value in given.items():
        if name in known_names:
            normalised[name] = value
        elif field_names.get(name, name) not in {name, *given} and _fold_name(field_names[name]) == _fold_name(name):
            normalised[field_names[name]] = value
        elif not (isinstance(value, str) and value in values):
            normalised[name] = value
    return normalised


def expects_single_limits(fields: Mapping[str, str], prefixes: Iterable[str]) -> bool:
    """Returns true if the caller is the Python client of another gateway. That client expects one object for limits in
    list responses, not a list of objects.
    """
    return any(
        f"{prefix}package-version" in fields and fields.get(f"{prefix}runtime", "").lower() in PYTHON_RUNTIMES
        for prefix in prefixes
    )


def _fold_name(name: str) -> str:
    return name.replace("_", "").lower()


def _field_names(kind: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any type that a body may be of
    """Yields the names of a struct's fields in Python and in requests. For a union, yields those of all its structs."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return
    inside = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    for one in inside:
        yield from _field_names(one)
