"""Providers: integrations made usable in one workspace, where configs and requests name them `@slug`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from penstock.kit import providers as kit
from penstock.kit import shared_fields
from penstock.kit.integrations import PROVIDERS, usable
from penstock.schemas import Created, refuse
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Desk

SIDE = kit.Side(PROVIDERS, "provider", ["Providers"])


class NewProvider(kit.New, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider to be made."""

    integration_id: Annotated[str, Meta(description="id or slug of the integration")]
    tags: shared_fields.Tags = msgspec.field(default_factory=dict[str, str])
    model_config: Annotated[
        dict[str, Any] | None, Meta(description="nothing but an empty one: the integration says it all")
    ] = None


class ProviderChange(kit.Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    tags: shared_fields.MaybeTags = UNSET


class Provider(kit.Shown, frozen=True, kw_only=True):
    """One provider."""

    last_updated_at: shared_fields.Changed
    object: shared_fields.Object = "provider"


async def create(desk: Desk, data: NewProvider) -> Created:
    """Make an integration usable in a workspace."""
    if data.model_config:
        # Whoever may choose the address is given the integration's credential there.
        raise refuse("model_config", "is that of the integration: change it there")
    words = "integration that may be used in this workspace"
    # What a virtual key brought along is its own: a second name for the same credential would have other limits.
    may = [usable(desk.workspace), ~integrations.c.brought_along]
    integration = await desk.organisation().refer("integration_id", integrations, data.integration_id, words, *may)
    row = await SIDE.add(desk, data, integration["id"], data.tags)
    return Created(row["id"], row["slug"], "provider")


routes = [
    SIDE.create(NewProvider, Created, create),
    *SIDE.reads(Provider),
    SIDE.update(ProviderChange, Created, SIDE.change),
    SIDE.remove(SIDE.leave),
]
