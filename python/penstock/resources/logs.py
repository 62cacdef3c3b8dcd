"""Request logs: list and search, one log with its contents, a live stream, and logs that clients send themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, Meta
from sqlalchemy import select

from penstock.authorization import require_scopes
from penstock.errors import NotFoundError, PenstockError, UnavailableError
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.custom_logs import CustomLog, CustomLogWriter, find_log_origin
from penstock.log_api.filters import WORKSPACE_WORDS, RequestedFilters, read_log_filters
from penstock.log_api.records import SHOWN_COLUMN_NAMES, Log, LogRecord, to_log, to_new_record
from penstock.log_api.service import LogService, list_items
from penstock.log_api.visibility import VIEW_SCOPES, open_log_access
from penstock.logs import messages
from penstock.logs.query import MAX_PAGE_SIZE, MAX_SEARCH_CHARS, GetQuery, ListQuery
from penstock.resources._analytics_graphs import Partial
from penstock.resources._log_groups import GROUP_PATHS, group_route
from penstock.store.tables import organisations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from penstock.log_api.visibility import LogAccess

TAGS = ["Logs"]
LIST_GUARD = require_scopes("logs.list")
DEFAULT_PAGE_SIZE = 50
HEARTBEAT_SECONDS = 10.0
NO_LOG_MESSAGE = "there is no log with the id {!r} here; hint: a new log is visible after about a second"

LogId = Annotated[
    str, PathParameter(max_length=64, description="id of the request: `x-gateway-request-id` of its response")
]
FILTERS = {"filters": Provide(read_log_filters, sync_to_thread=False)}


class CreatedLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that logs were saved."""

    ids: Annotated[list[str], Meta(description="ids of the logs, in the order of the request")]
    status: Annotated[str, Meta(description="`success`")] = "success"


class LogList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of logs."""

    data: Annotated[list[LogRecord], Meta(description="logs of this page")]  # pyright: ignore[reportInvalidTypeForm]
    has_more: Annotated[bool, Meta(description="true if more logs follow")]
    next_cursor: Annotated[str | None, Meta(description="`cursor` of the next page; null on the last page")]
    object: Annotated[str, Meta(description="`list`")] = "list"
    partial: Partial = UNSET


@post(
    "/",
    status_code=200,
    guards=[require_scopes("completions.write"), require_scopes("logs.write")],
    summary="Create logs",
    tags=TAGS,
)
async def create_logs(
    data: JSONBody[CustomLog | list[CustomLog]],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    custom_logs: NamedDependency[CustomLogWriter],
) -> CreatedLogs:
    """Saves logs of requests that did not go through the gateway: one, or a list of up to 1,000. The provider and the
    model decide the cost, as for requests that the gateway sends. Lists and analytics show them within about a second.
    """
    items = list_items(data)
    async with context.ingest_session() as session:
        session.require_any_scope("completions.write")
        origin = await find_log_origin(session, log_service, items)
        ids, frames = await custom_logs.encode_frames(items, origin)
        await log_service.append(frames)
    return CreatedLogs(ids=ids)


@get("/", guards=[LIST_GUARD], summary="List logs", tags=TAGS, dependencies=FILTERS)
async def list_logs(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: NamedDependency[RequestContext],
    filters: NamedDependency[RequestedFilters],
    log_service: NamedDependency[LogService],
    q: Annotated[
        str | None,
        QueryParameter(
            max_length=MAX_SEARCH_CHARS,
            description="only requests whose stored request or response contains all of these words; needs `logs.view`, too",
        ),
    ] = None,
    cursor: Annotated[str | None, QueryParameter(description="`next_cursor` of the previous page")] = None,
    page_size: Annotated[
        int, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="logs on a page; default 50")
    ] = DEFAULT_PAGE_SIZE,
    order: Annotated[Literal["asc", "desc"], QueryParameter(description="`desc`: newest first, or `asc`")] = "desc",
) -> LogList:
    """Lists and searches logs, without their requests and responses. A caller of the organisation that names no
    workspace gets those of the default workspace; `*` stands for all that are open to it.
    """
    # A search reveals which words are in the contents, so it requires the right to view contents.
    part, scopes = ("contents", VIEW_SCOPES) if q else ("metadata", ())
    access = await open_log_access(context, filters.workspace, part, only_default=True, scopes=scopes)
    log_filters = filters.within(access)
    log_filters.q = q
    query = ListQuery(
        filters=log_filters,
        columns=SHOWN_COLUMN_NAMES,
        order=order,
        cursor=cursor,
        limit=page_size,
    )
    return msgspec.convert(await log_service.run(query), LogList)


@get(
    "/tail",
    guards=[LIST_GUARD],
    summary="Stream new logs",
    tags=TAGS,
    dependencies=FILTERS,
    media_type="text/event-stream",
)
async def tail_logs(
    context: NamedDependency[RequestContext],
    filters: NamedDependency[RequestedFilters],
    log_service: NamedDependency[LogService],
) -> Stream:
    """Streams new logs of this node as server-sent events.

    `connected` comes first. `log` has the fields of the list. `dropped` has the number of omitted logs, if there were
    more than 100 per second. `heartbeat` comes every 10 seconds, and `error` ends the stream if the caller loses its
    access.
    """
    access = await open_log_access(context, filters.workspace, "metadata", only_default=True)
    tail = log_service.tail(filters.within(access))
    return Stream(
        _write_events(context, filters, access, tail),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _write_events(
    context: RequestContext, filters: RequestedFilters, access: LogAccess, tail: AsyncIterator[dict[str, Any]]
) -> AsyncIterator[bytes]:
    yield _encode_event("connected", {})
    checked_at = asyncio.get_running_loop().time()
    reading: asyncio.Future[dict[str, Any]] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(anext(tail))
            done, _ = await asyncio.wait([reading], timeout=HEARTBEAT_SECONDS)
            if asyncio.get_running_loop().time() - checked_at >= HEARTBEAT_SECONDS:
                checked_at = asyncio.get_running_loop().time()
                await context.authenticate_again()
                if await open_log_access(context, filters.workspace, "metadata", only_default=True) != access:
                    yield _encode_event("error", {"message": "the access of this caller has changed; connect again"})
                    return
                yield _encode_event("heartbeat", {})
            if done:
                event, reading = reading.result(), None
                if event := _to_event(event):
                    yield event
    except StopAsyncIteration:
        yield _encode_event("error", {"message": "the log store has closed the stream; connect again"})
    except PenstockError as error:
        yield _encode_event("error", {"message": error.message})
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if close := getattr(tail, "aclose", None):
            await close()


def _to_event(event: Mapping[str, Any]) -> bytes | None:
    """Encodes an event of the log worker as a server-sent event. Returns `None` for heartbeats."""
    if "dropped" in event:
        return _encode_event("dropped", {"count": event["dropped"]})
    return _encode_event("log", to_new_record(event["log"])) if "log" in event else None


def _encode_event(name: str, content: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))


@get(
    "/{log_id:str}",
    guards=[require_scopes("logs.view", "logs.read", "completions.write", "logs.write")],
    summary="Get log",
    tags=TAGS,
)
async def get_log(  # noqa: PLR0913, PLR0917 - services, and query parameters of clients
    log_id: LogId,
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    request: Request[Any, Any, Any],
    workspace_slug: Annotated[str | None, QueryParameter(description=WORKSPACE_WORDS)] = None,
    path_format: Annotated[
        str | None, QueryParameter(description="accepted for clients that send it; the gateway finds logs by their id")
    ] = None,
    created_at: Annotated[
        str | None, QueryParameter(description="accepted for clients that send it; the gateway finds logs by their id")
    ] = None,
) -> Log:
    """Returns one log with its request and response, as far as they are stored."""
    del path_format, created_at
    access = await open_log_access(context, workspace_slug, "contents")
    query = GetQuery(
        organisation_id=access.organisation_id,
        id=log_id,
        workspace_ids=access.workspace_ids,
        restricted_to=access.restriction,
    )
    answer = await log_service.run(query)
    if answer["record"] is None:
        raise NotFoundError(NO_LOG_MESSAGE.format(log_id[:64]))
    bodies: Mapping[str, bytes] = {}
    if answer.get("bodies"):
        try:
            record = answer["record"]
            bodies = await log_service.get_bodies(record["id"], access.organisation_id, record.get("workspace_id"))
            answer["record"]["body"] = next(
                (state for state in messages.LOST_BODIES if state in bodies), record.get("body")
            )
        except NotFoundError:
            answer["record"]["body"] = messages.EXPIRED
        except UnavailableError:
            answer["record"]["body"] = "unavailable"
    async with context.read_session(context.caller.workspace_id) as session:
        name = await session.connection.scalar(
            select(organisations.c.name).where(organisations.c.id == access.organisation_id)
        )
    prefixes = ("x-gateway-", *request.app.state["header_aliases"])
    return to_log(answer, bodies, name, prefixes, log_service.body_format)


routes = [
    create_logs,
    list_logs,
    tail_logs,
    get_log,
    *(group_route(path, require_scopes("analytics.view", "logs.list"), TAGS) for path in GROUP_PATHS),
]
