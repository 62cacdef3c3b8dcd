"""Integrations: provider credentials stored for an organisation or one workspace. Providers and virtual keys are based
on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from penstock.ids import new_id
from penstock.integrations import provider_options as forms
from penstock.integrations import saved_integrations
from penstock.integrations.saved_integrations import ProviderSlug
from penstock.integrations.workspace_access import GlobalAccessResponse
from penstock.integrations.workspace_access import to_access_response as access_shown
from penstock.kit import shared_fields
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest, search_conditions
from penstock.kit.route_parameters import IdOrSlug, SearchFilter, TagsFilter, WorkspaceFilter
from penstock.kit.shared_fields import UNSET, UnsetType, tag_conditions
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.pricing.wire_format import PriceAdjustments
from penstock.resources import _integration_models, _integration_workspaces
from penstock.schemas import Created, EmptyResponse, ListResponse, format_timestamp, row_to_struct, sent_fields
from penstock.secrets import mappings
from penstock.secrets.mappings import SecretMapping
from penstock.settings import Settings
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

TAGS = ["Integrations"]

ConfigurationsField = Annotated[
    dict[str, Any], Meta(description=f"more about the provider, which says what there is; {forms.describe_fields()}")
]
SecretMappingsField = Annotated[list[SecretMapping], Meta(description="fields whose values come from a secret manager")]
CredentialField = Annotated[str, Meta(max_length=65536)]


class CreateIntegration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An integration to create."""

    name: shared_fields.Name
    ai_provider_id: Annotated[str, Meta(description="name of the provider")]
    slug: shared_fields.ChosenSlug = None
    key: Annotated[CredentialField, Meta(description="API key of the provider")] = ""
    description: shared_fields.Note = None
    workspace_id: shared_fields.WorkspaceIdOrSlug = None
    configurations: ConfigurationsField = {}
    create_default_provider: Annotated[
        bool, Meta(description="create a provider for the integration in workspaces that may use it")
    ] = True
    default_provider_slug: ProviderSlug = None
    secret_mappings: SecretMappingsField = []
    pricing_adjustments: Annotated[
        PriceAdjustments | None, Meta(description="factors that are applied to its prices")
    ] = None
    tags: shared_fields.Tags = {}


class UpdateIntegration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of an integration to update; omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    key: Annotated[
        CredentialField | UnsetType, Meta(description="the new key; the masked form keeps the current one")
    ] = UNSET
    description: shared_fields.OptionalNote = UNSET
    configurations: Annotated[
        dict[str, Any] | UnsetType, Meta(description="replaces the previous options; masked values are unchanged")
    ] = UNSET
    secret_mappings: Annotated[list[SecretMapping] | UnsetType, Meta(description="replaces the previous mappings")] = (
        UNSET
    )
    pricing_adjustments: Annotated[
        PriceAdjustments | UnsetType | None,
        Meta(description="factors that are applied to its prices; null removes them"),
    ] = UNSET
    tags: shared_fields.OptionalTags = UNSET


class CreatedIntegration(Created, frozen=True, kw_only=True):
    """Id and slug of a new integration, and warnings: what in it will fail."""

    warnings: saved_integrations.WarningsField = UNSET


class UpdatedIntegration(msgspec.Struct, frozen=True):
    """Warnings about an updated integration: what in it will fail."""

    warnings: saved_integrations.WarningsField = UNSET


class IntegrationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One integration in a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    description: shared_fields.Note
    ai_provider_id: Annotated[str, Meta(description="name of the provider")]
    organisation_id: shared_fields.OrganisationId
    workspace_id: Annotated[
        str | None, Meta(description="id of the workspace that owns it; null if the organisation does")
    ]
    status: shared_fields.ArchiveStatus
    type: Annotated[str, Meta(description="`workspace` or `organisation`")]
    owner_id: shared_fields.CreatedBy
    masked_key: Annotated[str | None, Meta(description="the key, masked: only its first and last characters")]
    configurations: ConfigurationsField
    tags: shared_fields.Tags
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    last_reset_at: Annotated[
        str | None, Meta(description="when a workspace's usage of it was last reset with `reset_usage`")
    ]
    object: shared_fields.ObjectType = "integration"


class IntegrationDetail(IntegrationSummary, frozen=True, kw_only=True):
    """One integration with its access settings and mappings."""

    global_workspace_access_settings: Annotated[
        GlobalAccessResponse, Meta(description="access of all workspaces without an entry of their own")
    ]
    global_workspace_access: Annotated[GlobalAccessResponse, Meta(description="the same")]
    allow_all_models: Annotated[bool, Meta(description="true if models without an entry of their own may be used")]
    workspace_count: Annotated[int, Meta(description="number of workspaces that may use it")]
    secret_mappings: Annotated[list[SecretMapping], Meta(description="fields whose values come from a secret manager")]
    pricing_adjustments: Annotated[PriceAdjustments | None, Meta(description="factors that are applied to its prices")]


KindParam = Annotated[
    Literal["workspace", "organisation", "all"],
    QueryParameter(name="type", description="integrations of a workspace, of the organisation, or both"),
]


@post(
    "/",
    status_code=200,
    guards=[saved_integrations.require_either_scope("create")],
    summary="Create integration",
    tags=TAGS,
)
async def create_integration(
    data: JSONBody[CreateIntegration],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
) -> CreatedIntegration:
    """Stores a provider's credential, for one workspace or for the organisation. An organisation's integration is open
    only to workspaces that are given access.
    """
    provider = saved_integrations.resolve_provider("ai_provider_id", data.ai_provider_id)
    async with context.write_session(data.workspace_id) as session:
        workspace_id = session.workspace_id
        session.require_any_scope(saved_integrations.scope_for_verb(workspace_id, "create"))
        listed = await mappings.check_mappings(session, data.secret_mappings, workspace_id, forms.field_names(provider))
        forms.check_options("configurations", provider, data.configurations, mappings.mapped_options(listed))
        row_id = new_id()
        values = {
            "workspace_id": workspace_id,
            "slug": data.slug or await session.generate_unused_slug(integrations, "", data.name, 40),
            "name": data.name,
            "description": data.description,
            "ai_provider_id": provider,
            "secret_mappings": listed,
            "pricing_adjustments": msgspec.to_builtins(data.pricing_adjustments),
            "tags": data.tags,
            "default_provider_slug": data.default_provider_slug,
            **await saved_integrations.seal_key(session, row_id, data.key),
            **await saved_integrations.seal_options(session, row_id, "configurations", data.configurations),
        }
        await saved_integrations.reject_exposed_secrets(session, values)
        row = await saved_integrations.create_integration(session, row_id, values)
        if data.create_default_provider and workspace_id:
            await saved_integrations.create_missing_providers(session, row, [workspace_id], data.default_provider_slug)
        warnings = saved_integrations.find_warnings(row, settings.upstream.trusted_custom_hosts)
        return CreatedIntegration(row["id"], row["slug"], "integration", warnings=warnings)


@get("/", guards=[saved_integrations.require_either_scope("list")], summary="List integrations", tags=TAGS)
async def list_integrations(
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    workspace_id: WorkspaceFilter = None,
    kind: KindParam = "all",
    tags: TagsFilter = None,
    search: SearchFilter = None,
) -> ListResponse[IntegrationSummary]:
    """Lists the workspace's own integrations, and those of the organisation that it may use."""
    async with context.read_session(workspace_id) as session:
        conditions = [
            *saved_integrations.visible_conditions(session.workspace_ids),
            ~integrations.c.brought_along,
            *tag_conditions(integrations, tags),
            *search_conditions(search, integrations.c.name, integrations.c.slug),
        ]
        if kind != "all":
            is_own = integrations.c.workspace_id.is_not(None)
            conditions.append(is_own if kind == "workspace" else ~is_own)
        total, rows = await saved_integrations.INTEGRATIONS.list_page(session.organisation(), page, conditions)
        resets = await saved_integrations.last_reset_times(session, rows)
        return ListResponse(
            total, [row_to_struct(IntegrationSummary, row, **_derive_fields(row, resets)) for row in rows]
        )


@get("/{key:str}", guards=[saved_integrations.require_either_scope("read")], summary="Get integration", tags=TAGS)
async def get_integration(key: IdOrSlug, context: NamedDependency[RequestContext]) -> IntegrationDetail:
    """Returns an integration with its credentials masked."""
    async with context.read_session() as session:
        return await _to_integration_detail(session, await saved_integrations.get_integration(session, key, "read"))


@put(
    "/{key:str}",
    guards=[saved_integrations.require_either_scope("update")],
    summary="Update integration",
    tags=TAGS,
    opt={SHOWN_OPTION: IntegrationDetail},
)
async def update_integration(
    key: IdOrSlug,
    data: JSONBody[UpdateIntegration],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
) -> UpdatedIntegration:
    """Updates an integration; omitted fields keep their values. Credentials that are sent back masked are unchanged,
    unless the address changes: then they must be sent again.
    """
    async with context.write_session() as session:
        row = await saved_integrations.get_integration(session, key, "update")
        if context.sends_read_fields:
            await context.check_unchanged(session, await _to_integration_detail(session, row))
        values = {name: value for name, value in sent_fields(data).items() if name in {"name", "description", "tags"}}
        if data.secret_mappings is not UNSET:
            allowed_fields = forms.field_names(row["ai_provider_id"])
            values["secret_mappings"] = await mappings.check_mappings(
                session, data.secret_mappings, row["workspace_id"], allowed_fields, row["secret_mappings"]
            )
        mapped = mappings.mapped_options(values.get("secret_mappings", row["secret_mappings"]))
        if data.configurations is not UNSET or data.secret_mappings is not UNSET:
            options = data.configurations
            if options is UNSET:
                # New mappings may omit a required field that was mapped before, so the stored configurations are
                # validated again.
                options = {**row["configurations"], **await saved_integrations.open_secrets(session, row)}
            forms.check_options("configurations", row["ai_provider_id"], options, mapped)
        if data.configurations is not UNSET:
            values |= await saved_integrations.seal_options(
                session, row["id"], "configurations", data.configurations, row
            )
        if data.key is not UNSET:
            values |= await saved_integrations.seal_key(session, row["id"], data.key, row)
        sent = None if data.configurations is UNSET else data.configurations
        await saved_integrations.reject_moved_credentials(session, row, values, "configurations", sent)
        if data.pricing_adjustments is not UNSET:
            values["pricing_adjustments"] = msgspec.to_builtins(data.pricing_adjustments)
        await saved_integrations.INTEGRATIONS.update(session.organisation(), row, values)
        return UpdatedIntegration(
            saved_integrations.find_warnings({**row, **values}, settings.upstream.trusted_custom_hosts)
        )


@delete(
    "/{key:str}",
    status_code=200,
    guards=[saved_integrations.require_either_scope("delete")],
    summary="Delete integration",
    tags=TAGS,
)
async def delete_integration(key: IdOrSlug, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Deletes an integration, its credential, and the providers that are based on it."""
    async with context.write_session() as session:
        await saved_integrations.remove_integration(
            session, await saved_integrations.get_integration(session, key, "delete")
        )
        return EmptyResponse()


def _derive_fields(row: Row, resets: Mapping[str, int]) -> dict[str, Any]:
    kind = "workspace" if row["workspace_id"] else "organisation"
    return {"type": kind, "last_reset_at": format_timestamp(resets.get(row["id"]))}


async def _to_integration_detail(session: TenantSession, row: Row) -> IntegrationDetail:
    access = access_shown(row)
    extra_fields = {"global_workspace_access_settings": access, "global_workspace_access": access}
    extra_fields |= _derive_fields(row, await saved_integrations.last_reset_times(session, [row]))
    return row_to_struct(
        IntegrationDetail,
        row,
        **extra_fields,
        workspace_count=len(await saved_integrations.usable_workspace_ids(session, row)),
    )


routes = [
    create_integration,
    list_integrations,
    get_integration,
    update_integration,
    delete_integration,
    *_integration_models.routes,
    *_integration_workspaces.routes,
]
