"""Providers and virtual keys: the same rows seen from two sides; what both are told, and what both answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock.kit import fields, integrations, limits
from penstock.kit.fields import UNSET
from penstock.kit.ids import new_id
from penstock.kit.limits import Limited
from penstock.kit.record import given, moment, now, when
from penstock.store.tables import integrations as integration_rows

if TYPE_CHECKING:
    from penstock.kit.desk import Desk
    from penstock.kit.resource import Resource
    from penstock.store.tenant import Row

PLAIN = ("name", "note", "tags")


class New(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one is made with."""

    name: fields.Name
    workspace_id: fields.Workspace = None
    slug: fields.OwnSlug = None
    note: fields.Note = None


class Change(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be changed of one; what is left out stays."""

    name: fields.MaybeName = UNSET
    note: fields.MaybeNote = UNSET
    reset_usage: Annotated[bool, Meta(description="begin counting anew now")] = False


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered of one."""

    id: fields.Id
    slug: fields.Slug
    name: fields.Name
    note: fields.Note
    integration_id: Annotated[str, Meta(description="slug of the integration behind it")]
    ai_provider_name: Annotated[str, Meta(description="name of the provider as the engine knows it")]
    model_config: Annotated[dict[str, Any], Meta(description="more about the provider")]
    organisation_id: fields.Organisation
    workspace_id: Annotated[str, Meta(description="id of its workspace")]
    status: Annotated[str, Meta(description="`active`, `exhausted` or `expired`")]
    usage_limits: Annotated[dict[str, Any] | None, Meta(description="usage limits")]
    rate_limits: Annotated[list[dict[str, Any]] | None, Meta(description="rate limits")]
    reset_usage: Annotated[int | None, Meta(description="always null; to reset is a write")] = None
    last_reset_at: fields.MomentOrNone
    expires_at: fields.MomentOrNone
    tags: fields.Tags
    created_at: fields.Moment


async def add(desk: Desk, resource: Resource, data: New, integration_id: str, tags: dict[str, str]) -> Row:
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
    return await resource.add(desk, values)


async def change(desk: Desk, resource: Resource, row: Row, data: Change) -> Row:
    """Change one."""
    values = {name: value for name, value in given(data).items() if name in PLAIN}
    if data.reset_usage:
        values["last_reset_at"] = now()
    return await resource.change(desk, row, {**values, **limits.sent(data)})


async def remove(desk: Desk, resource: Resource, key: str) -> None:
    """Remove one; its integration stays, unless a virtual key brought it along."""
    row = await resource.get(desk, key)
    await resource.remove(desk, row)
    await integrations.release(desk, row["integration_id"])


async def behind(desk: Desk, rows: list[Row]) -> dict[str, Row]:
    """Give the integrations behind some rows, by id."""
    wanted = integration_rows.c.id.in_({row["integration_id"] for row in rows})
    found = await desk.organisation().rows(select(integration_rows).where(wanted), integration_rows)
    return {row["id"]: row for row in found}


def shown(row: Row, integration: Row) -> dict[str, Any]:
    """Write down what both answer."""
    expired = row["expires_at"] is not None and row["expires_at"] <= now()
    same = ("id", "slug", "name", "note", "organisation_id", "workspace_id", "usage_limits", "rate_limits", "tags")
    return {
        **{name: row[name] for name in same},
        "integration_id": integration["slug"],
        "ai_provider_name": integration["ai_provider_id"],
        "model_config": integration["configurations"],
        "status": "expired" if expired else row["status"],
        "last_reset_at": moment(row["last_reset_at"]),
        "expires_at": moment(row["expires_at"]),
        "created_at": when(row["created_at"]),
    }
