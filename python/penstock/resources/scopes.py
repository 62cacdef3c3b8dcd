"""Catalogue of the scopes of API keys: what each allows, and which types of keys may have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, get
from msgspec import Meta

from penstock.authorization import ALL_SCOPES, SCOPES_BY_KEY_TYPE, RequireScopes, allow_anyone
from penstock.schemas import ListResponse

if TYPE_CHECKING:
    from litestar import Litestar


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """One scope."""

    id: Annotated[str, Meta(description="name of the scope, as keys and tokens have it")]
    resource: Annotated[str, Meta(description="resource that it is for")]
    action: Annotated[str, Meta(description="what it allows on the resource")]
    key_types: Annotated[list[str], Meta(description="types of API keys that may have it")]
    routes: Annotated[list[str], Meta(description="management routes for which it is sufficient; empty: none yet")]
    object: Annotated[str, Meta(description="`scope`")] = "scope"


@get("/", guards=[allow_anyone], sync_to_thread=False, summary="List scopes", tags=["API keys"])
def list_all_scopes(request: Request[Any, Any, Any]) -> ListResponse[Scope]:
    """Lists all scopes that API keys may have."""
    scopes = build_scopes(request.app)
    return ListResponse(len(scopes), scopes)


def build_scopes(app: Litestar) -> list[Scope]:
    """Returns all scopes with the routes of an application that accept them."""
    # A resource may have several paths. Each route is listed once, under its shortest path of version 1.
    paths: dict[object, list[tuple[bool, int, str]]] = {}
    scopes: dict[object, frozenset[str]] = {}
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            path = f"{min(handler.http_methods)} {route.path_format}"
            paths.setdefault(handler.fn, []).append((not route.path.startswith("/v1/"), len(path), path))
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            scopes[handler.fn] = frozenset[str]().union(
                *(guard.scopes for guard in guards if isinstance(guard, RequireScopes))
            )
    routes: dict[str, set[str]] = {}
    for handler, accepted in scopes.items():
        for scope in accepted:
            routes.setdefault(scope, set()).add(min(paths[handler])[-1])
    return [
        Scope(
            id=scope,
            resource=scope.partition(".")[0],
            action=scope.rpartition(".")[2],
            key_types=[kind for kind, scopes in SCOPES_BY_KEY_TYPE.items() if scope in scopes],
            routes=sorted(routes.get(scope, ())),
        )
        for scope in sorted(ALL_SCOPES)
    ]


def render_markdown(app: Litestar) -> list[str]:
    """Renders the introduction and the table of the page about scopes."""
    rows = [
        f"| `{scope.id}` | {', '.join(scope.key_types)} | {', '.join(f'`{route}`' for route in scope.routes)} |"
        for scope in build_scopes(app)
    ]
    introduction = (
        "A scope allows an action on a resource, such as `configs.create`. Each API key has a list of scopes; users get "
        "them from their roles. `GET /v1/scopes` returns this list. Scopes without a route are accepted for keys, but "
        "nothing needs them yet."
    )
    return [introduction, "\n".join(["| scope | key types | routes |", "| --- | --- | --- |", *rows])]


routes = [list_all_scopes]
