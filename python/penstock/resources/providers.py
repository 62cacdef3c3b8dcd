"""Providers: integrations made usable in one workspace. Configs and requests name them `@slug`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import get
from litestar.di import NamedDependency
from msgspec import UNSET, Meta

from penstock.authorization import require_scopes
from penstock.integrations import saved_providers
from penstock.integrations.provider_references import find_provider_users
from penstock.integrations.saved_integrations import PROVIDERS, usable_condition
from penstock.kit import shared_fields  # noqa: TC001 - the framework reads the annotations at runtime
from penstock.kit.references import ReferenceList, list_visible
from penstock.kit.route_parameters import IdOrSlug, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext
from penstock.schemas import Created, field_error
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession

PROVIDER_ROUTES = saved_providers.ProviderRoutes(PROVIDERS, "provider", ["Providers"])


class CreateProvider(saved_providers.CreateFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider to create."""

    integration_id: Annotated[str, Meta(description="id or slug of the integration")]
    tags: shared_fields.Tags = msgspec.field(default_factory=dict[str, str])
    model_config: Annotated[
        dict[str, Any] | None, Meta(description="must be empty: the integration holds these options")
    ] = None


class UpdateProvider(saved_providers.UpdateFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a provider to update; omitted fields keep their values."""

    tags: shared_fields.OptionalTags = UNSET


class ProviderDetail(saved_providers.ResponseFields, frozen=True, kw_only=True):
    """One provider of a workspace."""

    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "provider"


async def create_provider(session: TenantSession, data: CreateProvider) -> Created:
    """Makes an integration usable in a workspace."""
    if data.model_config:
        # A caller could otherwise set an address and receive the integration's credential there.
        raise field_error("model_config", "belongs to the integration; change it there")
    description = "integration that may be used in this workspace"
    # Excludes integrations that a virtual key created: a second provider for the same credential would have other
    # limits.
    is_allowed = [usable_condition(session.required_workspace_id), ~integrations.c.brought_along]
    integration = await session.organisation().resolve_reference(
        "integration_id", integrations, data.integration_id, description, *is_allowed
    )
    row = await PROVIDER_ROUTES.create_row(session, data, integration["id"], data.tags)
    return Created(row["id"], row["slug"], "provider")


@get(
    "/{key:str}/references",
    guards=[require_scopes("providers.read")],
    summary="List what uses a provider",
    tags=["Providers"],
)
async def list_references(
    key: IdOrSlug, context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> ReferenceList:
    """Lists the configs, prompts and policies of its workspace that name a provider. Counts those that the caller may not
    see.
    """
    async with context.read_session(workspace_id) as session:
        row = await PROVIDERS.get(session, key)
        return list_visible(session, await find_provider_users(session, row))


routes = [
    list_references,
    PROVIDER_ROUTES.create_route(CreateProvider, Created, create_provider),
    *PROVIDER_ROUTES.build_routes(ProviderDetail, UpdateProvider, Created, PROVIDER_ROUTES.update_row),
    PROVIDER_ROUTES.delete_route(PROVIDER_ROUTES.delete_row),
]
