"""Warnings about missing saved providers that a config or a prompt names. The object is saved nevertheless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock import config_references
from penstock.store.tables import providers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kit.tenant_session import TenantSession


class MissingProvider(msgspec.Struct, frozen=True):
    """A part of the object that will fail when a request uses it."""

    path: Annotated[str, Meta(description="JSON path, such as `config.targets[0].provider`")]
    message: Annotated[str, Meta(description="why it will fail")]


WarningsField = Annotated[
    list[MissingProvider] | UnsetType,
    Meta(description="parts that will fail, such as a provider that does not exist yet"),
]


async def find_missing_providers(
    session: TenantSession, workspace_id: str, document: Mapping[str, Any], path: str = ""
) -> list[MissingProvider] | UnsetType:
    """Returns a warning for each saved provider that a document names and that its workspace does not have; UNSET if
    there is none. `path` is the path of the document in the request.
    """
    provider = next(config_references.iter_providers(dict(document), path), None)
    if provider is None:
        return UNSET
    query = select(providers.c.id, providers.c.slug).where(providers.c.workspace_id == workspace_id)
    rows = await session.organisation().fetch_rows(query, providers)
    existing = {text for row in rows for text in (row["id"], row["slug"])} | session.file_provider_slugs()
    missing = config_references.find_missing(dict(document), path, existing, "in this workspace")
    return [MissingProvider(item.path.removeprefix("."), item.message) for item in missing] or UNSET
