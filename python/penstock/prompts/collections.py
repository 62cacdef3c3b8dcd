"""Collections of prompts: a tree of folders in each workspace, one of which is the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import func, select

from penstock.errors import ConflictError, Problem
from penstock.kit.resource import Resource
from penstock.schemas import format_timestamp, unknown_reference_error
from penstock.store.prompt_tables import collections, prompt_partials, prompts
from penstock.store.tenant import select_by_id_or_slug

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Column, Table

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

COLLECTIONS = Resource("collections", collections)
# Maximum depth of the tree, and maximum number of collections of a workspace.
MAX_DEPTH, MAX_COLLECTIONS = 8, 1000


class CollectionContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection contains directly, without the contents of the collections in it."""

    child_collections_count: Annotated[int, Meta(description="number of collections in it")]
    prompts_count: Annotated[int, Meta(description="number of prompts in it")]
    child_collections_last_updated_at: Annotated[
        str | None, Meta(description="time of the last change of a collection in it")
    ]
    prompts_last_updated_at: Annotated[str | None, Meta(description="time of the last change of a prompt in it")]


async def resolve_collection(session: TenantSession, path: str, key: str | None, workspace_id: str) -> Row:
    """Returns the collection that a field of the body names by id or slug; the default one of the workspace if it names
    none.
    """
    inside = collections.c.workspace_id == workspace_id
    if key is None:
        query = select(collections).where(collections.c.is_default, inside)
    else:
        query = select_by_id_or_slug(collections, key).where(inside)
    row = await session.organisation().fetch_first(query, collections)
    if row is None:
        message = "the default collection is missing" if key is None else f"{key!r} is no collection of this workspace"
        raise unknown_reference_error(path, message)
    return row


async def find_parent_collection(session: TenantSession, path: str, key: str | None) -> Row:
    """Returns the collection of a new object: the one named in the body, or else the default one of the session's
    workspace. If the caller has several workspaces, the collection decides which one the session uses.
    """
    if key is None:
        return await resolve_collection(session, path, None, session.required_workspace_id)
    scope = "workspace" if session.workspace_id else "organisation"
    row = await session.find(collections, key)
    if row is None:
        raise unknown_reference_error(path, f"{key!r} is no collection of this {scope}")
    session.narrow_to_workspace(row)
    return row


async def check_new_parent(session: TenantSession, parent: Row) -> None:
    """Raises ConflictError if a collection in `parent` would be nested too deep."""
    depth, above = 1, parent
    while above["parent_collection_id"] is not None and depth < MAX_DEPTH:
        above = await COLLECTIONS.get(session.organisation(), above["parent_collection_id"])
        depth += 1
    if depth >= MAX_DEPTH:
        reason = f"{parent['slug']!r} is on level {MAX_DEPTH}; collections may be nested {MAX_DEPTH} levels deep"
        raise ConflictError(f"parent_collection_id {reason}", [Problem("parent_collection_id", reason)])


async def reject_too_many(session: TenantSession, workspace_id: str) -> None:
    """Raises ConflictError if the workspace already has `MAX_COLLECTIONS` collections."""
    count = await session.organisation().count(collections, [collections.c.workspace_id == workspace_id])
    if count >= MAX_COLLECTIONS:
        reason = f"has {count} collections; at most {MAX_COLLECTIONS} are allowed: delete one first"
        raise ConflictError(f"workspace_id {reason}", [Problem("workspace_id", reason)])


async def reject_if_in_use(session: TenantSession, row: Row) -> None:
    """Raises ConflictError if a collection is the default one, or if something is in it."""
    if row["is_default"]:
        raise ConflictError(
            "the default collection of a workspace cannot be deleted; delete or move what is in it instead"
        )
    inside = {
        "prompts": (prompts, prompts.c.collection_id),
        "partials": (prompt_partials, prompt_partials.c.collection_id),
        "collections": (collections, collections.c.parent_collection_id),
    }
    counts = {
        name: await session.organisation().count(table, [column == row["id"]])
        for name, (table, column) in inside.items()
    }
    if any(counts.values()):
        contents = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise ConflictError(f"the collection is not empty: it has {contents}; move them or delete them first")


async def count_contents(session: TenantSession, ids: Iterable[str]) -> dict[str, CollectionContents]:
    """Returns what each of these collections contains, by id."""
    collection_ids = list(ids)
    children = await _count_by(session, collections, collections.c.parent_collection_id, collection_ids)
    inside = await _count_by(session, prompts, prompts.c.collection_id, collection_ids)
    nothing: tuple[int, int | None] = (0, None)
    contents: dict[str, CollectionContents] = {}
    for own_id in collection_ids:
        (child_count, child_time), (count, changed) = children.get(own_id, nothing), inside.get(own_id, nothing)
        contents[own_id] = CollectionContents(
            child_collections_count=child_count,
            prompts_count=count,
            child_collections_last_updated_at=format_timestamp(child_time),
            prompts_last_updated_at=format_timestamp(changed),
        )
    return contents


async def _count_by(
    session: TenantSession, table: Table, column: Column[Any], collection_ids: list[str]
) -> dict[str, tuple[int, int | None]]:
    query = (
        select(column.label("owner"), func.count().label("count"), func.max(table.c.last_updated_at).label("changed"))
        .where(column.in_(collection_ids))
        .group_by(column)
    )
    rows = await session.organisation().fetch_rows(query, table)
    return {row["owner"]: (row["count"], row["changed"]) for row in rows}
