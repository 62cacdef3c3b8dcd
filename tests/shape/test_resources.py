"""Routes of the management API: each path follows from its file, and every route has a guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock import authorization, resource_paths
from penstock.app import create_documented_app
from tests.shape.repository import files_under

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from litestar import Litestar

RESOURCE_FILES = [path for path in files_under("python/penstock/resources", ".py") if not path.name.startswith("_")]


@pytest.fixture(scope="module")
def app() -> Litestar:
    return create_documented_app()


@pytest.mark.parametrize("path", RESOURCE_FILES, ids=[path.stem for path in RESOURCE_FILES])
def test_resource_path_matches_its_file(app: Litestar, path: Path):
    name = path.relative_to("python/penstock/resources").with_suffix("").as_posix().replace("/", ".")
    route_paths = [route.path for route in app.routes]
    for prefix in resource_paths.path_prefixes(name) or (f"/{name}",):
        assert any(route == prefix or route.startswith(f"{prefix}/") for route in route_paths), prefix


def test_every_route_has_a_file(app: Litestar):
    prefixes = [
        prefix
        for name in resource_paths.module_names()
        for prefix in resource_paths.path_prefixes(name) or (f"/{name}",)
    ]
    stray = [
        route.path
        for route in app.routes
        if not any(route.path == p or route.path.startswith(f"{p}/") for p in prefixes)
    ]
    assert not stray


def test_engine_forwards_no_internal_paths():
    assert not [path for path in resource_paths.forwarded_prefixes() if path.startswith("/internal")]


def iter_route_guards(app: Litestar) -> Iterator[tuple[str, list[object]]]:
    """Yields the guards of every route of this project. The framework itself answers OPTIONS."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if handler.http_methods != {"OPTIONS"}:
                yield route.path, [guard for layer in handler.ownership_layers for guard in layer.guards or ()]


def test_every_route_declares_a_guard(app: Litestar):
    assert not [path for path, declared in iter_route_guards(app) if not any(map(authorization.is_guard, declared))]


def test_every_body_type_can_be_decoded(app: Litestar):
    """The framework would only report an unsupported type on the first request."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if data := handler.parsed_fn_signature.parameters.get("data"):
                msgspec.json.Decoder(data.raw)


def test_internal_routes_are_for_the_engine_only(app: Litestar):
    internal = [declared for path, declared in iter_route_guards(app) if path.startswith("/internal")]
    assert internal
    assert all(authorization.engine_only in declared for declared in internal)
