"""Application factory of the control process. Connects settings, jobs and resources."""

from __future__ import annotations

import asyncio
import base64
import importlib
import logging
import os
import signal
from contextlib import asynccontextmanager
from copy import copy
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from litestar import Litestar, Request, Response, Router
from litestar import route as answers
from litestar.datastructures import State
from litestar.di import Provide
from litestar.enums import HttpMethod
from litestar.exceptions import HTTPException
from litestar.plugins.core import MsgspecDIPlugin
from litestar.serialization import encode_json
from litestar.utils import join_paths

from penstock import authorization, resources
from penstock.authorization import find_credential
from penstock.errors import (
    NotFoundError,
    PenstockError,
    RateLimitedError,
    ReplayedResponse,
    StartupError,
    UnauthorisedError,
    UnavailableError,
    error_code_for,
    error_envelope,
    openai_error,
)
from penstock.forwarded import TrustedProxies
from penstock.job_loop import run_with_restarts, stop_jobs
from penstock.kit.client_format import client_error_fields, detect_client_format
from penstock.kit.client_ip import IDENTITY_PATH
from penstock.kit.compat import CompatRequest
from penstock.kit.json_response import JsonResponse
from penstock.kit.log_service import LogService
from penstock.kit.metrics_report import MetricsReport
from penstock.kit.openapi import build_openapi as whole
from penstock.kit.request_id import add_request_id, request_id
from penstock.kit.text_validation import check_request_text
from penstock.kit.validation_errors import NO_BODY, parse_problems, route_parameters, summarize_problems
from penstock.logs.client import LogClient
from penstock.logs.spool_writer import CONTROL_WRITER, SpoolWriter
from penstock.logs.spooled_records import SpooledRecords
from penstock.metrics import BatchMetrics, JobMetrics, MetricsStore, RefusalCounter
from penstock.node_store import NodeStore
from penstock.pricing.price_book import PriceBook
from penstock.resources import schema
from penstock.settings import Settings
from penstock.settings.secret import Secret
from penstock.settings.store import Store
from penstock.snapshot.build import EMPTY_STORE_DATA, Snapshot, SnapshotChannel
from penstock.snapshot.file_watcher import ConfigFileWatcher

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from litestar.handlers import HTTPRouteHandler
    from litestar.plugins import PluginProtocol
    from litestar.types import Message, Method, Scope

    from penstock.blobs.store import BlobStore
    from penstock.kit.refusals import RefusalLog
    from penstock.kit.tenant_session import Services
    from penstock.snapshot.publisher import SnapshotPublisher
    from penstock.snapshot.redis_notifier import RedisNotifier
    from penstock.store.database import Database

log = logging.getLogger("penstock")

NO_CONTENT, BAD_REQUEST, METHOD_NOT_ALLOWED, INTERNAL_ERROR = 204, 400, 405, 500
REFUSAL_STATUSES = frozenset({401, 403})
HTTP_METHODS: list[Method] = ["GET", "POST", "PUT", "PATCH", "DELETE"]


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


def create_app(
    settings: Settings,
    published: SnapshotChannel,
    log_service: LogService | None = None,
    metrics_socket: socket.socket | None = None,
    registered: Application | None = None,
) -> Application:
    """Builds the application; jobs start with its lifespan. Routes read logs from `log_service`. Metrics are served on
    `metrics_socket` too. `registered` is an earlier application whose routes tests use again; it gets the new services.
    """
    is_durable = settings.records.durability == "power"
    spool = SpoolWriter(settings.spool_folder, CONTROL_WRITER, os.uname().nodename, is_durable=is_durable)
    log_client = LogClient(settings.log_socket if settings.records.enabled else "")
    if log_service is None:
        log_service = create_log_service(settings, log_client, spool)
    batch_figures, job_figures, refusals = BatchMetrics(), JobMetrics(), RefusalCounter()
    workers = MetricsStore()
    report = MetricsReport(
        workers,
        log_client,
        published.running.values_by_name,
        batch_figures.values_by_name,
        job_figures.values_by_name,
        refusals.values_by_name,
    )
    services: dict[str, object] = {
        "settings": settings,
        "published": published,
        "figures": workers,
        "metrics_report": report,
        "notes": NodeStore(),
        "log_client": log_client,
        "prices": PriceBook(settings),
    }
    url = settings.store_url
    own_records = SpooledRecords(spool)
    store = (
        open_store(settings, published, url, (batch_figures, job_figures), own_records, refusals, log_service)
        if url
        else None
    )

    @asynccontextmanager
    async def run_jobs() -> AsyncGenerator[None]:
        watcher = ConfigFileWatcher(settings, published)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, watcher.request_reload)
        loops = [*([watcher.run] if settings.file else []), *(store.job_loops if store else [])]
        if metrics_socket:
            from penstock.jobs.metrics_server import MetricsServer

            paths = resources.path_prefixes("metrics")
            loops.append(MetricsServer(metrics_socket, paths, report, settings.metrics.token).run)
        running = [loop.create_task(run_with_restarts(job, job_figures)) for job in loops]
        try:
            yield
        finally:
            published.close()
            await stop_jobs(running)
            if store:
                await store.blobs.close()
                await store.database.close()
            spool.close()
            await log_client.close()

    state = State(
        {
            "identify": store.authenticate if store else None,
            "services": store.services if store else None,
            "refusals": store.refusals if store else None,
            "proxies": TrustedProxies(settings.security.trusted_proxies),
            "header_aliases": settings.security.header_aliases,
            "public_url": settings.server.public_url,
            "key_headers": [f"{prefix}api-key" for prefix in ("x-gateway-", *settings.security.header_aliases)],
        }
    )
    parts = ApplicationParts(services | (store.dependencies if store else {}), store, run_jobs, state)
    app = registered or register_routes(parts)
    app.connect(parts)
    return app


def register_routes(parts: ApplicationParts) -> Application:
    """Builds an application with the routes that `parts` can serve."""
    dependencies = {name: provide_part(name) for name in parts.services}
    if parts.store:
        from penstock.kit.route_parameters import read_page_request

        dependencies["context"] = Provide(create_context, sync_to_thread=False)
        dependencies["page"] = Provide(read_page_request, sync_to_thread=False)
    app = Application(
        route_handlers=[build_router(resources.module_names())]
        if parts.store
        else [build_router(resources.STORELESS_MODULES), *storeless_routers()],
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
    check_guards(app)
    return app


def create_context(request: Request[Any, Any, Any]) -> object:
    """Creates the context of a request that uses the store."""
    store = cast("StoreComponents", parts_of(request.app).store)
    return store.services.create_context(request)


def parts_of(app: Litestar) -> ApplicationParts:
    """Returns the services, the store and the jobs of an application."""
    return cast("Application", app).parts


@asynccontextmanager
async def run_jobs(app: Litestar) -> AsyncGenerator[None]:
    """Runs the jobs of the application."""
    async with parts_of(app).run_jobs():
        yield


async def before_send_with_store(message: Message, scope: Scope) -> None:
    """Calls the store's hook for outgoing messages, if there is a store."""
    if store := parts_of(scope["litestar_app"]).store:
        await store.before_send(message, scope)


def create_log_service(settings: Settings, client: LogClient, spool: SpoolWriter) -> LogService:
    """Returns the service through which routes read logs. Without a log store, the routes report that it is disabled."""
    if not (settings.records.enabled and settings.log_store.enabled):
        return LogService()
    # Each node with an embedded log store sees its own records only.
    is_shared = settings.store_url is not None and settings.store_url.reveal().startswith("postgresql")
    return LogService(
        client,
        spool,
        settings.log_store.format,
        keeps_bodies=settings.records.bodies,
        is_partial=is_shared and settings.log_store.clickhouse_url is None,
    )


def create_log_parts(
    settings: Settings, database: Database, blobs: BlobStore, log_service: LogService
) -> dict[str, Any]:
    """Returns the services of the log routes that also need the store."""
    from penstock.jobs.log_exports import LogExporter
    from penstock.kit.custom_logs import CustomLogWriter
    from penstock.pricing.cost_calculator import CostCalculator

    calculator = CostCalculator(settings)
    return {
        "log_service": log_service,
        "log_exporter": LogExporter(settings, database, blobs, log_service),
        "custom_logs": CustomLogWriter(settings, calculator),
        "cost_calculator": calculator,
    }


class StoreComponents(NamedTuple):
    """Components that need the store: authentication, tenant sessions, and background jobs."""

    database: Database
    blobs: BlobStore
    services: Services
    refusals: RefusalLog
    authenticate: Callable[[authorization.PresentedCredential], Awaitable[authorization.Caller]]
    dependencies: dict[str, object]
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


def open_store(  # noqa: PLR0913, PLR0917 - the parts that it connects
    settings: Settings,
    published: SnapshotChannel,
    url: Secret,
    figures: tuple[BatchMetrics, JobMetrics],
    records: SpooledRecords,
    refused: RefusalCounter,
    log_service: LogService,
) -> StoreComponents:
    """Builds the components that need the store. Their modules are imported only here, so a gateway without a store
    never loads them.
    """
    from penstock.batches.runner import BatchRunner
    from penstock.blobs.store import open_blob_store
    from penstock.jobs.prepare import load_token_verifier
    from penstock.jobs.rotate import KeyRotator
    from penstock.kit.authentication import CallerAuthenticator
    from penstock.kit.passwords import PasswordService
    from penstock.kit.preconditions import before_send
    from penstock.kit.refusals import RefusalLog
    from penstock.kit.tenant_session import Services
    from penstock.resources._last_known import find_caller
    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import Vault, load_master_keys
    from penstock.snapshot.publisher import SavedSnapshot, SnapshotPublisher
    from penstock.store.database import Database

    database = Database(settings.store, url)
    key = load_master_keys(settings)
    vault, saved_snapshot = Vault(key), SavedSnapshot(settings, key)
    # The saved rows are used until the store is read for the first time. A snapshot without them would reject every
    # stored key.
    published.stored = saved_snapshot.load() or EMPTY_STORE_DATA
    tokens = load_token_verifier(settings, saved_snapshot)
    identities = CallerAuthenticator(database, tokens, lambda digest: find_caller(published.stored, digest))
    secrets = SecretCache(settings)
    publisher = SnapshotPublisher(settings, published, database, vault, secrets, saved_snapshot, tokens)
    announcer = _create_redis_notifier(settings, publisher.notify)
    notifier = ChangeNotifier(publisher, announcer)
    services = Services(settings, database, vault, identities, notifier)
    blobs = open_blob_store(settings)
    runner = BatchRunner(settings, services, secrets, blobs, figures[0], records)
    log_parts = create_log_parts(settings, database, blobs, log_service)
    dependencies: dict[str, object] = {
        "services": services,
        "identities": identities,
        "passwords": PasswordService(),
        "blobs": blobs,
        "runner": runner,
        **log_parts,
    }
    refusals = RefusalLog(database, refused)
    loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
        publisher.run,
        KeyRotator(services).run,
        runner.run,
        log_parts["log_exporter"].run,
        refusals.run,
        *_ledger_jobs(settings, services, figures[1]),
    ]
    if announcer:
        loops.append(announcer.run)
    if tokens:
        from penstock.jobs.jwks import JwksRefresher

        loops.append(JwksRefresher(tokens, settings.jwt.refresh_seconds, publisher.notify).run)
    return StoreComponents(
        database,
        blobs,
        services,
        refusals,
        identities.authenticate,
        dependencies,
        loops,
        partial(before_send, services),
    )


def _ledger_jobs(
    settings: Settings, services: Services, figures: JobMetrics
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Returns the job that sums the usage of budgets from records; none if records are disabled."""
    if not settings.records.enabled:
        return []
    from penstock.jobs.usage_ledger import UsageLedger

    return [UsageLedger(settings, services, figures).run]


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


@cache
def openapi_json() -> bytes:
    """Returns the OpenAPI document of the management API, the same as `/schema/openapi.json`."""
    return encode_json(whole(create_documented_app()))


def provide_part(name: str) -> Provide:
    """Returns a dependency that injects a service into routes."""

    def find_part(request: Request[Any, Any, Any]) -> object:
        return parts_of(request.app).services[name]

    return Provide(find_part, sync_to_thread=False)


def build_router(names: Iterable[str]) -> Router:
    """Builds the router of the named resources. The name of a resource's module determines its path prefixes.

    One router for all prefixes is registered much faster than one router for each. A handler that serves several paths
    needs memory only once.
    """
    placed: list[Any] = []
    paths: list[str] = []
    for name in names:
        routes: list[Any] = importlib.import_module(f"penstock.resources.{name}").routes
        prefixes = resources.path_prefixes(name)
        placed += [_place_handler(handler, prefixes) for handler in routes] if prefixes else routes
        paths += [
            join_paths([prefix, path]) for prefix in prefixes for handler in routes for path in sorted(handler.paths)
        ]
    own_options = copy(list_methods)
    own_options.paths = set(paths)
    router = Router("/", route_handlers=[own_options, *placed])
    # Sorted for a stable OpenAPI document: it takes the description of a type from the first route that has the type.
    # The paths of a handler are a set, which has no order.
    positions = {path: position for position, path in enumerate(dict.fromkeys(paths))}
    router.routes.sort(key=lambda route: positions.get(route.path, len(positions)))
    return router


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


def _place_handler(handler: HTTPRouteHandler, prefixes: Iterable[str]) -> HTTPRouteHandler:
    """Returns a copy of a handler that serves its paths below each of the prefixes."""
    placed = copy(handler)
    placed.paths = {join_paths([prefix, path]) for prefix in prefixes for path in handler.paths}
    return placed


async def begin_request(request: Request[Any, Any, Any]) -> None:
    """Assigns the request id, and rejects NUL characters in the path, the query and the body."""
    request_id(request.scope)
    await check_request_text(request)


def check_guards(app: Litestar) -> None:
    """Denies by default: raises `StartupError` if a route declares no guard."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            # OPTIONS handlers need no guard: they reveal only what the OpenAPI document contains.
            itself = getattr(handler, "http_methods", None) == {"OPTIONS"}
            if not itself and not any(map(authorization.is_guard, guards)):
                message = f"the route {route.path!r} declares no guard; hint: penstock.authorization has them"
                raise StartupError(message)


def find_allowed_methods(app: Litestar, method: str, path: str) -> tuple[list[str], str]:
    """Returns the methods that a path has, and a hint that names a longer path with the requested method."""
    parts = [part for part in path.split("/") if part]
    allowed: set[str] = set()
    longer: list[str] = []
    for route in app.routes:
        own = [part for part in route.path_format.split("/") if part]
        methods = {name for handler in getattr(route, "route_handlers", ()) for name in handler.http_methods}
        is_same = all(item.startswith("{") or item == other for item, other in zip(own, parts, strict=False))
        if is_same and len(own) == len(parts):
            allowed |= methods
        elif is_same and len(own) > len(parts) and method in methods:
            longer.append(route.path_format)
    # The hint prefers paths that end in a parameter, such as an id. A path that ends in a word is an action on an
    # object.
    longer.sort(key=lambda item: (not item.endswith("}"), len(item)))
    hint = f"; hint: {method} {longer[0]}" if longer else ""
    return sorted(allowed), hint


def is_audited_refusal(path: str, status: int) -> bool:
    """Returns true if the audit log records a request that was answered with this status: a refusal, or a sign-in that
    was throttled.
    """
    # At `IDENTITY_PATH` the engine authenticates a client before it reads a large body. Clients cannot call the other
    # internal paths.
    is_clients = not path.startswith("/internal/") or path == IDENTITY_PATH
    is_throttled_sign_in = status == RateLimitedError.status and path.startswith("/v1/auth/")
    return (status in REFUSAL_STATUSES or is_throttled_sign_in) and is_clients


def _asks_who_is_signed_in(request: Request[Any, Any, Any]) -> bool:
    """Returns true for `GET …/auth/self` without a credential. Each visit of the sign-in page sends this request, so
    its refusal is not audited.
    """
    if request.method != "GET" or not request.url.path.endswith("/auth/self"):
        return False
    try:
        return find_credential(request) is None
    except UnauthorisedError:
        return False


def render_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Renders any exception in the error envelope of the management API."""
    if isinstance(error, ReplayedResponse):
        headers = {"idempotency-replayed": "true"}
        return Response(error.body, status_code=200, media_type="application/json", headers=headers)
    if isinstance(error, PenstockError):
        status, message, code, listed = error.status, error.message, error.code, error.problems
    elif isinstance(error, HTTPException):
        scope = cast("dict[str, Any]", request.scope)
        used = route_parameters(scope.get("route_handler"))
        problems = parse_problems(error, request, used, scope["state"].get("body", NO_BODY))
        status = BAD_REQUEST if problems else error.status_code
        code = error_code_for(status)
        listed, message = tuple(problems), summarize_problems(problems, error.detail)
    elif isinstance(error, RecursionError):
        # The parser reached its recursion limit: a document in the request is nested too deeply.
        status, message, code, listed = BAD_REQUEST, "the request nests too deep", error_code_for(BAD_REQUEST), ()
    else:
        status, message, code, listed = INTERNAL_ERROR, "something went wrong", error_code_for(INTERNAL_ERROR), ()
    if status == INTERNAL_ERROR:
        log.error("%s %s failed, id=%s", request.method, request.url.path, request_id(request.scope), exc_info=error)
        message = "something went wrong"
    refusals: RefusalLog | None = request.app.state.get("refusals")
    if refusals and is_audited_refusal(request.url.path, status) and not _asks_who_is_signed_in(request):
        refusals.add(request, status)
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, UnavailableError | RateLimitedError) else {}
    if status == METHOD_NOT_ALLOWED:
        allowed, hint = find_allowed_methods(request.app, request.method, request.url.path)
        headers["allow"] = ", ".join(allowed)
        message = f"{request.method} is not allowed at this path; allowed: {', '.join(allowed)}{hint}"
    body = error_envelope(message, code, listed)
    if any(resources.is_path_of(name, request.url.path) for name in ("guardrails", "execute_guardrails")):
        # The documented envelope of these routes, for clients that read the error there.
        body["error"] = {**openai_error(message, status, listed), "code": code}
    if resources.uses_client_errors(request.url.path):
        client = detect_client_format(request.scope["headers"])
        body |= client_error_fields(client, message, status, listed, request_id(request.scope))
    return Response(body, status_code=status, headers=headers)
