"""create_app(): wires settings, jobs and resources into the control process's application."""

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
    MissingError,
    PenstockError,
    Replayed,
    StartError,
    TooManyError,
    UnavailableError,
    code_for,
    envelope,
    in_openais_shape,
)
from penstock.job_loop import ended, kept_up
from penstock.kit.client_ip import Proxies
from penstock.kit.compat import SpelledRequest
from penstock.kit.json_response import Answer
from penstock.kit.openapi import complete as whole
from penstock.kit.text_validation import refuse_unfit
from penstock.kit.validation_errors import problems, summary, takes
from penstock.metrics import BatchFigures, Figures, JobFigures
from penstock.node_store import Notes
from penstock.pricing.price_book import PriceBook
from penstock.records import RecordFeed
from penstock.resources import schema
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.build import NOTHING, Published, Snapshot
from penstock.snapshot.file_watcher import Watcher

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable

    from litestar.plugins import PluginProtocol
    from litestar.types import Message, Method, Scope

    from penstock.kit.tenant_session import Office
    from penstock.snapshot.publisher import Publisher
    from penstock.snapshot.redis_notifier import Announcer
    from penstock.store.database import Database

log = logging.getLogger("penstock")

BAD_REQUEST, INTERNAL_ERROR = 400, 500
METHODS: list[Method] = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Application(Litestar):
    """Litestar with the plugins that it needs here."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        # The others are for pydantic and attrs: nobody declares a body with those here, and loading them takes 9 MB.
        return [*plugins, MsgspecDIPlugin()]


def create_app(settings: Settings, published: Published, record_socket: socket.socket | None = None) -> Litestar:
    """Build the application; nothing runs before its lifespan starts. Records are taken from the socket."""
    records = RecordFeed(settings.records)
    batch_figures, job_figures = BatchFigures(), JobFigures()
    parts = {
        "settings": settings,
        "published": published,
        "figures": Figures(),
        "notes": Notes(),
        "batch_figures": batch_figures,
        "job_figures": job_figures,
        "records": records,
        "prices": PriceBook(settings),
    }
    url = settings.store_url
    store = open_store(settings, published, url, batch_figures, records) if url else None

    @asynccontextmanager
    async def jobs(_app: Litestar) -> AsyncGenerator[None]:
        watcher = Watcher(settings, published)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, watcher.ask)
        close_records = records.listen(record_socket, loop) if record_socket else records.close
        loops = [*([watcher.run] if settings.file else []), *(store.loops if store else [])]
        running = [loop.create_task(kept_up(work, job_figures)) for work in loops]
        try:
            yield
        finally:
            published.close()
            await ended(running)
            if store:
                await store.database.close()
            close_records()

    app = Application(
        route_handlers=routers(resources.names()) if store else [*routers(resources.STORELESS), *closed()],
        dependencies={name: provide(part) for name, part in parts.items()} | (store.dependencies if store else {}),
        exception_handlers={Exception: answer},
        request_class=SpelledRequest,
        response_class=Answer,
        openapi_config=schema.description(),
        lifespan=[jobs],
        before_request=refuse_unfit,
        before_send=[store.before_send] if store else [],
        logging_config=None,
        state=State(
            {
                "identify": store.identify if store else None,
                "office": store.office if store else None,
                "proxies": Proxies(settings.security.trusted_proxies),
                "header_aliases": settings.security.header_aliases,
                "key_headers": [f"{prefix}api-key" for prefix in ("x-gateway-", *settings.security.header_aliases)],
            }
        ),
    )
    refuse_unguarded(app)
    return app


class StoreParts(NamedTuple):
    """What stands on the store: who is calling, the way to a desk, and what goes on beside it."""

    database: Database
    office: Office
    identify: Callable[[authorization.Sent], Awaitable[authorization.Caller]]
    dependencies: dict[str, Provide]
    loops: list[Callable[[], Coroutine[Any, Any, None]]]
    before_send: Callable[[Message, Scope], Awaitable[None]]


class News(NamedTuple):
    """Who is told of a change: this node's publisher, and the other nodes."""

    publisher: Publisher
    announcer: Announcer | None

    def ring(self) -> None:
        """Say that there is one."""
        self.publisher.ring()
        if self.announcer:
            self.announcer.tell()

    async def known(self, number: int) -> None:
        """Wait, but not for ever, until each worker of this node goes by it."""
        await self.publisher.known(number)


def open_store(
    settings: Settings, published: Published, url: Secret, batch_figures: BatchFigures, records: RecordFeed
) -> StoreParts:
    """Wire what stands on the store; nothing of it is imported where there is none."""
    from penstock.batches.runner import Runner
    from penstock.blobs.folder import Folder
    from penstock.jobs.prepare import known_tokens
    from penstock.jobs.rotate import Rotator
    from penstock.kit import listing
    from penstock.kit.authentication import Identities
    from penstock.kit.passwords import Passwords
    from penstock.kit.preconditions import before_send
    from penstock.kit.tenant_session import Office
    from penstock.resources._last_known import caller_of
    from penstock.secrets.references import Secrets
    from penstock.secrets.vault import Vault, master
    from penstock.snapshot.publisher import KeptRows, Publisher
    from penstock.store.database import Database

    database = Database(settings.store, url)
    key = master(settings)
    vault, kept = Vault(key), KeptRows(settings, key)
    # Until the store was read: a file that is gathered without its rows would close the gateway to every key in it.
    published.stored = kept.last() or NOTHING
    tokens = known_tokens(settings, kept)
    identities = Identities(database, tokens, lambda digest: caller_of(published.stored, digest))
    secrets = Secrets(settings)
    publisher = Publisher(settings, published, database, vault, secrets, kept, tokens)
    announcer = _announcer(settings, publisher.ring)
    news = News(publisher, announcer)
    office = Office(settings, database, vault, identities, news)
    blobs = Folder(settings.files_folder)
    runner = Runner(settings, office, secrets, blobs, batch_figures, records)
    shared = {
        "office": office,
        "identities": identities,
        "passwords": Passwords(),
        "blobs": blobs,
        "runner": runner,
    }
    dependencies = {
        "work": Provide(office.work, sync_to_thread=False),
        "page": Provide(listing.page, sync_to_thread=False),
        **{name: provide(part) for name, part in shared.items()},
    }
    loops: list[Callable[[], Coroutine[Any, Any, None]]] = [publisher.run, Rotator(office).run, runner.run]
    if announcer:
        loops.append(announcer.run)
    if tokens:
        from penstock.jobs.jwks import Follower

        loops.append(Follower(tokens, settings.jwt.refresh_seconds, publisher.ring).run)
    return StoreParts(database, office, identities.of, dependencies, loops, partial(before_send, office))


def _announcer(settings: Settings, heard: Callable[[], None]) -> Announcer | None:
    if not settings.redis.url:
        return None
    from penstock.snapshot.redis_notifier import Announcer

    return Announcer(settings.redis, settings.redis.url.reveal(), heard, settings.upstream.tls_ca)


def closed() -> list[Router]:
    """Answer for what stands on the store where there is none: it never goes to a provider instead."""

    @answers(["/", "/{rest:path}"], http_method=METHODS, guards=[authorization.anyone], include_in_schema=False)
    async def no_store() -> None:
        message = "no store is configured; hint: penstock init, or PENSTOCK_STORE_URL"
        raise MissingError(message)

    names = [name for name in resources.names() if name not in resources.STORELESS]
    return [Router(prefix, route_handlers=[no_store]) for name in names for prefix in resources.prefixes(name)]


def complete() -> Litestar:
    """Build the application with everything that it can serve, to be looked at rather than run."""
    described = Store(url=Secret("sqlite:///penstock.db"), master_key=Secret(base64.b64encode(bytes(32)).decode()))
    return create_app(Settings(store=described), Published(Snapshot()))


def describe() -> bytes:
    """Give the description of the management API, as `/schema/openapi.json` does."""
    return encode_json(whole(complete()))


def provide(part: object) -> Provide:
    """Hand the same part to every route that asks for it by name."""
    return Provide(lambda: part, use_cache=True, sync_to_thread=False)


def routers(names: Iterable[str]) -> list[Router]:
    """Put each resource below the path that its file name says."""
    found: list[Router] = []
    for name in names:
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
            if not itself and not any(map(authorization.is_guard, guards)):
                message = f"the route {route.path!r} declares no guard; hint: penstock.caller has them"
                raise StartError(message)


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer with the envelope of the management API, whatever went wrong."""
    if isinstance(error, Replayed):
        headers = {"idempotency-replayed": "true"}
        return Response(error.body, status_code=200, media_type="application/json", headers=headers)
    if isinstance(error, PenstockError):
        status, message, code, listed = error.status, error.message, error.code, error.problems
    elif isinstance(error, HTTPException):
        found = problems(error, takes(cast("dict[str, Any]", request.scope).get("route_handler")))
        status = BAD_REQUEST if found else error.status_code
        code = code_for(status)
        listed, message = tuple(found), summary(found, error.detail)
    else:
        status, message, code, listed = INTERNAL_ERROR, "something went wrong", code_for(INTERNAL_ERROR), ()
    if status == INTERNAL_ERROR:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "something went wrong"
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, UnavailableError | TooManyError) else {}
    said = envelope(message, code, listed)
    if resources.speaks_openai(request.url.path):
        said["error"] = in_openais_shape(message, status, listed)
    return Response(said, status_code=status, headers=headers)
