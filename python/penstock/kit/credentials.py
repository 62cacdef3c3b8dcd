"""Integrations as rows: which provider, with which credential, at which address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import engine
from penstock.kit.ids import mask, new_id, slug, slugify
from penstock.kit.record import refuse
from penstock.kit.resource import Resource
from penstock.store.tables import integrations, providers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kit.desk import Desk
    from penstock.store.tenant import Row

INTEGRATIONS = Resource("integrations", integrations, publishes=True)
LONGEST_HOST = 2048


def check_provider(path: str, name: str) -> None:
    """Refuse a provider that the engine does not know."""
    known = sorted(provider["slug"] for provider in engine.catalogue())
    if name not in known:
        raise refuse(path, f"{name!r} is not known; allowed: {', '.join(known)}")


def check_configurations(path: str, given: Mapping[str, Any]) -> None:
    """Refuse an address that is none."""
    host = given.get("custom_host")
    if host is not None and (
        not isinstance(host, str) or not host.startswith(("http://", "https://")) or len(host) > LONGEST_HOST
    ):
        raise refuse(
            f"{path}.custom_host", f"must be a URL with http:// or https://, at most {LONGEST_HOST} characters"
        )


async def connect(
    desk: Desk, *, name: str, provider: str, key: str, configurations: Mapping[str, Any], workspace_id: str | None
) -> Row:
    """Make an integration with its credential."""
    own_id = new_id()
    return await INTEGRATIONS.add(
        desk,
        {
            "id": own_id,
            "workspace_id": workspace_id,
            "slug": slug("", name, 40),
            "name": name,
            "description": None,
            "ai_provider_id": provider,
            "status": "active",
            "brought_along": True,
            "configurations": dict(configurations),
            "secret_mappings": [],
            **await sealed(desk, own_id, key),
        },
    )


async def sealed(desk: Desk, integration_id: str, key: str) -> dict[str, Any]:
    """Seal a credential; an empty one is none."""
    if not key:
        return {"sealed_key": None, "masked_key": None}
    if not key.isprintable():
        raise refuse("key", "must not hold control characters")
    return {"sealed_key": await desk.seal(key, integration_id), "masked_key": mask(key)}


async def replaced(desk: Desk, row: Row, key: str) -> dict[str, Any]:
    """Seal another credential; the masked form sent back means that it stays."""
    return {} if key == row["masked_key"] else await sealed(desk, row["id"], key)


async def release(desk: Desk, integration_id: str) -> None:
    """Let go of an integration: one that a virtual key brought along goes when nothing uses it any more."""
    row = await desk.find(integrations, integration_id)
    if row and row["brought_along"] and not await desk.count(providers, [providers.c.integration_id == row["id"]]):
        await INTEGRATIONS.remove(desk, row)


async def free_slug(desk: Desk, name: str) -> str:
    """Make a slug of a name for a provider, one that is free in its workspace."""
    wanted = slugify(name)[:200] or "key"
    taken = await desk.count(providers, [providers.c.slug == wanted])
    return slug("", wanted, 200) if taken else wanted
