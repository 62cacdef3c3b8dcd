"""The audit log: who changed what and when, for keys of the organisation."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from msgspec import Meta

from penstock.authorization import needs
from penstock.kit import listing
from penstock.kit.listing import CamelNumber, Number, Order, Page, Sort
from penstock.kit.shared_fields import WorkspaceAsked
from penstock.kit.tenant_session import Work
from penstock.schemas import milliseconds, when, write_out
from penstock.store.tables import audit, requests, workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

Size = Annotated[
    int | None, QueryParameter(name="page_size", ge=0, le=100, description="rows on a page; default 100; 0: none")
]
CamelSize = Annotated[int | None, QueryParameter(name="pageSize", ge=0, le=100, description="the same as page_size")]


class AuditLog(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    timestamp: Annotated[str, Meta(description="when, ISO 8601")]
    method: Annotated[str, Meta(description="of the request")]
    uri: Annotated[str, Meta(description="path of the request")]
    query_params: Annotated[str, Meta(description="query of the request")]
    request_id: Annotated[str, Meta(description="id of the request")]
    request_body: Annotated[
        str, Meta(description="JSON as it was sent, in a text of at most 64 KiB, credentials left out")
    ]
    request_headers: Annotated[
        str, Meta(description="header fields as JSON in a text; where one may hold a credential, its name alone")
    ]
    user_id: Annotated[str | None, Meta(description="id of the person, or of the key that stands for a service")]
    user_type: Annotated[str, Meta(description="`user` or `api_key`")]
    organisation_id: Annotated[str, Meta(description="id of the organisation")]
    workspace_id: Annotated[str | None, Meta(description="id of the workspace")]
    resource_type: Annotated[str, Meta(description="what was changed, as its scopes name it")]
    resource_id: Annotated[str | None, Meta(description="id of what was changed")]
    action: Annotated[str, Meta(description="`create`, `update`, `delete` or `rotate`")]
    response_status_code: Annotated[int, Meta(description="status of the answer")]
    client_ip: Annotated[str, Meta(description="address of the caller")]
    country: Annotated[str, Meta(description="always empty: addresses are not looked up")] = ""
    before: Annotated[dict[str, Any] | None, Meta(description="how it was, credentials left out")]
    after: Annotated[dict[str, Any] | None, Meta(description="how it is since, credentials left out")]


class AuditLogs(msgspec.Struct, frozen=True):
    """One page of the audit log, newest first."""

    records: Annotated[list[AuditLog], Meta(description="changes")]
    total: Annotated[int, Meta(description="how many there are on all pages")]
    object: Annotated[str, Meta(description="`analytics-graph`")] = "analytics-graph"


Start = Annotated[datetime, QueryParameter(description="from this moment on, ISO 8601")]
End = Annotated[datetime, QueryParameter(description="until this moment, ISO 8601")]
OrganisationAsked = Annotated[str, QueryParameter(description="id of the organisation, which is the caller's own")]
Text = Annotated[str | None, QueryParameter(description="only rows that have exactly this")]
Method = Annotated[Literal["POST", "PUT", "DELETE"] | None, QueryParameter(description="only requests of this method")]
UserType = Annotated[Literal["user", "api_key"] | None, QueryParameter(description="only people, or only services")]
StatusAsked = Annotated[int | None, QueryParameter(ge=100, le=599, description="only answers with this status")]


def asked(  # noqa: PLR0913, PLR0917 - as of all lists
    work: NamedDependency[Work],
    page_size: Size = None,
    current_page: Number = None,
    camel_size: CamelSize = None,
    camel_number: CamelNumber = None,
    sort: Sort = "created_at",
    order: Order = "desc",
) -> Page:
    """Read which part is asked for, as of all lists; with no rows only how many there are."""
    return listing.page(work, page_size, current_page, camel_size, camel_number, sort, order)


@get(
    "/",
    guards=[needs("audit_logs.list")],
    summary="List audit logs",
    tags=["Audit Logs"],
    dependencies={"page": Provide(asked, sync_to_thread=False)},
)
async def index(  # noqa: PLR0913, PLR0917 - the filters that there are
    work: NamedDependency[Work],
    page: NamedDependency[Page],
    start_time: Start,
    end_time: End,
    organisation_id: OrganisationAsked,
    method: Method = None,
    uri: Text = None,
    request_id: Text = None,
    user_id: Text = None,
    user_type: UserType = None,
    workspace_id: WorkspaceAsked = None,
    response_status_code: StatusAsked = None,
    resource_type: Text = None,
    action: Text = None,
    client_ip: Text = None,
    country: Text = None,
) -> AuditLogs:
    """Give what was changed in a span of time."""
    work.caller.stay_in(organisation_id)
    conditions = listing.equal(
        audit,
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
    conditions += [audit.c.created_at >= milliseconds(start_time), audit.c.created_at <= milliseconds(end_time)]
    async with work.reading() as desk:
        if workspace_id is not None:
            # By its slug, or the id even of one that is no more.
            named = await desk.find(workspaces, workspace_id)
            conditions.append(audit.c.workspace_id == (named["id"] if named else workspace_id))
        total, rows = (0, []) if country else await listing.rows(desk, audit, page, conditions)
        sent = await desk.organisation().find_all(requests, {row["asked_id"] for row in rows if row["asked_id"]})
        return AuditLogs([_shown(row, sent.get(row["asked_id"])) for row in rows], total)


def _shown(row: Row, sent: Row | None) -> AuditLog:
    if sent is None:
        # The schedule's, or of before bodies were kept.
        body = msgspec.json.encode(row["after"]).decode() if row["after"] else ""
        sent = {"request_body": body, "request_headers": ""}
    said = {name: sent[name] for name in ("request_body", "request_headers")}
    return write_out(AuditLog, row, timestamp=when(row["created_at"]), **said)


routes = [index]
