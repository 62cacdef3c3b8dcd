"""Traces: the requests with one trace id, as a tree of spans."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.errors import NotFoundError
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.filters import WORKSPACE_WORDS
from penstock.log_api.service import LogService
from penstock.log_api.visibility import open_log_access
from penstock.logs.query import TraceQuery

MAX_TRACE_ID_CHARS = 512


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a trace."""

    trace_id: Annotated[str, Meta(description="its trace id")]
    total: Annotated[int, Meta(description="number of requests in `data`, including all descendants; at most 1,000")]
    has_more: Annotated[bool, Meta(description="true if the trace has more requests")]
    data: Annotated[
        list[dict[str, Any]],
        Meta(
            description="requests without a known parent span, oldest first; each has the fields of `GET /v1/logs`, its `attempts` and routing `decisions`, and in `children` the requests whose `parent_span_id` is its `span_id`"
        ),
    ]
    object: Annotated[str, Meta(description="`trace`")] = "trace"


@get("/{trace_id:path}", guards=[require_scopes("logs.list")], summary="Get trace", tags=["Logs"])
async def get_trace(
    trace_id: Annotated[str, PathParameter(max_length=MAX_TRACE_ID_CHARS + 1, description="trace id")],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    workspace_slug: Annotated[str | None, QueryParameter(description=WORKSPACE_WORDS)] = None,
) -> Trace:
    """Returns the requests of a trace as a tree of spans, from all workspaces that are open to the caller."""
    # Clients choose the id, so it may contain slashes. A path parameter starts with one.
    trace_id = trace_id.removeprefix("/")
    access = await open_log_access(context, workspace_slug, "metadata")
    query = TraceQuery(
        organisation_id=access.organisation_id,
        trace_id=trace_id,
        workspace_ids=access.workspace_ids,
        restricted_to=access.restriction,
    )
    result = await log_service.run(query)
    if not result["total"]:
        raise NotFoundError(f"there is no request with the trace id {trace_id[:80]!r} here")
    return msgspec.convert(result, Trace)


routes = [get_trace]
