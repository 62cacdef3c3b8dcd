"""Log exports: a background job writes the chosen fields of the matching logs to a file of JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import msgspec
from litestar import Request, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.access.tenant_rules import organisation_rules
from penstock.authorization import allow_anyone, require_scopes
from penstock.blobs.store import BlobStore
from penstock.errors import ConflictError, ForbiddenError, NotFoundError
from penstock.ids import is_uuid
from penstock.jobs.log_exports import LogExporter
from penstock.kit.client_ip import public_base_url
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.resource import Resource
from penstock.kit.route_parameters import WorkspaceFilter
from penstock.kit.shared_fields import CreatedAt, CreatedBy, Id, OrganisationId, UpdatedAt, WorkspaceId
from penstock.kit.tenant_session import RequestContext, Services
from penstock.log_api import exports
from penstock.log_api.exports import ExportField, RequestedData
from penstock.log_api.filters import ExportFilters
from penstock.log_api.service import LogService
from penstock.log_api.visibility import denied_export_fields, find_log_access
from penstock.logs.query import ListQuery
from penstock.resources.files import stream_blob
from penstock.schemas import ListResponse, field_error, now, row_to_struct
from penstock.settings import Settings
from penstock.store.job_tables import files, log_exports
from penstock.store.tables import workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession
    from penstock.log_api.visibility import LogAccess
    from penstock.store.tenant import Row

TAGS = ["Logs Export"]
EXPORTS = Resource("log_exports", log_exports)
EXPORT_GUARD = require_scopes("logs.export")
MAX_DESCRIPTION_CHARS = 2000

ExportId = Annotated[str, PathParameter(max_length=64, description="id of the export")]
ExportObject = Annotated[str, Meta(description="`export`")]
WorkspaceField = Annotated[
    str | None,
    Meta(description="id or slug of the workspace; default with a key of the organisation: the default workspace"),
]
Description = Annotated[
    Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS)] | None, Meta(description="what the export is for")
]
FiltersField = Annotated[ExportFilters, Meta(description="which logs are exported; `{}`: all")]


class CreateExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An export to create."""

    filters: FiltersField
    requested_data: RequestedData
    workspace_id: WorkspaceField = None
    description: Description = None


class UpdateExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An export to update. Omitted fields keep their values."""

    filters: FiltersField
    requested_data: RequestedData | UnsetType = UNSET
    workspace_id: WorkspaceField = None
    description: Annotated[
        Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS)] | UnsetType | None,
        Meta(description="what the export is for; null removes it"),
    ] = UNSET


class SavedExport(msgspec.Struct, frozen=True, kw_only=True):
    """An export that was created or updated."""

    id: Id
    total: Annotated[int, Meta(description="number of logs that match the filters now; at most 50,000 are exported")]
    object: ExportObject = "export"


class ExportDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One export."""

    id: Id
    organisation_id: OrganisationId
    workspace_id: WorkspaceId
    filters: FiltersField
    requested_data: Annotated[list[str], Meta(description="fields of each row")]
    status: Annotated[str, Meta(description="`draft`, `in_progress`, `success`, `failed` or `stopped`")]
    description: Annotated[str, Meta(description="what the export is for")]
    total: Annotated[int, Meta(description="number of logs that matched the filters when the export was saved")]
    total_records: Annotated[int | None, Meta(description="number of rows in the file; null before it is complete")]
    error: Annotated[str | None, Meta(description="why the export failed")]
    created_by: CreatedBy
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ExportObject = "export"


class ExportMessage(msgspec.Struct, frozen=True):
    """Confirmation that the state of an export changed."""

    message: Annotated[str, Meta(description="confirmation in words")]
    object: ExportObject = "export"


class ExportLink(msgspec.Struct, frozen=True):
    """Link to the file of an export."""

    signed_url: Annotated[
        str, Meta(description="URL of the file of JSON lines; valid for an hour, for everybody who knows it")
    ]


class FieldRestrictions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields that exports of a workspace may not contain."""

    denied_fields: Annotated[list[ExportField], Meta(description="fields that the organisation denies")]
    allowed_fields: Annotated[list[ExportField], Meta(description="all other fields")]
    object: Annotated[str, Meta(description="`export-field-restrictions`")] = "export-field-restrictions"


@post("/", status_code=200, guards=[EXPORT_GUARD], summary="Create log export", tags=TAGS)
async def create_export(
    data: JSONBody[CreateExport], context: NamedDependency[RequestContext], log_service: NamedDependency[LogService]
) -> SavedExport:
    """Creates an export as a draft, and counts the logs that match its filters. `start` runs it. Sees only the caller's
    own logs where its role is restricted to them.
    """
    workspace_id, access = await _open_workspace(context, data.workspace_id, data.filters)
    total = await _count_logs(log_service, access, data.filters)
    async with context.write_session(workspace_id) as session:
        exports.reject_denied_fields(data.requested_data, denied_export_fields(await organisation_rules(session)))
        row = await EXPORTS.create(
            session,
            {
                "workspace_id": session.required_workspace_id,
                "status": exports.DRAFT,
                "description": data.description,
                "filters": msgspec.to_builtins(data.filters),
                "requested_data": list(dict.fromkeys(data.requested_data)),
                "total": total,
                "restricted_to": access.user_id,
                "created_by": context.caller.actor_id,
            },
        )
    return SavedExport(id=row["id"], total=total)


@put(
    "/{export_id:str}",
    guards=[EXPORT_GUARD],
    summary="Update log export",
    tags=TAGS,
    opt={SHOWN_OPTION: ExportDetail},
)
async def update_export(
    export_id: ExportId,
    data: JSONBody[UpdateExport],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
) -> SavedExport:
    """Updates a draft. An export that was started keeps its filters and fields."""
    async with context.read_session() as session:
        workspace_id = (await _find_export(session, export_id))["workspace_id"]
    found_id, access = await _open_workspace(context, data.workspace_id or workspace_id, data.filters)
    if found_id != workspace_id:
        raise field_error("workspace_id", f"{data.workspace_id!r} is not the workspace of this export")
    total = await _count_logs(log_service, access, data.filters)
    async with context.write_session(workspace_id) as session:
        row = await _find_export(session, export_id)
        await context.check_unchanged(session, _to_detail(row))
        if row["status"] != exports.DRAFT:
            raise ConflictError(f"this export cannot be changed: it is {row['status']}; only a draft can be")
        values: dict[str, Any] = {
            "filters": msgspec.to_builtins(data.filters),
            "total": total,
            "restricted_to": access.user_id,
        }
        if data.requested_data is not UNSET:
            values["requested_data"] = list(dict.fromkeys(data.requested_data))
        if data.description is not UNSET:
            values["description"] = data.description
        denied = denied_export_fields(await organisation_rules(session))
        exports.reject_denied_fields(values.get("requested_data", row["requested_data"]), denied)
        await EXPORTS.update(session, row, values)
    return SavedExport(id=row["id"], total=total)


@get("/", guards=[require_scopes("logs.list")], summary="List log exports", tags=TAGS)
async def list_exports(
    context: NamedDependency[RequestContext], page: NamedDependency[PageRequest], workspace_id: WorkspaceFilter = None
) -> ListResponse[ExportDetail]:
    """Lists exports, newest first. A key of a user lists only the exports of that user."""
    async with context.read_session(workspace_id) as session:
        total, rows = await EXPORTS.list_page(session, page, _visible_exports(session))
        return ListResponse(total, [_to_detail(row) for row in rows])


@get("/field-restrictions", guards=[EXPORT_GUARD], summary="Get field restrictions", tags=TAGS)
async def get_field_restrictions(
    context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> FieldRestrictions:
    """Returns the fields that the exports of a workspace may not contain, from the settings of the organisation."""
    async with context.read_session(workspace_id) as session:
        denied: list[Any] = denied_export_fields(await organisation_rules(session))
    allowed: list[Any] = [name for name in exports.EXPORT_FIELDS if name not in denied]
    return FieldRestrictions(denied_fields=denied, allowed_fields=allowed)


@get("/{export_id:str}", guards=[EXPORT_GUARD], summary="Get log export", tags=TAGS)
async def get_export(export_id: ExportId, context: NamedDependency[RequestContext]) -> ExportDetail:
    """Returns one export."""
    async with context.read_session() as session:
        return _to_detail(await _find_export(session, export_id))


@post("/{export_id:str}/start", status_code=200, guards=[EXPORT_GUARD], summary="Start log export", tags=TAGS)
async def start_export(
    export_id: ExportId, context: NamedDependency[RequestContext], log_exporter: NamedDependency[LogExporter]
) -> ExportMessage:
    """Starts an export. One that failed or was stopped starts again from the beginning."""
    async with context.write_session() as session:
        row = await _find_export(session, export_id)
        if row["status"] not in {exports.DRAFT, exports.FAILED, exports.STOPPED}:
            raise ConflictError(f"this export cannot be started: it is {row['status']}")
        exports.reject_denied_fields(row["requested_data"], denied_export_fields(await organisation_rules(session)))
        change = {
            "status": exports.IN_PROGRESS,
            "error": None,
            "total_records": None,
            "run_by": None,
            "run_until": None,
        }
        await EXPORTS.update(session, row, change, "export")
    log_exporter.notify()
    return ExportMessage("Export started; its status becomes success or failed")


@post("/{export_id:str}/cancel", status_code=200, guards=[EXPORT_GUARD], summary="Cancel log export", tags=TAGS)
async def cancel_export(
    export_id: ExportId, context: NamedDependency[RequestContext], log_exporter: NamedDependency[LogExporter]
) -> ExportMessage:
    """Stops an export that is in progress, or a draft."""
    async with context.write_session() as session:
        row = await _find_export(session, export_id)
        if row["status"] not in {exports.DRAFT, exports.IN_PROGRESS}:
            raise ConflictError(f"this export cannot be cancelled: it is {row['status']}")
        await EXPORTS.update(session, row, {"status": exports.STOPPED})
    log_exporter.notify()
    return ExportMessage("Export stopped")


@get("/{export_id:str}/download", guards=[EXPORT_GUARD], summary="Get download link", tags=TAGS)
async def get_download_link(
    export_id: ExportId,
    context: NamedDependency[RequestContext],
    services: NamedDependency[Services],
    settings: NamedDependency[Settings],
    blobs: NamedDependency[BlobStore],
    request: Request[Any, Any, Any],
) -> ExportLink:
    """Returns a link to the file of an export. The link is valid for an hour and needs no key. It is an address of the
    gateway, or of the bucket if `files.store` is one.
    """
    async with context.read_session() as session:
        row = await _find_export(session, export_id)
        if row["status"] != exports.SUCCESS:
            raise ConflictError(f"this export has no file: it is {row['status']}")
        await _check_contents_visible(session, row)
        await _find_file(session, row)
    if url := await blobs.sign_url(
        row["file_id"], exports.file_name(row["id"]), exports.MEDIA_TYPE, exports.LINK_SECONDS
    ):
        return ExportLink(url)
    query = urlencode(exports.sign_link(services.vault, row))
    return ExportLink(f"{public_base_url(settings, request)}/v1/logs/exports/{row['id']}/file?{query}")


@get(
    "/{export_id:str}/file",
    guards=[allow_anyone],
    summary="Download log export",
    tags=TAGS,
    media_type=exports.MEDIA_TYPE,
)
async def download_file(
    export_id: ExportId,
    services: NamedDependency[Services],
    blobs: NamedDependency[BlobStore],
    expires: Annotated[int, QueryParameter(description="end of the link's validity, Unix time in seconds")],
    signature: Annotated[str, QueryParameter(max_length=128, description="signature of the link")],
) -> Stream:
    """Returns the file of an export as JSON lines. The signature of the link replaces a key."""
    query = (
        select(log_exports.c.id, log_exports.c.file_id, files.c.bytes)
        .join(files, files.c.id == log_exports.c.file_id)
        .where(log_exports.c.id == export_id, log_exports.c.status == exports.SUCCESS, files.c.expires_at > now())
    )
    async with services.database.read_connection() as connection:
        row = (await connection.execute(query)).mappings().first() if is_uuid(export_id) else None
    # A missing export results in the same error as a wrong signature, so that others cannot find out which exports
    # exist.
    exports.check_link(services.vault, dict(row) if row else {"id": "", "file_id": ""}, expires, signature)
    if row is None:
        raise ForbiddenError("this link is not valid")
    fields = {"content-disposition": f'attachment; filename="{exports.file_name(row["id"])}"'}
    return await stream_blob(blobs, row["file_id"], row["bytes"], exports.MEDIA_TYPE, **fields)


async def _open_workspace(
    context: RequestContext, workspace_id: str | None, filters: ExportFilters
) -> tuple[str, LogAccess]:
    """Returns the workspace of an export, and the logs in it that the caller may see."""
    # With a key of a workspace, the filter `workspace_slug` is ignored, as in queries of logs.
    async with context.read_session(
        workspace_id or (None if context.caller.workspace_id else filters.workspace_slug)
    ) as session:
        row = await _find_workspace(session)
        session.workspace_id, session.among = row["id"], None
        session.require_any_scope("logs.export")
        return row["id"], await find_log_access(session, "contents")


async def _find_workspace(session: TenantSession) -> Row:
    """Returns the workspace of a session. If the session is for the whole organisation, returns the default
    workspace.
    """
    condition = workspaces.c.is_default if session.workspace_ids is None else workspaces.c.id == session.workspace_id
    row = await session.fetch_first(select(workspaces.c.id).where(condition), workspaces)
    if row is None:
        raise field_error("workspace_id", "is required: several workspaces are open to this caller")
    return row


async def _count_logs(log_service: LogService, access: LogAccess, filters: ExportFilters) -> int:
    query = ListQuery(filters=filters.parse().within(access), columns=["id"], limit=1, with_total=True)
    return (await log_service.run(query))["total"]


async def _find_export(session: TenantSession, export_id: str) -> Row:
    row = await EXPORTS.get(session, export_id)
    if _is_limited_to_own(session, row["workspace_id"]) and row["created_by"] != session.caller.actor_id:
        raise NotFoundError(f"no object with the id or slug {export_id!r} was found")
    return row


async def _check_contents_visible(session: TenantSession, row: Row) -> None:
    """Raises ForbiddenError if the caller may not see the logs in the file of an export: the settings of the workspace
    may hide them, and an export that another caller created or updated may contain logs of all users.
    """
    session.workspace_id, session.among = row["workspace_id"], None
    access = await find_log_access(session, "contents")
    if access.user_id not in {None, row["restricted_to"]}:
        raise ForbiddenError(
            "this export contains logs of other users, which this caller may not see; hint: create a new export"
        )


def _visible_exports(session: TenantSession) -> Sequence[ColumnElement[bool]]:
    is_limited = _is_limited_to_own(session, session.workspace_id)
    return [log_exports.c.created_by == session.caller.actor_id] if is_limited else []


def _is_limited_to_own(session: TenantSession, workspace_id: str | None) -> bool:
    """Returns true if an export is limited to the caller's own logs, as for keys of users, and for users who are not
    admins. An export contains only logs that its creator may see.
    """
    caller = session.caller
    if caller.user_id is None:
        return False
    return caller.by == "key" or not (caller.is_organisation_admin or caller.roles.get(workspace_id or "") == "admin")


async def _find_file(session: TenantSession, row: Row) -> Row:
    file = await session.find(files, row["file_id"] or "")
    if file is None or file["expires_at"] <= now():
        raise NotFoundError("the file of this export has expired; hint: create a new export")
    return file


def _to_detail(row: Row) -> ExportDetail:
    return row_to_struct(ExportDetail, row, filters=exports.stored_filters(row), description=row["description"] or "")


routes = [
    create_export,
    update_export,
    list_exports,
    get_field_restrictions,
    get_export,
    start_export,
    cancel_export,
    get_download_link,
    download_file,
]
