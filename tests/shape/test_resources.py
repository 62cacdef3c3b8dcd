"""The management API as its files say it: the path is the file, and every route is guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock import authorization, resources
from penstock.app import create_documented_app
from tests.shape.repository import under

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from litestar import Litestar

FILES = [path for path in under("python/penstock/resources", ".py") if not path.name.startswith("_")]


@pytest.fixture(scope="module")
def app() -> Litestar:
    return create_documented_app()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_resources_path_is_its_file(app: Litestar, path: Path):
    name = path.relative_to("python/penstock/resources").with_suffix("").as_posix().replace("/", ".")
    served = [route.path for route in app.routes]
    for prefix in resources.path_prefixes(name) or (f"/{name}",):
        assert any(route == prefix or route.startswith(f"{prefix}/") for route in served), prefix


def test_every_route_has_a_file(app: Litestar):
    prefixes = [
        prefix for name in resources.module_names() for prefix in resources.path_prefixes(name) or (f"/{name}",)
    ]
    stray = [
        route.path
        for route in app.routes
        if not any(route.path == p or route.path.startswith(f"{p}/") for p in prefixes)
    ]
    assert not stray


def test_what_the_engine_forwards_is_what_is_served_and_nothing_internal():
    assert not [path for path in resources.forwarded_prefixes() if path.startswith("/internal")]


def guards(app: Litestar) -> Iterator[tuple[str, list[object]]]:
    """The guards of every route that someone wrote; OPTIONS is answered by the framework itself."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if handler.http_methods != {"OPTIONS"}:
                yield route.path, [guard for layer in handler.ownership_layers for guard in layer.guards or ()]


def test_every_route_declares_a_guard(app: Litestar):
    assert not [path for path, declared in guards(app) if not any(map(authorization.is_guard, declared))]


def test_every_body_can_be_read(app: Litestar):
    """The framework would only notice with the first request."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if data := handler.parsed_fn_signature.parameters.get("data"):
                msgspec.json.Decoder(data.raw)


def test_what_only_the_engine_may_ask_is_guarded_so(app: Litestar):
    internal = [declared for path, declared in guards(app) if path.startswith("/internal")]
    assert internal
    assert all(authorization.engine_only in declared for declared in internal)
