"""What clients say in other words: older ones repeat in a body what the path says, and spell names in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import msgspec
from litestar import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# What the implementations of Python call themselves.
PYTHON_RUNTIMES = frozenset({"cpython", "pypy", "ironpython", "jython"})


class CompatRequest(Request[Any, Any, Any]):
    """A request whose body is read as it is meant."""

    async def json(self) -> Any:  # noqa: ANN401 - whatever it is
        """Give the body, without what its path says too and with our names of its fields."""
        given = await super().json()
        field = self.route_handler.parsed_data_field
        if field is None or not isinstance(given, dict):
            return given
        return normalise_body(cast("dict[str, Any]", given), dict(_field_names(field.annotation)), self.path_params)


def normalise_body(given: Mapping[str, Any], own: Mapping[str, str], said: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that nobody has and whose value the path says too; name others as we do.

    `own` has the names of fields in requests by their names in Python, `said` what the path says. What is still unknown is
    refused by who reads it.
    """
    known, values = set(own.values()), {str(value) for value in said.values()}
    told: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            told[name] = value
        elif own.get(name, name) not in {name, *given} and _fold_name(own[name]) == _fold_name(name):
            told[own[name]] = value
        elif not (isinstance(value, str) and value in values):
            told[name] = value
    return told


def expects_single_limits(fields: Mapping[str, str], prefixes: Iterable[str]) -> bool:
    """Whether the caller is the Python client of another gateway: in its lists limits are one table, where others have lists of them."""
    return any(
        f"{prefix}package-version" in fields and fields.get(f"{prefix}runtime", "").lower() in PYTHON_RUNTIMES
        for prefix in prefixes
    )


def _fold_name(name: str) -> str:
    return name.replace("_", "").lower()


def _field_names(kind: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any type that a body may be of
    """Give the names of a struct's fields, in Python and in requests; of several structs, those of all."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return
    inside = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    for one in inside:
        yield from _field_names(one)
