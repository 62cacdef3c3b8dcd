"""Guards: who may call a management route. A route that declares none does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import MissingError

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers.base import BaseRouteHandler


async def anyone(_connection: ASGIConnection[Any, Any, Any, Any], _route: BaseRouteHandler) -> None:
    """Let everyone in: for what is no secret."""


async def engine_only(connection: ASGIConnection[Any, Any, Any, Any], _route: BaseRouteHandler) -> None:
    """Let only the engine itself in, not those it forwards for."""
    # The edge never forwards these paths; should it ever, its proxy header gives the request away.
    if "x-forwarded-for" in connection.headers:
        message = "there is nothing at this path"
        raise MissingError(message)


GUARDS = (anyone, engine_only)
