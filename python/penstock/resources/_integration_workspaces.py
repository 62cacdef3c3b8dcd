"""Workspaces of an integration: the part of its paths that begins at `/workspaces`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from msgspec.structs import replace
from sqlalchemy import select

from penstock.kit import integration_access
from penstock.kit import integrations as kit
from penstock.kit.integration_access import Enabled, GlobalAccess, GlobalAccessShown
from penstock.kit.integrations import ProviderSlug
from penstock.kit.limits import ManyUsageShown, RatesShown, Shared, sent_of, single
from penstock.kit.shared_fields import Changed, IdOrSlug, Moment, MomentOrNone, Object, Reset
from penstock.kit.tenant_session import Desk, Work
from penstock.schemas import Done, now, refuse, write_out
from penstock.store.tables import integration_workspaces, workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Integrations > Workspaces"]
MOST = 1000


class AccessGiven(Shared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one workspace may do."""

    id: Annotated[str, Meta(description="id or slug of the workspace")]
    enabled: Enabled
    reset_usage: Reset = False
    create_default_provider: Annotated[
        bool | None, Meta(description="make a provider of it there; default: what is said for all")
    ] = None
    default_provider_slug: ProviderSlug = None


class Accesses(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What workspaces may do."""

    workspaces: Annotated[list[AccessGiven], Meta(max_length=MOST, description="of single ones")] = []
    global_workspace_access: Annotated[
        GlobalAccess | None, Meta(description="of all of which nothing else is said")
    ] = None
    override_existing_workspace_access: Annotated[
        bool, Meta(description="forget what was said of single ones before")
    ] = False
    override_existing_workspaces_access: Annotated[bool, Meta(description="the same, as some clients spell it")] = False
    create_default_provider: Annotated[bool, Meta(description="make a provider of it where it may be used")] = True
    default_provider_slug: ProviderSlug = None


class AccessShown(msgspec.Struct, frozen=True, kw_only=True):
    """What one workspace may do."""

    id: Annotated[str, Meta(description="slug of the workspace")]
    workspace_id: Annotated[str, Meta(description="id of the workspace")]
    name: Annotated[str, Meta(description="name of the workspace")]
    enabled: Enabled
    usage_limits: ManyUsageShown
    rate_limits: RatesShown
    last_reset_at: MomentOrNone
    created_at: Moment
    last_updated_at: Changed


class AccessesShown(msgspec.Struct, frozen=True, kw_only=True):
    """What workspaces may do."""

    total: Annotated[int, Meta(description="how many there are of which something is said")]
    workspaces: Annotated[list[AccessShown], Meta(description="those of which something is said")]
    data: Annotated[list[AccessShown], Meta(description="the same")]
    global_workspace_access: Annotated[GlobalAccessShown, Meta(description="what all others may do")]
    object: Object = "list"


@get(
    "/{key:str}/workspaces",
    guards=[kit.either("read")],
    summary="List workspaces of an integration",
    tags=TAGS,
)
async def index(key: IdOrSlug, work: NamedDependency[Work]) -> AccessesShown:
    """List the workspaces of which something is said; who is inside one sees that one."""
    async with work.reading() as desk:
        row = await kit.get(desk, key, "read")
        named = [workspaces.c.slug.label("workspace_slug"), workspaces.c.name.label("workspace_name")]
        query = select(integration_workspaces, *named).join(
            workspaces, workspaces.c.id == integration_workspaces.c.workspace_id
        )
        query = query.where(integration_workspaces.c.integration_id == row["id"])
        found = await desk.rows(query.order_by(integration_workspaces.c.id), integration_workspaces)
        shown = [_shown(one) for one in found]
        if await desk.reads_single_limits():
            names = ("usage_limits", "rate_limits")
            shown = [replace(one, **{name: single(getattr(one, name)) for name in names}) for one in shown]
        return AccessesShown(
            total=len(shown), workspaces=shown, data=shown, global_workspace_access=integration_access.shown(row)
        )


@put(
    "/{key:str}/workspaces",
    guards=[kit.either("update")],
    summary="Update workspaces of an integration",
    tags=TAGS,
)
async def update(key: IdOrSlug, data: JSONBody[Accesses], work: NamedDependency[Work]) -> Done:
    """Say which workspaces may use an integration of the organisation, and how much; they get a provider of it."""
    async with work.writing() as desk:
        row = await kit.get(desk, key, "update")
        await kit.touch(desk, row)
        if row["workspace_id"]:
            raise refuse("", "this integration is one workspace's own: it is given to no other")
        before = await _said(desk, row)
        if data.override_existing_workspace_access or data.override_existing_workspaces_access:
            await _forget(desk, row)
        if data.global_workspace_access is not None:
            provides = data.create_default_provider
            written = integration_access.written(data.global_workspace_access, row["global_access"], provides=provides)
            row = await kit.INTEGRATIONS.change(desk.organisation(), row, {"global_access": written})
        meant: set[str] = set()
        for number, given in enumerate(data.workspaces):
            # A workspace that was archived meanwhile is taken back as it stands, and not opened.
            kept = [place for place, said in before.items() if said["enabled"] or not given.enabled]
            path = f"workspaces[{number}]"
            workspace = await desk.organisation().refer_to_workspace(f"{path}.id", given.id, kept)
            await _put(desk, row, path, given, workspace["id"], before.get(workspace["id"]))
            meant.add(workspace["id"])
            if given.enabled and workspace["status"] == "active":
                await _provide(desk, row, given, data, workspace["id"])
        if data.global_workspace_access and data.global_workspace_access.enabled and data.create_default_provider:
            usable = await kit.workspaces_of(desk, row)
            slug = data.default_provider_slug or row["default_provider_slug"]
            await kit.provide(desk, row, [one for one in usable if one not in meant], slug)
        return Done()


async def _said(desk: Desk, row: Row) -> dict[str, Row]:
    """Give what is said of single workspaces, by their ids."""
    here = select(integration_workspaces).where(integration_workspaces.c.integration_id == row["id"])
    return {said["workspace_id"]: said for said in await desk.organisation().rows(here, integration_workspaces)}


async def _put(desk: Desk, row: Row, path: str, given: AccessGiven, workspace_id: str, before: Row | None) -> None:
    limited = sent_of(given, f"{path}.", rates_at_most=1, before=before)
    values: dict[str, Any] = {"enabled": given.enabled, **limited}
    if given.reset_usage:
        values["last_reset_at"] = now()
    await kit.allow(desk, row, workspace_id, values)


async def _provide(desk: Desk, row: Row, given: AccessGiven, data: Accesses, workspace_id: str) -> None:
    provides = data.create_default_provider if given.create_default_provider is None else given.create_default_provider
    if provides:
        slug = given.default_provider_slug or data.default_provider_slug or row["default_provider_slug"]
        await kit.provide(desk, row, [workspace_id], slug)


async def _forget(desk: Desk, row: Row) -> None:
    await kit.WORKSPACES.remove_all(desk.organisation(), integration_workspaces.c.integration_id == row["id"])


def _shown(row: Row) -> AccessShown:
    return write_out(AccessShown, row, id=row["workspace_slug"], name=row["workspace_name"])


routes = [index, update]
