"""Routes for the workspaces that may use an integration: the paths below `/integrations/{key}/workspaces`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from msgspec.structs import replace
from sqlalchemy import select

from penstock.integrations import saved_integrations
from penstock.integrations import workspace_access as integration_access
from penstock.integrations.saved_integrations import ProviderSlug
from penstock.integrations.workspace_access import Enabled, GlobalAccess, GlobalAccessResponse
from penstock.kit.route_parameters import IdOrSlug
from penstock.kit.shared_fields import CreatedAt, ObjectType, OptionalTimestamp, UpdatedAt
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limit_fields import (
    CurrentUsageField,
    RateLimitListField,
    ResetUsage,
    UsageLimitListField,
    WorkspaceLimitFields,
    check_workspace_limits,
    first_limit,
)
from penstock.limits.status import NO_USAGE, read_access_usage
from penstock.schemas import EmptyResponse, field_error, now, row_to_struct
from penstock.store.tables import integration_workspaces, workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Integrations > Workspaces"]
MAX_WORKSPACES = 1000


class WorkspaceAccess(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Access of one workspace to an integration, with its limits."""

    id: Annotated[str, Meta(description="id or slug of the workspace")]
    enabled: Enabled
    reset_usage: ResetUsage = False
    create_default_provider: Annotated[
        bool | None,
        Meta(
            description="create a provider for the integration in this workspace; default: the request's own `create_default_provider`"
        ),
    ] = None
    default_provider_slug: ProviderSlug = None
    READ_ONLY: ClassVar = ("workspace_id", "name", "current_usage", "last_reset_at", "created_at", "last_updated_at")


class UpdateWorkspaceAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to the access of workspaces to an integration."""

    READ_ONLY: ClassVar = ("total", "data", "object")

    workspaces: Annotated[
        list[WorkspaceAccess], Meta(max_length=MAX_WORKSPACES, description="access of individual workspaces")
    ] = []
    global_workspace_access: Annotated[
        GlobalAccess | None, Meta(description="access of all workspaces without an entry of their own")
    ] = None
    override_existing_workspace_access: Annotated[
        bool, Meta(description="delete the existing entries of individual workspaces first")
    ] = False
    override_existing_workspaces_access: Annotated[
        bool, Meta(description="alias of `override_existing_workspace_access`, for clients that spell it this way")
    ] = False
    create_default_provider: Annotated[
        bool, Meta(description="create a provider for the integration in workspaces that may use it")
    ] = True
    default_provider_slug: ProviderSlug = None


class WorkspaceAccessDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Access of one workspace to an integration, with its limits."""

    id: Annotated[str, Meta(description="slug of the workspace")]
    workspace_id: Annotated[str, Meta(description="id of the workspace")]
    name: Annotated[str, Meta(description="name of the workspace")]
    enabled: Enabled
    usage_limits: UsageLimitListField
    rate_limits: RateLimitListField
    current_usage: CurrentUsageField = None
    last_reset_at: OptionalTimestamp
    created_at: CreatedAt
    last_updated_at: UpdatedAt


class WorkspaceAccessList(msgspec.Struct, frozen=True, kw_only=True):
    """Access of workspaces to an integration."""

    total: Annotated[int, Meta(description="number of workspaces with an entry of their own")]
    workspaces: Annotated[list[WorkspaceAccessDetail], Meta(description="workspaces with an entry of their own")]
    data: Annotated[list[WorkspaceAccessDetail], Meta(description="the same")]
    global_workspace_access: Annotated[GlobalAccessResponse, Meta(description="access of all other workspaces")]
    object: ObjectType = "list"


@get(
    "/{key:str}/workspaces",
    guards=[saved_integrations.require_either_scope("read")],
    summary="List workspaces of an integration",
    tags=TAGS,
)
async def list_workspaces(key: IdOrSlug, context: NamedDependency[RequestContext]) -> WorkspaceAccessList:
    """Lists the workspaces that have their own access entry. A caller of one workspace sees only the entry of that
    workspace.
    """
    async with context.read_session() as session:
        row = await saved_integrations.get_integration(session, key, "read")
        name_columns = [workspaces.c.slug.label("workspace_slug"), workspaces.c.name.label("workspace_name")]
        query = select(integration_workspaces, *name_columns).join(
            workspaces, workspaces.c.id == integration_workspaces.c.workspace_id
        )
        query = query.where(integration_workspaces.c.integration_id == row["id"])
        rows = await session.fetch_rows(query.order_by(integration_workspaces.c.id), integration_workspaces)
        used = await read_access_usage(session, row["id"], rows)
        details = [_to_access_detail(item, used.get(item["id"], NO_USAGE).amount) for item in rows]
        if await session.expects_single_limits():
            names = ("usage_limits", "rate_limits")
            details = [replace(item, **{name: first_limit(getattr(item, name)) for name in names}) for item in details]
        return WorkspaceAccessList(
            total=len(details),
            workspaces=details,
            data=details,
            global_workspace_access=integration_access.to_access_response(row),
        )


@put(
    "/{key:str}/workspaces",
    guards=[saved_integrations.require_either_scope("update")],
    summary="Update workspaces of an integration",
    tags=TAGS,
)
async def update_workspaces(
    key: IdOrSlug, data: JSONBody[UpdateWorkspaceAccess], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Sets which workspaces may use an integration of the organisation, and their limits. By default, creates a
    provider in each workspace that may use it.
    """
    async with context.write_session() as session:
        row = await saved_integrations.get_integration(session, key, "update")
        await saved_integrations.mark_changed(session, row)
        session.note_changed_budget(f"integration:{row['id']}")
        if row["workspace_id"]:
            raise field_error("", "this integration belongs to one workspace; it cannot be shared with others")
        before, provides = await _load_access_entries(session, row), False
        if data.override_existing_workspace_access or data.override_existing_workspaces_access:
            await _delete_access_entries(session, row)
        if data.global_workspace_access is not None:
            sent = data.global_workspace_access.create_default_provider
            provides = data.create_default_provider if sent is None else sent
            written = integration_access.to_stored_access(
                data.global_workspace_access, row["global_access"], provides=provides
            )
            row = await saved_integrations.INTEGRATIONS.update(session.organisation(), row, {"global_access": written})
        listed_ids: set[str] = set()
        for number, requested in enumerate(data.workspaces):
            # Archived workspaces with an existing entry are accepted, so that a client can send back what it read. A
            # request can disable one, but not enable it.
            allowed_ids = [
                workspace_id for workspace_id, entry in before.items() if entry["enabled"] or not requested.enabled
            ]
            path = f"workspaces[{number}]"
            workspace = await session.organisation().resolve_workspace(f"{path}.id", requested.id, allowed_ids)
            await _save_access(session, row, path, requested, workspace["id"], before.get(workspace["id"]))
            listed_ids.add(workspace["id"])
            if requested.enabled and workspace["status"] == "active":
                await _create_default_provider(session, row, requested, data, workspace["id"])
        if data.global_workspace_access and data.global_workspace_access.enabled and provides:
            usable = await saved_integrations.usable_workspace_ids(session, row)
            slug = data.default_provider_slug or row["default_provider_slug"]
            await saved_integrations.create_missing_providers(
                session, row, [item for item in usable if item not in listed_ids], slug
            )
        return EmptyResponse()


async def _load_access_entries(session: TenantSession, row: Row) -> dict[str, Row]:
    """Returns the access entries of individual workspaces, by workspace id."""
    query = select(integration_workspaces).where(integration_workspaces.c.integration_id == row["id"])
    return {
        entry["workspace_id"]: entry for entry in await session.organisation().fetch_rows(query, integration_workspaces)
    }


async def _save_access(
    session: TenantSession, row: Row, path: str, requested: WorkspaceAccess, workspace_id: str, before: Row | None
) -> None:
    limited = check_workspace_limits(requested, f"{path}.", rates_at_most=1, before=before, any_alert=True)
    values: dict[str, Any] = {"enabled": requested.enabled, **limited}
    if requested.reset_usage:
        values["last_reset_at"] = now()
    await saved_integrations.set_workspace_access(session, row, workspace_id, values)


async def _create_default_provider(
    session: TenantSession, row: Row, requested: WorkspaceAccess, data: UpdateWorkspaceAccess, workspace_id: str
) -> None:
    provides = (
        data.create_default_provider if requested.create_default_provider is None else requested.create_default_provider
    )
    if provides:
        slug = requested.default_provider_slug or data.default_provider_slug or row["default_provider_slug"]
        await saved_integrations.create_missing_providers(session, row, [workspace_id], slug)


async def _delete_access_entries(session: TenantSession, row: Row) -> None:
    await saved_integrations.WORKSPACES.delete_all(
        session.organisation(), integration_workspaces.c.integration_id == row["id"]
    )


def _to_access_detail(row: Row, current_usage: float | None) -> WorkspaceAccessDetail:
    names = {"id": row["workspace_slug"], "name": row["workspace_name"]}
    return row_to_struct(WorkspaceAccessDetail, row, **names, current_usage=current_usage)


routes = [list_workspaces, update_workspaces]
