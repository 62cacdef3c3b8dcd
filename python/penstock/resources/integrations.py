"""Integrations: a provider's credential kept for an organisation or one workspace, where providers and virtual keys stand on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from penstock.ids import new_id
from penstock.kit import integrations as kit
from penstock.kit import provider_options as forms
from penstock.kit import shared_fields
from penstock.kit.integration_access import GlobalAccessShown
from penstock.kit.integration_access import shown as access_shown
from penstock.kit.integrations import ProviderSlug
from penstock.kit.listing import Page
from penstock.kit.shared_fields import UNSET, IdOrSlug, TagsAsked, UnsetType, WorkspaceAsked, tagged
from penstock.kit.tenant_session import Desk, Work
from penstock.pricing.wire_format import Adjustments
from penstock.resources import _integration_models, _integration_workspaces
from penstock.schemas import Created, Done, Listed, given, moment, write_out
from penstock.secrets import mappings
from penstock.secrets.mappings import SecretMapping
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

TAGS = ["Integrations"]

Configurations = Annotated[
    dict[str, Any], Meta(description=f"more about the provider, which says what there is; {forms.described()}")
]
Mappings = Annotated[list[SecretMapping], Meta(description="fields whose values are kept elsewhere")]
Credential = Annotated[str, Meta(max_length=65536)]


class NewIntegration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An integration to be made."""

    name: shared_fields.Name
    ai_provider_id: Annotated[str, Meta(description="name of the provider")]
    slug: shared_fields.OwnSlug = None
    key: Annotated[Credential, Meta(description="the provider's key")] = ""
    description: shared_fields.Note = None
    workspace_id: shared_fields.Workspace = None
    configurations: Configurations = {}
    create_default_provider: Annotated[bool, Meta(description="make a provider of it where it may be used")] = True
    default_provider_slug: ProviderSlug = None
    secret_mappings: Mappings = []
    pricing_adjustments: Annotated[Adjustments | None, Meta(description="factors of its prices")] = None
    tags: shared_fields.Tags = {}


class IntegrationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    key: Annotated[Credential | UnsetType, Meta(description="another key; the masked form means the same one")] = UNSET
    description: shared_fields.MaybeNote = UNSET
    configurations: Annotated[
        dict[str, Any] | UnsetType, Meta(description="they replace those of before; masked values mean the same ones")
    ] = UNSET
    secret_mappings: Annotated[list[SecretMapping] | UnsetType, Meta(description="they replace those of before")] = (
        UNSET
    )
    pricing_adjustments: Annotated[
        Adjustments | UnsetType | None, Meta(description="factors of its prices; null takes them away")
    ] = UNSET
    tags: shared_fields.MaybeTags = UNSET


class IntegrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One integration of a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    description: shared_fields.Note
    ai_provider_id: Annotated[str, Meta(description="name of the provider")]
    organisation_id: shared_fields.Organisation
    workspace_id: Annotated[str | None, Meta(description="id of the workspace whose own it is")]
    status: shared_fields.Kept
    type: Annotated[str, Meta(description="`workspace` or `organisation`")]
    owner_id: shared_fields.Maker
    masked_key: Annotated[str | None, Meta(description="both ends of the key")]
    configurations: Configurations
    tags: shared_fields.Tags
    created_at: shared_fields.Moment
    last_updated_at: shared_fields.Changed
    last_reset_at: Annotated[
        str | None, Meta(description="when what a workspace uses of it was last counted anew by `reset_usage`")
    ]
    object: shared_fields.Object = "integration"


class Integration(IntegrationRow, frozen=True, kw_only=True):
    """One integration."""

    global_workspace_access_settings: Annotated[
        GlobalAccessShown, Meta(description="what all workspaces may do with it")
    ]
    global_workspace_access: Annotated[GlobalAccessShown, Meta(description="the same")]
    allow_all_models: Annotated[bool, Meta(description="whether models may be used of which nothing is said")]
    workspace_count: Annotated[int, Meta(description="how many workspaces may use it")]
    secret_mappings: Annotated[list[SecretMapping], Meta(description="fields whose values are kept elsewhere")]
    pricing_adjustments: Annotated[Adjustments | None, Meta(description="factors of its prices")]


Kind = Annotated[
    Literal["workspace", "organisation", "all"],
    QueryParameter(name="type", description="those of a workspace, of the organisation, or both"),
]


@post(
    "/",
    status_code=200,
    guards=[kit.either("create")],
    summary="Create integration",
    tags=TAGS,
)
async def create(data: JSONBody[NewIntegration], work: NamedDependency[Work]) -> Created:
    """Keep a provider's credential, for one workspace or for the organisation; there it is open to whom it is given."""
    provider = kit.provider_named("ai_provider_id", data.ai_provider_id)
    async with work.writing(data.workspace_id) as desk:
        own = desk.workspace_id
        desk.require(kit.scope(own, "create"))
        listed = await mappings.checked(desk, data.secret_mappings, own, forms.names(provider))
        forms.check("configurations", provider, data.configurations, mappings.fields(listed))
        row_id = new_id()
        values = {
            "workspace_id": own,
            "slug": data.slug or await desk.new_slug(integrations, "", data.name, 40),
            "name": data.name,
            "description": data.description,
            "ai_provider_id": provider,
            "secret_mappings": listed,
            "pricing_adjustments": msgspec.to_builtins(data.pricing_adjustments),
            "tags": data.tags,
            "default_provider_slug": data.default_provider_slug,
            **await kit.sealed_key(desk, row_id, data.key),
            **await kit.sealed_configurations(desk, row_id, "configurations", data.configurations),
        }
        await kit.refuse_given_away(desk, values)
        row = await kit.add(desk, row_id, values)
        if data.create_default_provider and own:
            await kit.provide(desk, row, [own], data.default_provider_slug)
        return Created(row["id"], row["slug"], "integration")


@get("/", guards=[kit.either("list")], summary="List integrations", tags=TAGS)
async def index(
    work: NamedDependency[Work],
    page: NamedDependency[Page],
    workspace_id: WorkspaceAsked = None,
    kind: Kind = "all",
    tags: TagsAsked = None,
) -> Listed[IntegrationRow]:
    """List the integrations that are open here: the workspace's own, and those of the organisation that it may use."""
    async with work.reading(workspace_id) as desk:
        conditions = [*kit.visible(desk.places), ~integrations.c.brought_along, *tagged(integrations, tags)]
        if kind != "all":
            is_own = integrations.c.workspace_id.is_not(None)
            conditions.append(is_own if kind == "workspace" else ~is_own)
        total, rows = await kit.INTEGRATIONS.page(desk.organisation(), page, conditions)
        resets = await kit.last_resets(desk, rows)
        return Listed(total, [write_out(IntegrationRow, row, **_said(row, resets)) for row in rows])


@get("/{key:str}", guards=[kit.either("read")], summary="Get integration", tags=TAGS)
async def show(key: IdOrSlug, work: NamedDependency[Work]) -> Integration:
    """Give an integration, its credentials masked."""
    async with work.reading() as desk:
        return await _shown(desk, await kit.get(desk, key, "read"))


@put("/{key:str}", guards=[kit.either("update")], summary="Update integration", tags=TAGS)
async def update(key: IdOrSlug, data: JSONBody[IntegrationChange], work: NamedDependency[Work]) -> Done:
    """Change an integration; what is left out stays, and so do credentials that come back masked: but not at another address."""
    async with work.writing() as desk:
        row = await kit.get(desk, key, "update")
        values = {name: value for name, value in given(data).items() if name in {"name", "description", "tags"}}
        if data.secret_mappings is not UNSET:
            known = forms.names(row["ai_provider_id"])
            values["secret_mappings"] = await mappings.checked(
                desk, data.secret_mappings, row["workspace_id"], known, row["secret_mappings"]
            )
        mapped = mappings.fields(values.get("secret_mappings", row["secret_mappings"]))
        if data.configurations is not UNSET or data.secret_mappings is not UNSET:
            said = data.configurations
            if said is UNSET:
                # What is no longer kept elsewhere may be what these cannot do without.
                said = {**row["configurations"], **await kit.opened(desk, row)}
            forms.check("configurations", row["ai_provider_id"], said, mapped)
        if data.configurations is not UNSET:
            values |= await kit.sealed_configurations(desk, row["id"], "configurations", data.configurations, row)
        if data.key is not UNSET:
            values |= await kit.sealed_key(desk, row["id"], data.key, row)
        await kit.refuse_moved(desk, row, values, "configurations")
        if data.pricing_adjustments is not UNSET:
            values["pricing_adjustments"] = msgspec.to_builtins(data.pricing_adjustments)
        await kit.INTEGRATIONS.change(desk.organisation(), row, values)
        return Done()


@delete(
    "/{key:str}",
    status_code=200,
    guards=[kit.either("delete")],
    summary="Delete integration",
    tags=TAGS,
)
async def remove(key: IdOrSlug, work: NamedDependency[Work]) -> Done:
    """Delete an integration, its credential, and the providers that stand on it."""
    async with work.writing() as desk:
        await kit.remove(desk, await kit.get(desk, key, "delete"))
        return Done()


def _said(row: Row, resets: Mapping[str, int]) -> dict[str, Any]:
    kind = "workspace" if row["workspace_id"] else "organisation"
    return {"type": kind, "last_reset_at": moment(resets.get(row["id"]))}


async def _shown(desk: Desk, row: Row) -> Integration:
    access = access_shown(row)
    said = {"global_workspace_access_settings": access, "global_workspace_access": access}
    said |= _said(row, await kit.last_resets(desk, [row]))
    return write_out(Integration, row, **said, workspace_count=len(await kit.workspaces_of(desk, row)))


routes = [create, index, show, update, remove, *_integration_models.routes, *_integration_workspaces.routes]
