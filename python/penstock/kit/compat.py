"""Compatibility of request bodies. Accepts path parameters and the workspace in the body, read-only fields that clients
send back, and other spellings of field names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import msgspec
from litestar import Request
from msgspec.structs import fields

from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from litestar.handlers import BaseRouteHandler

# Route option: the response struct of an object, whose read-only fields a client may send back in an update.
SHOWN_OPTION = "shown"
# Names of Python implementations, as clients send them in their runtime header.
PYTHON_RUNTIMES = frozenset({"cpython", "pypy", "ironpython", "jython"})


class CompatRequest(Request[Any, Any, Any]):
    """Request whose JSON body is normalised to the fields that the route accepts."""

    async def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Returns the body with the current field names, and without fields that repeat path parameters. Moves
        read-only fields to the state of the request, where `RequestContext.check_unchanged` compares them.
        """
        body = await super().json()
        handler, state = self.route_handler, self.scope["state"]
        field = handler.parsed_data_field
        if field is not None and isinstance(body, dict):
            names = dict(iter_field_names(field.annotation))
            body = normalise_body(cast("dict[str, Any]", body), names, self.path_params)
            if "workspace_id" not in names and "workspace_id" in body and takes_workspace(handler):
                state["body_workspace"] = body.pop("workspace_id")
            if "workspace_id" in names and not takes_workspace(handler):
                take_query_workspace(body, self.query_params.getall("workspace_id", []))
            if response_type := handler.opt.get(SHOWN_OPTION):
                only_read = {*dict(iter_field_names(response_type)).values()} - {*names.values()}
                state["unchanged"] = {name: body.pop(name) for name in only_read & body.keys()}
            body = drop_read_only(field.annotation, body)
        # If the body is not valid, `parse_problems` finds its problems in this value.
        state["body"] = body
        return body


def take_query_workspace(body: dict[str, Any], sent: list[str]) -> None:
    """Copies the workspace of the query string to the body, because the route would ignore the query. Raises
    `InvalidError` if the body names another workspace.
    """
    for workspace in sent:
        if body.get("workspace_id") is None:
            body["workspace_id"] = workspace
        elif body["workspace_id"] != workspace:
            message = f"is not {workspace!r}, which the query parameter names; send one of them"
            raise field_error("workspace_id", message)


@lru_cache(None)
def takes_workspace(handler: BaseRouteHandler) -> bool:
    """Returns true if the route reads the query parameter `workspace_id`."""
    parts = [handler, *handler.resolve_dependencies().values()]
    return any("workspace_id" in part.parsed_fn_signature.parameters for part in parts)


def drop_read_only(kind: Any, value: Any) -> Any:  # noqa: ANN401 - any type, and JSON
    """Removes the fields that the structs of a body list in `READ_ONLY`. Clients send them back with the objects that
    they read.
    """
    structs = _structs_in(kind)
    if isinstance(value, list):
        rows = cast("list[Any]", value)
        return [drop_read_only(kind, item) for item in rows] if structs else rows
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, Any]", value)
    ignored = {name for struct in structs for name in getattr(struct, "READ_ONLY", ())}
    types = {field.encode_name: field.type for struct in structs for field in fields(struct)}
    return {
        name: drop_read_only(types[name], item) if name in types else item
        for name, item in table.items()
        if name not in ignored
    }


@lru_cache(None)
def _structs_in(kind: Any) -> tuple[type[msgspec.Struct], ...]:  # noqa: ANN401 - any type
    """Returns the structs of a type: the type itself, the members of a union, or the items of a list."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return (kind,)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is dict:
        return ()
    inside = inside[:1] if origin is Annotated else inside
    return tuple(struct for item in inside for struct in _structs_in(item))


def normalise_body(
    fields: Mapping[str, Any], field_names: Mapping[str, str], path_params: Mapping[str, Any]
) -> dict[str, Any]:
    """Renames fields to the current spelling and drops unknown fields whose value repeats a path parameter.

    `field_names` maps Python field names to the names in requests. `path_params` contains the path parameters. Other
    unknown fields remain, and the route's schema rejects them.
    """
    known_names, values = set(field_names.values()), {str(value) for value in path_params.values()}
    normalised: dict[str, Any] = {}
    for name, value in fields.items():
        if name in known_names:
            normalised[name] = value
        elif field_names.get(name, name) not in {name, *fields} and _fold_name(field_names[name]) == _fold_name(name):
            normalised[field_names[name]] = value
        elif not (isinstance(value, str) and value in values):
            normalised[name] = value
    return normalised


def expects_single_limits(headers: Mapping[str, str], prefixes: Iterable[str]) -> bool:
    """Returns true if the client is the Python SDK of another gateway. That client expects one object for limits in
    list responses, not a list of objects.
    """
    return any(
        f"{prefix}package-version" in headers and headers.get(f"{prefix}runtime", "").lower() in PYTHON_RUNTIMES
        for prefix in prefixes
    )


def _fold_name(name: str) -> str:
    return name.replace("_", "").lower()


def iter_field_names(kind: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any type that a body may be of
    """Yields the names of a struct's fields in Python and in requests. For a union, yields those of all its structs."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return
    inside = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    for item in inside:
        yield from iter_field_names(item)
