"""Litestar application of the control process, and the services that its routes use."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from litestar import Litestar, Request
from litestar.di import Provide
from litestar.plugins.core import MsgspecDIPlugin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from litestar.datastructures import State
    from litestar.plugins import PluginProtocol
    from litestar.types import Message, Scope

    from penstock.app.store_components import StoreComponents


class ApplicationParts(NamedTuple):
    """Services, store and jobs that the routes of an application use. `Application.connect` replaces them."""

    # Services by name. A route receives the service that its parameter of this name needs.
    services: Mapping[str, object]
    store: StoreComponents | None
    run_jobs: Callable[[], AbstractAsyncContextManager[None]]
    state: State


class Application(Litestar):
    """Litestar application with only the plugins that the gateway needs. Registering the routes takes a second. They
    find their services in `parts`, so that tests can use registered routes again with other services.
    """

    parts: ApplicationParts

    def connect(self, parts: ApplicationParts) -> None:
        """Sets the services, the store and the jobs that the routes use."""
        self.parts, self.state = parts, parts.state

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        # The other default plugins support pydantic and attrs; no request body uses those, and loading them takes 9 MB.
        return [*plugins, MsgspecDIPlugin()]


def split_services(app: Litestar) -> ApplicationParts:
    """Returns the services, the store and the jobs of an application."""
    return cast("Application", app).parts


def create_context(request: Request[Any, Any, Any]) -> object:
    """Creates the context of a request that uses the store."""
    store = cast("StoreComponents", split_services(request.app).store)
    return store.services.create_context(request)


def provide_part(name: str) -> Provide:
    """Returns a dependency that injects a service into routes."""

    def find_part(request: Request[Any, Any, Any]) -> object:
        return split_services(request.app).services[name]

    return Provide(find_part, sync_to_thread=False)


@asynccontextmanager
async def run_jobs(app: Litestar) -> AsyncGenerator[None]:
    """Runs the jobs of the application."""
    async with split_services(app).run_jobs():
        yield


async def before_send_with_store(message: Message, scope: Scope) -> None:
    """Calls the store's hook for outgoing messages, if there is a store."""
    if store := split_services(scope["litestar_app"]).store:
        await store.before_send(message, scope)
