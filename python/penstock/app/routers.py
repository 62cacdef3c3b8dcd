"""Routes of the control process: the paths of each resource, and the check that each route has a guard."""

from __future__ import annotations

import importlib
from copy import copy
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response, Router
from litestar import route as answers
from litestar.di import Provide
from litestar.enums import HttpMethod
from litestar.utils import join_paths

from penstock import authorization, resource_paths
from penstock.app.application import (
    Application,
    ApplicationParts,
    before_send_with_store,
    create_context,
    provide_part,
    run_jobs,
)
from penstock.app.error_responses import render_error
from penstock.errors import NotFoundError, StartupError
from penstock.kit.compat import CompatRequest
from penstock.kit.json_response import JsonResponse
from penstock.kit.request_id import add_request_id, request_id
from penstock.kit.text_validation import check_request_text
from penstock.resources import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar.handlers import HTTPRouteHandler
    from litestar.types import Method

NO_CONTENT = 204
HTTP_METHODS: list[Method] = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def register_routes(parts: ApplicationParts) -> Application:
    """Builds an application with the routes that `parts` can serve."""
    dependencies = {name: provide_part(name) for name in parts.services}
    if parts.store:
        from penstock.kit.route_parameters import read_page_request

        dependencies["context"] = Provide(create_context, sync_to_thread=False)
        dependencies["page"] = Provide(read_page_request, sync_to_thread=False)
    app = Application(
        route_handlers=[build_router(resource_paths.module_names())]
        if parts.store
        else [build_router(resource_paths.STORELESS_MODULES), *storeless_routers()],
        dependencies=dependencies,
        exception_handlers={Exception: render_error},
        request_class=CompatRequest,
        response_class=JsonResponse,
        openapi_config=schema.build_openapi_config(),
        lifespan=[run_jobs],
        before_request=begin_request,
        before_send=[add_request_id, *([before_send_with_store] if parts.store else [])],
        logging_config=None,
    )
    require_guards(app)
    return app


def build_router(names: Iterable[str]) -> Router:
    """Builds the router of the named resources. The name of a resource's module determines its path prefixes.

    One router for all prefixes is registered much faster than one router for each. A handler that serves several paths
    needs memory only once.
    """
    prefixed_handlers: list[Any] = []
    paths: list[str] = []
    for name in names:
        routes: list[Any] = importlib.import_module(f"penstock.resources.{name}").routes
        prefixes = resource_paths.path_prefixes(name)
        prefixed_handlers += [_add_path_prefixes(handler, prefixes) for handler in routes] if prefixes else routes
        paths += [
            join_paths([prefix, path]) for prefix in prefixes for handler in routes for path in sorted(handler.paths)
        ]
    own_options = copy(list_methods)
    own_options.paths = set(paths)
    router = Router("/", route_handlers=[own_options, *prefixed_handlers])
    # Sorted for a stable OpenAPI document: it takes the description of a type from the first route that has the type.
    # The paths of a handler are a set, which has no order.
    positions = {path: position for position, path in enumerate(dict.fromkeys(paths))}
    router.routes.sort(key=lambda route: positions.get(route.path, len(positions)))
    return router


def storeless_routers() -> list[Router]:
    """Returns routers with a 404 response for resources that need the store. Without these routers, the paths would be
    proxied to a provider.
    """

    @answers(
        ["/", "/{rest:path}"], http_method=HTTP_METHODS, guards=[authorization.allow_anyone], include_in_schema=False
    )
    async def reject_without_store() -> None:
        message = "no store is configured; hint: penstock init, or PENSTOCK_STORE_URL"
        raise NotFoundError(message)

    names = [name for name in resource_paths.module_names() if name not in resource_paths.STORELESS_MODULES]
    return [
        Router(prefix, route_handlers=[reject_without_store])
        for name in names
        for prefix in resource_paths.path_prefixes(name)
    ]


@answers(
    http_method=HttpMethod.OPTIONS,
    status_code=NO_CONTENT,
    guards=[authorization.allow_anyone],
    include_in_schema=False,
    sync_to_thread=False,
)
def list_methods(request: Request[Any, Any, Any]) -> Response[None]:
    """Answers OPTIONS with the methods of the path. One handler serves all paths, because the framework would otherwise
    make one for each path.
    """
    template = request.scope["path_template"]
    allowed = {method for route in request.app.routes if route.path_format == template for method in route.methods}
    return Response(None, headers={"allow": ", ".join(sorted(allowed))})


def _add_path_prefixes(handler: HTTPRouteHandler, prefixes: Iterable[str]) -> HTTPRouteHandler:
    """Returns a copy of a handler that serves its paths below each of the prefixes."""
    prefixed_handlers = copy(handler)
    prefixed_handlers.paths = {join_paths([prefix, path]) for prefix in prefixes for path in handler.paths}
    return prefixed_handlers


async def begin_request(request: Request[Any, Any, Any]) -> None:
    """Assigns the request id, and rejects NUL characters in the path, the query and the body."""
    request_id(request.scope)
    await check_request_text(request)


def require_guards(app: Litestar) -> None:
    """Denies by default: raises `StartupError` if a route declares no guard."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            # OPTIONS handlers need no guard: they reveal only what the OpenAPI document contains.
            itself = getattr(handler, "http_methods", None) == {"OPTIONS"}
            if not itself and not any(map(authorization.is_guard, guards)):
                message = f"the route {route.path!r} declares no guard; hint: penstock.authorization has them"
                raise StartupError(message)
