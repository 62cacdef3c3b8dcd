"""Providers: integrations made usable in one workspace, where configs and requests name them `@slug`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import or_, select

from penstock.caller import needs
from penstock.kit import fields
from penstock.kit import providers as kit
from penstock.kit.desk import Desk, Work
from penstock.kit.fields import IdOrSlug, TagsAsked, WorkspaceAsked, tagged
from penstock.kit.integrations import PROVIDERS, usable
from penstock.kit.listing import Page
from penstock.kit.record import Created, Done, Listed, refuse, unknown, when
from penstock.store.tables import integrations, providers

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Providers"]


class NewProvider(kit.New, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider to be made."""

    integration_id: Annotated[str, Meta(description="id or slug of the integration")]
    tags: fields.Tags = msgspec.field(default_factory=dict[str, str])
    model_config: Annotated[
        dict[str, Any] | None, Meta(description="nothing but an empty one: the integration says it all")
    ] = None


class ProviderChange(kit.Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    tags: Annotated[dict[str, str] | UnsetType, Meta(description="they replace those of before")] = UNSET


class Provider(kit.Shown, frozen=True, kw_only=True):
    """One provider."""

    last_updated_at: fields.Changed
    object: fields.Object = "provider"


@post("/", status_code=200, guards=[needs("providers.create")], summary="Create provider", tags=TAGS)
async def create(data: JSONBody[NewProvider], work: NamedDependency[Work]) -> Created:
    """Make an integration usable in a workspace."""
    if data.model_config:
        # Whoever may choose the address is given the integration's credential there.
        raise refuse("model_config", "is that of the integration: change it there")
    async with work.writing(data.workspace_id) as desk:
        integration = await _integration(desk, data.integration_id)
        row = await kit.add(desk, PROVIDERS, data, integration["id"], data.tags)
        return Created(row["id"], row["slug"], "provider")


@get("/", guards=[needs("providers.list")], summary="List providers", tags=TAGS)
async def index(
    work: NamedDependency[Work],
    page: NamedDependency[Page],
    workspace_id: WorkspaceAsked = None,
    tags: TagsAsked = None,
) -> Listed[Provider]:
    """List providers."""
    async with work.reading(workspace_id) as desk:
        total, rows = await PROVIDERS.page(desk, page, tagged(providers, tags))
        return Listed(total, await _shown(desk, rows))


@get("/{key:str}", guards=[needs("providers.read")], summary="Get provider", tags=TAGS)
async def show(key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None) -> Provider:
    """Give a provider."""
    async with work.reading(workspace_id) as desk:
        return (await _shown(desk, [await PROVIDERS.get(desk, key)]))[0]


@put("/{key:str}", guards=[needs("providers.update")], summary="Update provider", tags=TAGS)
async def update(
    key: IdOrSlug, data: JSONBody[ProviderChange], work: NamedDependency[Work], workspace_id: WorkspaceAsked = None
) -> Created:
    """Change a provider; what is left out stays."""
    async with work.writing(workspace_id) as desk:
        row = await kit.change(desk, PROVIDERS, await PROVIDERS.get(desk, key), data)
        return Created(row["id"], row["slug"], "provider")


@delete("/{key:str}", status_code=200, guards=[needs("providers.delete")], summary="Delete provider", tags=TAGS)
async def remove(key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None) -> Done:
    """Delete a provider; its integration stays, unless a virtual key brought it along."""
    async with work.writing(workspace_id) as desk:
        await kit.remove(desk, PROVIDERS, key)
        return Done()


async def _integration(desk: Desk, key: str) -> Row:
    """Find an integration that may be used in this workspace."""
    named = or_(integrations.c.id == key, integrations.c.slug == key)
    query = select(integrations).where(named, usable(desk.workspace))
    row = await desk.organisation().first(query, integrations)
    if row is None:
        raise unknown("integration_id", f"{key!r} is no integration that may be used in this workspace")
    return row


async def _shown(desk: Desk, rows: list[Row]) -> list[Provider]:
    behind = await kit.behind(desk, rows)
    return [
        Provider(**kit.shown(row, behind[row["integration_id"]]), last_updated_at=when(row["last_updated_at"]))
        for row in rows
    ]


routes = [create, index, show, update, remove]
