"""Shared implementation of providers and virtual keys. Both are views of the same rows, with common request fields,
routes and response fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock import limit_fields as limits
from penstock.ids import new_id
from penstock.integrations import saved_integrations as integrations
from penstock.kit import shared_fields
from penstock.kit.crud_routes import CrudRoutes, ListQuery
from penstock.kit.numbered_pages import search_conditions
from penstock.kit.route_parameters import SearchFilter, TagsFilter, WorkspaceFilter
from penstock.kit.shared_fields import UNSET, tag_conditions
from penstock.limit_fields import LimitFields, LimitFieldsUpdate
from penstock.limits.status import NO_USAGE, CurrentUsage, read_current_usage
from penstock.schemas import Created, effective_status, row_to_struct, sent_fields
from penstock.store.tables import integrations as integration_rows
from penstock.store.tables import providers, workspaces

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

COPIED_FIELDS = ("name", "note", "tags")


class CreateFields(LimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Request fields that create a provider or virtual key."""

    name: shared_fields.Name
    workspace_id: shared_fields.WorkspaceIdOrSlug = None
    slug: shared_fields.ChosenSlug = None
    note: shared_fields.Note = None


class UpdateFields(LimitFieldsUpdate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Request fields that update a provider or virtual key. Omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    note: shared_fields.OptionalNote = UNSET


class ResponseFields(msgspec.Struct, frozen=True, kw_only=True):
    """Response fields that providers and virtual keys share."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    note: shared_fields.Note
    integration_id: Annotated[str, Meta(description="slug of its integration")]
    ai_provider_name: Annotated[str, Meta(description="name of the model provider")]
    model_config: Annotated[dict[str, Any], Meta(description="additional options of the provider")]
    organisation_id: shared_fields.OrganisationId
    workspace_id: shared_fields.WorkspaceId
    status: shared_fields.ExpiryStatus
    usage_limits: limits.UsageLimitsField
    rate_limits: limits.RateLimitListField
    current_usage: limits.CurrentUsageField = None
    reset_usage: shared_fields.ResetUsageShown = None
    last_reset_at: shared_fields.OptionalTimestamp
    expires_at: shared_fields.OptionalTimestamp
    tags: shared_fields.Tags
    created_at: shared_fields.CreatedAt


def list_query(workspace_id: WorkspaceFilter = None, tags: TagsFilter = None, search: SearchFilter = None) -> ListQuery:
    """Lists the rows of one workspace, or of all workspaces. The parameters `tags` and `search` filter them."""
    conditions = [*tag_conditions(providers, tags), *search_conditions(search, providers.c.name, providers.c.slug)]
    return ListQuery(workspace_id, conditions)


class ProviderRoutes(CrudRoutes):
    """Routes that present the shared rows as either providers or virtual keys."""

    async def create_row(
        self, session: TenantSession, data: CreateFields, integration_id: str, tags: dict[str, str]
    ) -> Row:
        """Creates a row that uses the integration `integration_id`."""
        values = {
            "id": new_id(),
            "workspace_id": session.required_workspace_id,
            "integration_id": integration_id,
            "slug": data.slug or await integrations.find_free_slug(session, integrations.slug_from_name(data.name)),
            "name": data.name,
            "note": data.note,
            "status": "active",
            "tags": tags,
            **limits.check_limits(data),
        }
        return await self.resource.create(session, values)

    async def update_row(self, session: TenantSession, row: Row, data: UpdateFields) -> Created:
        """Updates a row. Omitted fields keep their values."""
        values = {name: value for name, value in sent_fields(data).items() if name in COPIED_FIELDS}
        await self.resource.update(session, row, {**values, **limits.check_limits(data, before=row)})
        session.note_changed_budget(f"provider:{row['id']}")
        return Created(row["id"], row["slug"], self.kind)

    async def delete_row(self, session: TenantSession, row: Row) -> None:
        """Deletes a row. Its integration and credential remain, unless they were created together with a virtual key."""
        await self.resource.delete(session, row)
        await integrations.remove_if_unused(session, row["integration_id"])

    def build_routes(
        self,
        response_type: type[ResponseFields],
        change: type[UpdateFields],
        changed: Any,  # noqa: ANN401 - a function of the framework
        alter: Any,  # noqa: ANN401 - as above
    ) -> list[Any]:
        """Returns the list route, the get route and the update route."""

        async def render_rows(session: TenantSession, rows: list[Row]) -> list[ResponseFields]:
            linked_integrations = await session.organisation().find_all(
                integration_rows, {row["integration_id"] for row in rows}
            )
            has_workspace_name = "workspace_name" in response_type.__struct_fields__
            workspaces_by_id = (
                await session.find_all(workspaces, {row["workspace_id"] for row in rows}) if has_workspace_name else {}
            )
            used = await read_current_usage(session, "provider", rows)
            return [
                _to_response(
                    response_type,
                    row,
                    linked_integrations[row["integration_id"]],
                    workspaces_by_id.get(row["workspace_id"]),
                    used.get(row["id"], NO_USAGE),
                )
                for row in rows
            ]

        async def render_list(session: TenantSession, rows: list[Row]) -> list[ResponseFields]:
            result = await render_rows(session, rows)
            if not await session.expects_single_limits():
                return result
            return [msgspec.structs.replace(item, rate_limits=limits.first_limit(item.rate_limits)) for item in result]

        return [
            self.list_route(response_type, render_list, list_query),
            self.get_route(response_type, render_rows),
            self.update_route(change, changed, alter, response_type, render_rows),
        ]


def _to_response(
    response_type: type[ResponseFields], row: Row, integration: Row, workspace: Row | None, used: CurrentUsage
) -> ResponseFields:
    values = {
        "integration_id": integration["slug"],
        "ai_provider_name": integration["ai_provider_id"],
        "provider": integration["ai_provider_id"],
        "model_config": integration["configurations"],
        "masked_api_key": integration["masked_key"],
        "secret_mappings": integration["secret_mappings"],
        "workspace_name": workspace["name"] if workspace else "",
        "status": effective_status(row, is_exhausted=used.is_exhausted),
        "current_usage": used.amount,
    }
    return row_to_struct(
        response_type, row, **{name: value for name, value in values.items() if name in response_type.__struct_fields__}
    )
