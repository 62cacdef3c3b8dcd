"""Collections of prompts: folders that may be nested. Each workspace has a default one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.crud_routes import CrudRoutes, ListQuery
from penstock.kit.route_parameters import SearchFilter, WorkspaceFilter
from penstock.kit.shared_fields import (
    ArchiveStatus,
    CreatedAt,
    Id,
    Name,
    ObjectType,
    Slug,
    UpdatedAt,
    WorkspaceId,
    WorkspaceIdOrSlug,
)
from penstock.prompts import collections as prompt_collections
from penstock.prompts.collections import COLLECTIONS, CollectionContents
from penstock.schemas import EmptyResponse, row_to_struct
from penstock.store.prompt_tables import collections

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

KIND, TAGS = "collection", ["Collections"]

ParentId = Annotated[str | None, Meta(description="id of the collection that it is in; null on the first level")]


class CreateCollection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A collection to create."""

    name: Name
    parent_collection_id: Annotated[
        str | None, Meta(description="id or slug of the collection that it is in; null on the first level")
    ] = None
    workspace_id: WorkspaceIdOrSlug = None


class UpdateCollection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The new name of a collection."""

    name: Name


class CreatedCollection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection that was created."""

    id: Id
    slug: Slug
    object: ObjectType = KIND


class CollectionFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a collection."""

    id: Id
    name: Name
    workspace_id: WorkspaceId
    slug: Slug
    parent_collection_id: ParentId
    is_default: Annotated[bool, Meta(description="true for the collection of prompts that name none")]
    status: ArchiveStatus
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ObjectType = KIND


class CollectionSummary(CollectionFields, frozen=True, kw_only=True):
    """One collection in a list."""

    collection_details: Annotated[CollectionContents, Meta(description="what it contains directly")]


class ChildCollection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection in another one."""

    id: Id
    name: Name
    slug: Slug
    last_updated_at: UpdatedAt
    collection_details: Annotated[CollectionContents, Meta(description="what it contains directly")]


class CollectionDetail(CollectionFields, frozen=True, kw_only=True):
    """One collection with the collections in it."""

    child_collections: Annotated[list[ChildCollection], Meta(description="collections in it, by name")]


def build_list_query(workspace_id: WorkspaceFilter = None, search: SearchFilter = None) -> ListQuery:
    """Lists the collections of a workspace, newest first."""
    if not search:
        return ListQuery(workspace_id)
    names = (collections.c.name, collections.c.slug)
    return ListQuery(workspace_id, [or_(*(column.icontains(search, autoescape=True) for column in names))])


async def create_collection(session: TenantSession, data: CreateCollection) -> CreatedCollection:
    """Creates a collection. Collections may be nested 8 levels deep, and a workspace has at most 1,000."""
    path, parent = "parent_collection_id", None
    problems = CollectedProblems()
    if data.parent_collection_id is not None:
        with problems.check():
            parent = await prompt_collections.find_parent_collection(session, path, data.parent_collection_id)
            await prompt_collections.check_new_parent(session, parent)
    with problems.check():
        # If the parent collection does not exist, the workspace may be unknown, so its collections are not counted.
        if parent or data.parent_collection_id is None or session.workspace_id:
            await prompt_collections.reject_too_many(
                session, parent["workspace_id"] if parent else session.required_workspace_id
            )
    problems.raise_all()
    workspace_id: str = parent["workspace_id"] if parent else session.required_workspace_id
    row = await COLLECTIONS.create(
        session,
        {
            "slug": await session.generate_unused_slug(collections, "co", data.name, 20),
            "name": data.name,
            "workspace_id": workspace_id,
            path: parent["id"] if parent else None,
            "is_default": False,
            "status": "active",
            "created_by": session.caller.actor_id,
        },
    )
    return CreatedCollection(id=row["id"], slug=row["slug"])


async def update_collection(session: TenantSession, row: Row, data: UpdateCollection) -> EmptyResponse:
    """Renames a collection; its slug stays."""
    await COLLECTIONS.update(session, row, {"name": data.name})
    return EmptyResponse()


async def delete_collection(session: TenantSession, row: Row) -> None:
    """Deletes an empty collection. The default collection of a workspace cannot be deleted."""
    await prompt_collections.reject_if_in_use(session, row)
    await COLLECTIONS.delete(session, row)


async def _render_list(session: TenantSession, rows: list[Row]) -> list[CollectionSummary]:
    contents = await prompt_collections.count_contents(session, [row["id"] for row in rows])
    return [row_to_struct(CollectionSummary, row, collection_details=contents[row["id"]]) for row in rows]


async def _render_details(session: TenantSession, rows: list[Row]) -> list[CollectionDetail]:
    ids = [row["id"] for row in rows]
    query = select(collections).where(collections.c.parent_collection_id.in_(ids)).order_by(collections.c.name)
    children = await session.organisation().fetch_rows(query, collections)
    contents = await prompt_collections.count_contents(session, [child["id"] for child in children])
    below: dict[str, list[ChildCollection]] = {}
    for child in children:
        detail: Any = row_to_struct(ChildCollection, child, collection_details=contents[child["id"]])
        below.setdefault(child["parent_collection_id"], []).append(detail)
    return [row_to_struct(CollectionDetail, row, child_collections=below.get(row["id"], [])) for row in rows]


CRUD_ROUTES = CrudRoutes(COLLECTIONS, KIND, TAGS, scopes="prompts")
routes = [
    CRUD_ROUTES.create_route(CreateCollection, CreatedCollection, create_collection),
    CRUD_ROUTES.list_route(CollectionSummary, _render_list, build_list_query),
    CRUD_ROUTES.get_route(CollectionDetail, _render_details),
    CRUD_ROUTES.update_route(UpdateCollection, EmptyResponse, update_collection, CollectionDetail, _render_details),
    CRUD_ROUTES.delete_route(delete_collection),
]
