"""create_app(): wires settings, jobs and resources into the control process's application."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.serialization import encode_json

from penstock import caller, resources
from penstock.errors import PenstockError, Problem, StartError, code_for, envelope
from penstock.jobs.records import RecordWriter
from penstock.jobs.watch import Watcher
from penstock.metrics import Figures
from penstock.resources import schema
from penstock.settings import Settings
from penstock.snapshot import Published, Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


log = logging.getLogger("penstock")

INTERNAL_ERROR = 500


def create_app(settings: Settings, published: Published) -> Litestar:
    """Build the application; nothing runs before its lifespan starts."""
    records = RecordWriter(settings.records)
    parts = {"settings": settings, "published": published, "figures": Figures(), "records": records}

    @asynccontextmanager
    async def jobs(_app: Litestar) -> AsyncGenerator[None]:
        watcher = Watcher(settings, published)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, watcher.ask)
        watching = loop.create_task(watcher.run()) if settings.file else None
        try:
            yield
        finally:
            published.close()
            if watching:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
            records.close()

    app = Litestar(
        route_handlers=routers(),
        dependencies={name: provide(part) for name, part in parts.items()},
        exception_handlers={Exception: answer},
        openapi_config=schema.description(),
        lifespan=[jobs],
        logging_config=None,
    )
    refuse_unguarded(app)
    return app


def describe() -> bytes:
    """Give the description of the management API, as `/schema/openapi.json` does."""
    app = create_app(Settings(), Published(Snapshot("", b"", 0)))
    return encode_json(app.openapi_schema.to_schema())


def provide(part: object) -> Provide:
    """Hand the same part to every route that asks for it by name."""
    return Provide(lambda: part, use_cache=True, sync_to_thread=False)


def routers() -> list[Router]:
    """Put each resource below the path that its file name says."""
    found: list[Router] = []
    for name in resources.names():
        routes: list[Any] = importlib.import_module(f"penstock.resources.{name}").routes
        if routes:
            found += [Router(prefix, route_handlers=routes) for prefix in resources.prefixes(name) or ("/",)]
    return found


def refuse_unguarded(app: Litestar) -> None:
    """Deny by default: a route that nobody decided about does not start."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            # Litestar answers OPTIONS by itself, and says no more than the description does.
            itself = getattr(handler, "http_methods", None) == {"OPTIONS"}
            if not itself and not any(guard in caller.GUARDS for guard in guards):
                message = f"the route {route.path!r} declares no guard; allowed: {_guard_names()}"
                raise StartError(message)


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, object]]:
    """Answer with the envelope of the management API, whatever went wrong."""
    if isinstance(error, PenstockError):
        status, message, code, problems = error.status, error.message, error.code, error.problems
    elif isinstance(error, HTTPException):
        status, message, code = error.status_code, error.detail, code_for(error.status_code)
        problems = tuple(_problems(error.extra))
    else:
        status, message, code, problems = INTERNAL_ERROR, "something went wrong", code_for(INTERNAL_ERROR), ()
    if status == INTERNAL_ERROR:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "something went wrong"
    return Response(envelope(message, code, problems), status_code=status)


def _problems(extra: object) -> list[Problem]:
    """Read what Litestar says about a body or a query that did not fit."""
    try:
        listed = msgspec.convert(extra, list[dict[str, Any]])
    except msgspec.ValidationError:
        return []
    return [Problem(str(item.get("key", "")), str(item.get("message", ""))) for item in listed]


def _guard_names() -> str:
    return ", ".join(guard.__name__ for guard in caller.GUARDS)
