"""Providers: integrations made usable in one workspace, where configs and requests name them `@slug`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.caller import needs
from penstock.kit import integrations as kit
from penstock.kit import limits
from penstock.kit.desk import Desk, Work
from penstock.kit.fields import (
    UNSET,
    Changed,
    Id,
    IdOrSlug,
    MaybeName,
    MaybeNote,
    Moment,
    MomentOrNone,
    Name,
    Note,
    Object,
    Organisation,
    OwnSlug,
    Slug,
    Tags,
    TagsAsked,
    UnsetType,
    WorkspaceAsked,
    tagged,
)
from penstock.kit.fields import Workspace as WorkspaceGiven
from penstock.kit.integrations import PROVIDERS
from penstock.kit.limits import Limited
from penstock.kit.listing import Page
from penstock.kit.record import Created, Done, Listed, given, moment, now, unknown, when
from penstock.store.tables import integrations, providers

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Providers"]


class NewProvider(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider to be made."""

    name: Name
    integration_id: Annotated[str, Meta(description="id or slug of the integration")]
    workspace_id: WorkspaceGiven = None
    slug: OwnSlug = None
    note: Note = None
    tags: Tags = msgspec.field(default_factory=dict[str, str])


class ProviderChange(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: MaybeName = UNSET
    note: MaybeNote = UNSET
    reset_usage: Annotated[bool, Meta(description="begin counting anew now")] = False
    tags: Annotated[dict[str, str] | UnsetType, Meta(description="they replace those of before")] = UNSET


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider."""

    id: Id
    slug: Slug
    name: Name
    note: Note
    integration_id: Annotated[str, Meta(description="slug of its integration")]
    ai_provider_name: Annotated[str, Meta(description="name of the provider as the engine knows it")]
    model_config: Annotated[dict[str, Any], Meta(description="more about the provider")]
    organisation_id: Organisation
    workspace_id: Annotated[str, Meta(description="id of its workspace")]
    status: Annotated[str, Meta(description="`active`, `exhausted` or `expired`")]
    usage_limits: Annotated[dict[str, Any] | None, Meta(description="usage limits")]
    rate_limits: Annotated[list[dict[str, Any]] | None, Meta(description="rate limits")]
    reset_usage: Annotated[int | None, Meta(description="always null; to reset is a write")] = None
    last_reset_at: MomentOrNone
    expires_at: MomentOrNone
    tags: Tags
    created_at: Moment
    last_updated_at: Changed
    object: Object = "provider"


@post("/", status_code=200, guards=[needs("providers.create")], summary="Create provider", tags=TAGS)
async def create(data: JSONBody[NewProvider], work: NamedDependency[Work]) -> Created:
    """Make an integration usable in a workspace."""
    async with work.writing(data.workspace_id) as desk:
        integration = await _integration(desk, data.integration_id)
        row = await PROVIDERS.add(
            desk,
            {
                "workspace_id": desk.workspace,
                "integration_id": integration["id"],
                "slug": data.slug or await kit.free_slug(desk, data.name),
                "name": data.name,
                "note": data.note,
                "status": "active",
                "tags": data.tags,
                **limits.sent(data),
            },
        )
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
        values = {name: value for name, value in given(data).items() if name in {"name", "note", "tags"}}
        if data.reset_usage:
            values["last_reset_at"] = now()
        row = await PROVIDERS.change(desk, await PROVIDERS.get(desk, key), {**values, **limits.sent(data)})
        return Created(row["id"], row["slug"], "provider")


@delete("/{key:str}", status_code=200, guards=[needs("providers.delete")], summary="Delete provider", tags=TAGS)
async def remove(key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None) -> Done:
    """Delete a provider; its integration stays, unless a virtual key brought it along."""
    async with work.writing(workspace_id) as desk:
        row = await PROVIDERS.get(desk, key)
        await PROVIDERS.remove(desk, row)
        await kit.release(desk, row["integration_id"])
        return Done()


async def _integration(desk: Desk, key: str) -> Row:
    """Find an integration that may be used in this workspace."""
    named = or_(integrations.c.id == key, integrations.c.slug == key)
    usable = kit.usable(desk.workspace)
    row = await desk.organisation().first(select(integrations).where(named, usable), integrations)
    if row is None:
        raise unknown("integration_id", f"{key!r} is no integration that may be used in this workspace")
    return row


async def _shown(desk: Desk, rows: list[Row]) -> list[Provider]:
    own = select(integrations).where(integrations.c.id.in_({row["integration_id"] for row in rows}))
    behind = {found["id"]: found for found in await desk.organisation().rows(own, integrations)}
    return [_one(row, behind[row["integration_id"]]) for row in rows]


def _one(row: Row, integration: Row) -> Provider:
    expired = row["expires_at"] is not None and row["expires_at"] <= now()
    same = ("id", "slug", "name", "note", "organisation_id", "workspace_id", "usage_limits", "rate_limits", "tags")
    return Provider(
        **{name: row[name] for name in same},
        integration_id=integration["slug"],
        ai_provider_name=integration["ai_provider_id"],
        model_config=integration["configurations"],
        status="expired" if expired else row["status"],
        last_reset_at=moment(row["last_reset_at"]),
        expires_at=moment(row["expires_at"]),
        created_at=when(row["created_at"]),
        last_updated_at=when(row["last_updated_at"]),
    )


routes = [create, index, show, update, remove]
