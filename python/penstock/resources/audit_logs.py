"""The audit log: who changed what and when. Only keys of the organisation can read it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.kit import numbered_pages
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.route_parameters import (
    CamelPageNumber,
    PageNumber,
    SortField,
    SortOrder,
    WorkspaceFilter,
    read_page_request,
)
from penstock.kit.tenant_session import RequestContext
from penstock.schemas import format_required_timestamp, row_to_struct, to_milliseconds
from penstock.store.tables import audit_log, audited_requests, workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

PageSizeParam = Annotated[
    int | None,
    QueryParameter(
        name="page_size", ge=0, le=100, description="entries per page; default 100; 0 returns only the total"
    ),
]
CamelPageSizeParam = Annotated[
    int | None, QueryParameter(name="pageSize", ge=0, le=100, description="alias of page_size")
]


class AuditLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change in the audit log."""

    timestamp: Annotated[str, Meta(description="when, ISO 8601")]
    method: Annotated[str, Meta(description="HTTP method of the request")]
    uri: Annotated[str, Meta(description="path of the request")]
    query_params: Annotated[str, Meta(description="query string of the request")]
    request_id: Annotated[str, Meta(description="id of the request")]
    request_body: Annotated[
        str, Meta(description="the JSON request body as a string of at most 64 KiB, without credentials")
    ]
    request_headers: Annotated[
        str, Meta(description="header fields as a JSON string; of fields that may hold a credential only the name")
    ]
    user_id: Annotated[str | None, Meta(description="id of the user, or of the key that acts for a service")]
    user_type: Annotated[
        str, Meta(description="`user`, `api_key`, or `anonymous` for a refused request without a valid credential")
    ]
    key_id: Annotated[str | None, Meta(description="id of the API key of the request; null for sessions and tokens")]
    key_name: Annotated[str | None, Meta(description="name of that key at the time of the request")]
    key_made_by: Annotated[
        str | None,
        Meta(description="id of the user or key that the key was handed out to, at its creation or rotation"),
    ]
    organisation_id: Annotated[str, Meta(description="id of the organisation")]
    workspace_id: Annotated[str | None, Meta(description="id of the workspace")]
    resource_type: Annotated[str, Meta(description="type of the changed resource, as its scopes name it")]
    resource_id: Annotated[str | None, Meta(description="id of the changed resource")]
    action: Annotated[
        str,
        Meta(
            description="`create`, `update`, `delete` or `rotate`; `refuse` for a request that was answered with 401 or 403"
        ),
    ]
    response_status_code: Annotated[int, Meta(description="status code of the response")]
    client_ip: Annotated[str, Meta(description="IP address of the client")]
    country: Annotated[str, Meta(description="always empty: addresses are not resolved to countries")] = ""
    before: Annotated[dict[str, Any] | None, Meta(description="state before the change, without credentials")]
    after: Annotated[dict[str, Any] | None, Meta(description="state after the change, without credentials")]


class AuditLogList(msgspec.Struct, frozen=True):
    """One page of the audit log, newest first."""

    records: Annotated[list[AuditLogEntry], Meta(description="changes")]
    total: Annotated[int, Meta(description="number of entries on all pages")]
    object: Annotated[str, Meta(description="`analytics-graph`")] = "analytics-graph"


StartTimeParam = Annotated[
    datetime | None,
    QueryParameter(description="start of the time span, inclusive, ISO 8601; default: the first entry"),
]
EndTimeParam = Annotated[
    datetime | None, QueryParameter(description="end of the time span, inclusive, ISO 8601; default: now")
]
OrganisationParam = Annotated[
    str | None, QueryParameter(description="id of the organisation; default: the caller's own, and no other is allowed")
]
ExactMatchParam = Annotated[str | None, QueryParameter(description="only entries with exactly this value")]
MethodParam = Annotated[
    Literal["GET", "POST", "PUT", "DELETE"] | None, QueryParameter(description="only requests with this method")
]
UserTypeParam = Annotated[
    Literal["user", "api_key", "anonymous"] | None,
    QueryParameter(description="only requests of users, of services, or without a valid credential"),
]
StatusParam = Annotated[int | None, QueryParameter(ge=100, le=599, description="only responses with this status code")]


def provide_page(  # noqa: PLR0913, PLR0917 - the parameters of all lists
    context: NamedDependency[RequestContext],
    page_size: PageSizeParam = None,
    current_page: PageNumber = None,
    camel_size: CamelPageSizeParam = None,
    camel_number: CamelPageNumber = None,
    sort: SortField = "created_at",
    order: SortOrder = "desc",
) -> PageRequest:
    """Reads the paging parameters, as for all lists. A page size of 0 returns only the total."""
    return read_page_request(context, page_size, current_page, camel_size, camel_number, sort, order)


@get(
    "/",
    guards=[require_scopes("audit_logs.list")],
    summary="List audit logs",
    tags=["Audit Logs"],
    dependencies={"page": Provide(provide_page, sync_to_thread=False)},
)
async def list_entries(  # noqa: PLR0913, PLR0917 - one parameter for each filter
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    start_time: StartTimeParam = None,
    end_time: EndTimeParam = None,
    organisation_id: OrganisationParam = None,
    method: MethodParam = None,
    uri: ExactMatchParam = None,
    request_id: ExactMatchParam = None,
    user_id: ExactMatchParam = None,
    user_type: UserTypeParam = None,
    workspace_id: WorkspaceFilter = None,
    response_status_code: StatusParam = None,
    resource_type: ExactMatchParam = None,
    action: ExactMatchParam = None,
    client_ip: ExactMatchParam = None,
    country: ExactMatchParam = None,
) -> AuditLogList:
    """Lists the changes within a time span, and requests that were refused with 401 or 403. Of the latter, the newest
    thousand of callers and the newest thousand without a valid credential are stored.
    """
    context.caller.check_organisation(organisation_id)
    conditions = numbered_pages.equality_conditions(
        audit_log,
        method=method,
        uri=uri,
        request_id=request_id,
        user_id=user_id,
        user_type=user_type,
        response_status_code=response_status_code,
        resource_type=resource_type,
        action=action,
        client_ip=client_ip,
    )
    conditions += [audit_log.c.created_at >= to_milliseconds(start_time)] if start_time else []
    conditions += [audit_log.c.created_at <= to_milliseconds(end_time)] if end_time else []
    async with context.read_session() as session:
        if workspace_id is not None:
            # Accepts a slug or an id. The id may be that of a deleted workspace.
            workspace = await session.find(workspaces, workspace_id)
            conditions.append(audit_log.c.workspace_id == (workspace["id"] if workspace else workspace_id))
        total, rows = (0, []) if country else await numbered_pages.fetch_page(session, audit_log, page, conditions)
        sent = await session.organisation().find_all(
            audited_requests, {row["audited_request_id"] for row in rows if row["audited_request_id"]}
        )
        return AuditLogList([_to_entry(row, sent.get(row["audited_request_id"])) for row in rows], total)


def _to_entry(row: Row, sent: Row | None) -> AuditLogEntry:
    if sent is None:
        # There is no request body: a scheduled job made the change, or an older release did not store bodies.
        body = msgspec.json.encode(row["after"]).decode() if row["after"] else ""
        sent = {"request_body": body, "request_headers": ""}
    request_fields = {name: sent[name] for name in ("request_body", "request_headers")}
    return row_to_struct(AuditLogEntry, row, timestamp=format_required_timestamp(row["created_at"]), **request_fields)


routes = [list_entries]
