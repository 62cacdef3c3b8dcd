"""Application factory of the control process. Connects settings, jobs and resources."""

from __future__ import annotations

import asyncio
import base64
import importlib
import logging
import signal
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from litestar import Litestar, Request, Response, Router
from litestar import route as answers
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.plugins.core import MsgspecDIPlugin
from litestar.serialization import encode_json

from penstock import authorization, resources
from penstock.errors import (
    NotFoundError,
    PenstockError,
    RateLimitedError,
    ReplayedResponse,
    StartupError,
    UnavailableError,
    error_code_for,
    error_envelope,
    openai_error,
)
from penstock.job_loop import run_with_restarts, stop_jobs
from penstock.kit.client_ip import TrustedProxies
from penstock.kit.compat import CompatRequest
from penstock.kit.json_response import JsonResponse
from penstock.kit.openapi import build_openapi as whole
from penstock.kit.text_validation import check_request_text
from penstock.kit.validation_errors import parse_problems, route_parameters, summarize_problems
from penstock.metrics import BatchMetrics, JobMetrics, MetricsStore
from penstock.node_store import NodeStore
from penstock.pricing.price_book import PriceBook
from penstock.records import RecordFeed
from penstock.resources import schema
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.build import EMPTY_STORE_DATA, Snapshot, SnapshotChannel
from penstock.snapshot.file_watcher import ConfigFileWatcher

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable

    from litestar.plugins import PluginProtocol
    from litestar.types import Message, Method, Scope

    from penstock.kit.tenant_session import Services
    from penstock.snapshot.publisher import SnapshotPublisher
    from penstock.snapshot.redis_notifier import RedisNotifier
    from penstock.store.database import Database

log = logging.getLogger("penstock")

BAD_REQUEST, INTERNAL_ERROR = 400, 500
HTTP_METHODS: list[Method] = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Application(Litestar):
    """Litestar application with only the plugins that the gateway needs."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        # The other default plugins support pydantic and attrs; no request body uses those, and loading them takes 9 MB.
        return [*plugins, MsgspecDIPlugin()]


def create_app(settings: Settings, published: SnapshotChannel, record_socket: socket.socket | None = None) -> Litestar:
    """Builds the application; jobs start with its lifespan. Request records are read from `record_socket`."""
    records = RecordFeed(settings.records)
    batch_figures, job_figures = BatchMetrics(), JobMetrics()
    parts = {
        "settings": settings,
        "published": published,
        "figures": MetricsStore(),
        "notes": NodeStore(),
        "batch_figures": batch_figures,
        "job_figures": job_figures,
        "records": records,
        "prices": PriceBook(settings),
    }
    url = settings.store_url
    store = open_store(settings, published, url, batch_figures, records) if url else None

    @asynccontextmanager
    async def run_jobs(_app: Litestar) -> AsyncGenerator[None]:
        watcher = ConfigFileWatcher(settings, published)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, watcher.request_reload)
        close_records = records.listen(record_socket, loop) if record_socket else records.close
        loops = [*([watcher.run] if settings.file else []), *(store.job_loops if store else [])]
        running = [loop.create_task(run_with_restarts(job, job_figures)) for job in loops]
        try:
            yield
        finally:
            published.close()
            await stop_jobs(running)
            if store:
                await store.database.close()
            close_records()

    app = Application(
        route_handlers=build_routers(resources.module_names())
        if store
        else [*build_routers(resources.STORELESS_MODULES), *storeless_routers()],
        dependencies={name: provide_singleton(part) for name, part in parts.items()}
        | (store.dependencies if store else {}),
        exception_handlers={Exception: render_error},
        request_class=CompatRequest,
        response_class=JsonResponse,
        openapi_config=schema.build_openapi_config(),
        lifespan=[run_jobs],
        before_request=check_request_text,
        before_send=[store.before_send] if store else [],
        logging_config=None,
        state=State(
            {
                "identify": store.authenticate if store else None,
                "office": store.services if store else None,
                "proxies": TrustedProxies(settings.security.trusted_proxies),
                "header_aliases": settings.security.header_aliases,
                "key_headers": [f"{prefix}api-key" for prefix in ("x-gateway-", *settings.security.header_aliases)],
            }
        ),
    )
    check_guards(app)
    return app


class StoreComponents(NamedTuple):
    """Components that need the store: authentication, tenant sessions, and background jobs."""

    database: Database
    services: Services
    authenticate: Callable[[authorization.PresentedCredential], Awaitable[authorization.Caller]]
    dependencies: dict[str, Provide]
    job_loops: list[Callable[[], Coroutine[Any, Any, None]]]
    before_send: Callable[[Message, Scope], Awaitable[None]]


class ChangeNotifier(NamedTuple):
    """Notifies this node's publisher and the other nodes of store changes."""

    publisher: SnapshotPublisher
    redis_notifier: RedisNotifier | None

    def notify(self) -> None:
        """Notifies the publisher and the other nodes that the store changed."""
        self.publisher.notify()
        if self.redis_notifier:
            self.redis_notifier.notify()

    async def wait_until_applied(self, number: int) -> None:
        """Waits, for a bounded time, until each worker of this node applies the change with this number."""
        await self.publisher.wait_until_applied(number)


def open_store(
    settings: Settings, published: SnapshotChannel, url: Secret, batch_figures: BatchMetrics, records: RecordFeed
) -> StoreComponents:
    """Builds the components that need the store. Their modules are imported only here, so a gateway without a store
    never loads them.
    """
    from penstock.batches.runner import BatchRunner
    from penstock.blobs.folder import BlobFolder
    from penstock.jobs.prepare import load_token_verifier
    from penstock.jobs.rotate import KeyRotator
    from penstock.kit import listing
    from penstock.kit.authentication import CallerAuthenticator
    from penstock.kit.passwords import PasswordService
    from penstock.kit.preconditions import before_send
    from penstock.kit.tenant_session import Services
    from penstock.resources._last_known import find_caller
    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import Vault, load_master_keys
    from penstock.snapshot.publisher import SavedSnapshot, SnapshotPublisher
    from penstock.store.database import Database

    database = Database(settings.store, url)
    key = load_master_keys(settings)
    vault, saved_snapshot = Vault(key), SavedSnapshot(settings, key)
    # Used until the store is read for the first time. A snapshot without the stored rows would reject every stored key.
    published.stored = saved_snapshot.load() or EMPTY_STORE_DATA
    tokens = load_token_verifier(settings, saved_snapshot)
    identities = CallerAuthenticator(database, tokens, lambda digest: find_caller(published.stored, digest))
    secrets = SecretCache(settings)
    publisher = SnapshotPublisher(settings, published, database, vault, secrets, saved_snapshot, tokens)
    announcer = _create_redis_notifier(settings, publisher.notify)
    notifier = ChangeNotifier(publisher, announcer)
    services = Services(settings, database, vault, identities, notifier)
    blobs = BlobFolder(settings.files_folder)
    runner = BatchRunner(settings, services, secrets, blobs, batch_figures, records)
    shared = {
        "office": services,
        "identities": identities,
        "passwords": PasswordService(),
        "blobs": blobs,
        "runner": runner,
    }
    dependencies = {
        "work": Provide(services.create_context, sync_to_thread=False),
        "page": Provide(listing.read_page_request, sync_to_thread=False),
        **{name: provide_singleton(part) for name, part in shared.items()},
    }
    loops: list[Callable[[], Coroutine[Any, Any, None]]] = [publisher.run, KeyRotator(services).run, runner.run]
    if announcer:
        loops.append(announcer.run)
    if tokens:
        from penstock.jobs.jwks import JwksRefresher

        loops.append(JwksRefresher(tokens, settings.jwt.refresh_seconds, publisher.notify).run)
    return StoreComponents(
        database, services, identities.authenticate, dependencies, loops, partial(before_send, services)
    )


def _create_redis_notifier(settings: Settings, on_change: Callable[[], None]) -> RedisNotifier | None:
    if not settings.redis.url:
        return None
    from penstock.snapshot.redis_notifier import RedisNotifier

    return RedisNotifier(settings.redis, settings.redis.url.reveal(), on_change, settings.upstream.tls_ca)


def storeless_routers() -> list[Router]:
    """Returns routers that answer 404 for resources that need the store. Without them these paths would be proxied to a
    provider.
    """

    @answers(
        ["/", "/{rest:path}"], http_method=HTTP_METHODS, guards=[authorization.allow_anyone], include_in_schema=False
    )
    async def reject_without_store() -> None:
        message = "no store is configured; hint: penstock init, or PENSTOCK_STORE_URL"
        raise NotFoundError(message)

    names = [name for name in resources.module_names() if name not in resources.STORELESS_MODULES]
    return [
        Router(prefix, route_handlers=[reject_without_store])
        for name in names
        for prefix in resources.path_prefixes(name)
    ]


def create_documented_app() -> Litestar:
    """Builds the application with all of its routes, to generate documentation; it is never run."""
    described = Store(url=Secret("sqlite:///penstock.db"), master_key=Secret(base64.b64encode(bytes(32)).decode()))
    return create_app(Settings(store=described), SnapshotChannel(Snapshot()))


def openapi_json() -> bytes:
    """Returns the OpenAPI document of the management API, the same as `/schema/openapi.json`."""
    return encode_json(whole(create_documented_app()))


def provide_singleton(part: object) -> Provide:
    """Returns a dependency that injects the same object into every route."""
    return Provide(lambda: part, use_cache=True, sync_to_thread=False)


def build_routers(names: Iterable[str]) -> list[Router]:
    """Builds the routers of the named resources; the path prefix follows from the name of the module."""
    found: list[Router] = []
    for name in names:
        routes: list[Any] = importlib.import_module(f"penstock.resources.{name}").routes
        if routes:
            found += [Router(prefix, route_handlers=routes) for prefix in resources.path_prefixes(name) or ("/",)]
    return found


def check_guards(app: Litestar) -> None:
    """Denies by default: raises `StartupError` if a route declares no guard."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            # Litestar adds the OPTIONS handlers itself; they reveal only what the OpenAPI document contains.
            itself = getattr(handler, "http_methods", None) == {"OPTIONS"}
            if not itself and not any(map(authorization.is_guard, guards)):
                message = f"the route {route.path!r} declares no guard; hint: penstock.caller has them"
                raise StartupError(message)


def render_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Renders any exception in the error envelope of the management API."""
    if isinstance(error, ReplayedResponse):
        headers = {"idempotency-replayed": "true"}
        return Response(error.body, status_code=200, media_type="application/json", headers=headers)
    if isinstance(error, PenstockError):
        status, message, code, listed = error.status, error.message, error.code, error.problems
    elif isinstance(error, HTTPException):
        found = parse_problems(error, route_parameters(cast("dict[str, Any]", request.scope).get("route_handler")))
        status = BAD_REQUEST if found else error.status_code
        code = error_code_for(status)
        listed, message = tuple(found), summarize_problems(found, error.detail)
    else:
        status, message, code, listed = INTERNAL_ERROR, "something went wrong", error_code_for(INTERNAL_ERROR), ()
    if status == INTERNAL_ERROR:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "something went wrong"
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, UnavailableError | RateLimitedError) else {}
    body = error_envelope(message, code, listed)
    if resources.uses_openai_errors(request.url.path):
        body["error"] = openai_error(message, status, listed)
    return Response(body, status_code=status, headers=headers)
