"""Providers and virtual keys: the same rows seen from two sides; what both are told, do and answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock.ids import new_id
from penstock.kit import integrations, limits, shared_fields
from penstock.kit.crud_routes import Verbs, Wanted
from penstock.kit.limits import Limited, LimitsChange
from penstock.kit.shared_fields import UNSET, TagsAsked, WorkspaceAsked, tagged
from penstock.schemas import Created, given, life, write_out
from penstock.store.tables import integrations as integration_rows
from penstock.store.tables import providers, workspaces

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

PLAIN = ("name", "note", "tags")


class New(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one is made with."""

    name: shared_fields.Name
    workspace_id: shared_fields.Workspace = None
    slug: shared_fields.OwnSlug = None
    note: shared_fields.Note = None


class Change(LimitsChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be changed of one; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    note: shared_fields.MaybeNote = UNSET


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered of one."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    note: shared_fields.Note
    integration_id: Annotated[str, Meta(description="slug of the integration behind it")]
    ai_provider_name: Annotated[str, Meta(description="name of the provider as the engine knows it")]
    model_config: Annotated[dict[str, Any], Meta(description="more about the provider")]
    organisation_id: shared_fields.Organisation
    workspace_id: shared_fields.Home
    status: shared_fields.Life
    usage_limits: limits.UsageShown
    rate_limits: limits.RatesShown
    reset_usage: shared_fields.ResetShown = None
    last_reset_at: shared_fields.MomentOrNone
    expires_at: shared_fields.MomentOrNone
    tags: shared_fields.Tags
    created_at: shared_fields.Moment


def asked(workspace_id: WorkspaceAsked = None, tags: TagsAsked = None) -> Wanted:
    """List what is in a workspace, or in all; of that what has some tags."""
    return Wanted(workspace_id, tagged(providers, tags))


class Side(Verbs):
    """The rows as one of the two."""

    async def add(self, desk: Desk, data: New, integration_id: str, tags: dict[str, str]) -> Row:
        """Make one of an integration."""
        values = {
            "id": new_id(),
            "workspace_id": desk.workspace,
            "integration_id": integration_id,
            "slug": data.slug or await integrations.free_slug(desk, integrations.rooted(data.name)),
            "name": data.name,
            "note": data.note,
            "status": "active",
            "tags": tags,
            **limits.sent(data),
        }
        return await self.resource.add(desk, values)

    async def change(self, desk: Desk, row: Row, data: Change) -> Created:
        """Change one; what is left out stays."""
        values = {name: value for name, value in given(data).items() if name in PLAIN}
        await self.resource.change(desk, row, {**values, **limits.sent(data, before=row)})
        return Created(row["id"], row["slug"], self.kind)

    async def leave(self, desk: Desk, row: Row) -> None:
        """Delete one; its integration and credential stay, unless a virtual key brought them along."""
        await self.resource.remove(desk, row)
        await integrations.release(desk, row["integration_id"])

    def reads(self, shown: type[Shown]) -> list[Any]:
        """Make the routes that list them and give one."""

        async def showing(desk: Desk, rows: list[Row]) -> list[Shown]:
            behind = await desk.organisation().find_all(integration_rows, {row["integration_id"] for row in rows})
            is_placed = "workspace_name" in shown.__struct_fields__
            places = await desk.find_all(workspaces, {row["workspace_id"] for row in rows}) if is_placed else {}
            return [_shown(shown, row, behind[row["integration_id"]], places.get(row["workspace_id"])) for row in rows]

        async def listing(desk: Desk, rows: list[Row]) -> list[Shown]:
            found = await showing(desk, rows)
            if not await desk.reads_single_limits():
                return found
            return [msgspec.structs.replace(one, rate_limits=limits.single(one.rate_limits)) for one in found]

        return [self.index(shown, listing, asked), self.show(shown, showing)]


def _shown(shown: type[Shown], row: Row, integration: Row, workspace: Row | None) -> Shown:
    said = {
        "integration_id": integration["slug"],
        "ai_provider_name": integration["ai_provider_id"],
        "provider": integration["ai_provider_id"],
        "model_config": integration["configurations"],
        "masked_api_key": integration["masked_key"],
        "secret_mappings": integration["secret_mappings"],
        "workspace_name": workspace["name"] if workspace else "",
        "status": life(row),
    }
    return write_out(shown, row, **{name: value for name, value in said.items() if name in shown.__struct_fields__})
