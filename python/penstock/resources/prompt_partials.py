"""Prompt partials: texts that templates of prompts and other partials include. Every version is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.kit import shared_fields
from penstock.kit import versions as saved_versions
from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.crud_routes import CrudRoutes, ListQuery, plain_renderer
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.route_parameters import IdOrSlug, SearchFilter, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext
from penstock.prompts import partials, saved_prompts
from penstock.prompts.collections import find_parent_collection, resolve_collection
from penstock.prompts.partials import PARTIALS
from penstock.prompts.templates import check_template
from penstock.resources._prompt_versions import IN_WORKSPACE, DefaultVersion, VersionStatus
from penstock.schemas import (
    EmptyResponse,
    ListResponse,
    field_error,
    format_required_timestamp,
    row_to_struct,
)
from penstock.store.prompt_tables import collections, prompt_partials

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

KIND, TAGS = "partial", ["Prompt Partials"]

PartialText = Annotated[str, Meta(description="text that is included where a template has `{{>slug}}`")]
CollectionField = Annotated[
    str | None, Meta(description="id or slug of the collection; default: the default one of the workspace")
]
CollectionId = Annotated[str, Meta(description="id of its collection")]
VersionIdField = Annotated[str, Meta(description="id of the version")]
NumberField = Annotated[int, Meta(description="number of the version")]
DescriptionField = Annotated[str | None, Meta(description="what is new in the version")]
CollectionFilter = Annotated[str | None, QueryParameter(description="id or slug of a collection")]


class CreatePartial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A partial to create."""

    name: shared_fields.Name
    string: PartialText
    version_description: Annotated[
        Annotated[str, Meta(max_length=2000)] | None, Meta(description="what the partial is for")
    ] = None
    collection_id: CollectionField = None
    slug: shared_fields.ChosenSlug = None
    status: shared_fields.NewStatus = "active"
    workspace_id: shared_fields.WorkspaceIdOrSlug = None


class UpdatePartial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a partial to change. A changed text makes a new version."""

    name: shared_fields.OptionalName = UNSET
    string: Annotated[str | UnsetType, Meta(description="text; if it differs, it becomes a new version")] = UNSET
    description: Annotated[
        Annotated[str, Meta(max_length=2000)] | UnsetType | None, Meta(description="what is new in the new version")
    ] = UNSET
    status: Annotated[
        Literal["active", "archived"] | UnsetType, Meta(description="an archived partial cannot be used")
    ] = UNSET
    collection_id: Annotated[str | UnsetType, Meta(description="id or slug of the collection to move it to")] = UNSET


class CreatedPartial(msgspec.Struct, frozen=True, kw_only=True):
    """A partial that was created, and its first version."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: VersionIdField
    object: shared_fields.ObjectType = KIND


class UpdatedPartial(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of a partial after a change."""

    prompt_partial_version_id: VersionIdField


class PartialSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One partial in a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    collection_id: CollectionId
    workspace_id: shared_fields.WorkspaceId
    default_version: Annotated[int, Meta(description="number of the version that templates include")]
    latest_version: Annotated[int, Meta(description="number of the newest version")]
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    status: shared_fields.ArchiveStatus
    object: shared_fields.ObjectType = KIND


class PartialDetail(PartialSummary, frozen=True, kw_only=True):
    """One partial with one of its versions."""

    string: PartialText
    version: NumberField
    version_description: DescriptionField
    prompt_partial_version_id: VersionIdField
    prompt_partial_version_status: VersionStatus


class PartialVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a partial."""

    prompt_partial_id: Annotated[str, Meta(description="id of the partial")]
    prompt_partial_version_id: VersionIdField
    slug: shared_fields.Slug
    version: NumberField
    string: PartialText
    description: DescriptionField
    is_default: Annotated[bool, Meta(description="true for the version that templates include")]
    created_at: shared_fields.CreatedAt
    prompt_version_status: VersionStatus
    object: shared_fields.ObjectType = KIND


def build_list_query(
    workspace_id: WorkspaceFilter = None, collection_id: CollectionFilter = None, search: SearchFilter = None
) -> ListQuery:
    """Lists the partials of a workspace, newest first."""
    conditions: list[ColumnElement[bool]] = []
    if collection_id:
        is_named = or_(collections.c.id == collection_id, collections.c.slug == collection_id)
        conditions.append(prompt_partials.c.collection_id.in_(select(collections.c.id).where(is_named)))
    if search:
        columns = (prompt_partials.c.name, prompt_partials.c.slug)
        conditions.append(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    return ListQuery(workspace_id, conditions)


async def create_partial(session: TenantSession, data: CreatePartial) -> CreatedPartial:
    """Creates a partial. Its first version is the one that templates include, until another one is published."""
    problems = CollectedProblems()
    collection: Row = {}
    with problems.check():
        collection = await find_parent_collection(session, "collection_id", data.collection_id)
    with problems.check():
        await check_template(partials.template_content(data.string))
    problems.raise_all()
    values = {name: getattr(data, name) for name in ("name", "slug", "string", "status")}
    values["collection_id"] = collection["id"]
    row, version_id = await partials.create_partial(
        session, collection["workspace_id"], values, data.version_description
    )
    return CreatedPartial(id=row["id"], slug=row["slug"], version_id=version_id)


@get(
    "/{key:str}",
    guards=[require_scopes("prompts.read")],
    summary="Get partial",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def get_partial(
    key: IdOrSlug, context: NamedDependency[RequestContext], version: saved_prompts.VersionSelector = None
) -> PartialDetail:
    """Returns a partial with one of its versions. Partials have no labels."""
    async with context.read_session(context.query_workspace) as session:
        row = await PARTIALS.get(session, key)
        return _to_detail(row, await saved_prompts.select_version(session, row, version))


async def update_partial(session: TenantSession, row: Row, data: UpdatePartial) -> UpdatedPartial:
    """Changes a partial. A changed text becomes a new version, which templates include once it is published; a changed
    name or status does not.
    """
    await session.check_precondition(prompt_partials, row)
    problems = CollectedProblems()
    with problems.check():
        if data.string is UNSET and data.description is not UNSET:
            raise field_error("description", "describes a new version; send `string` with it")
    values: dict[str, Any] = {name: value for name in ("name", "status") if (value := getattr(data, name)) is not UNSET}
    with problems.check():
        if data.collection_id is not UNSET:
            collection = await resolve_collection(session, "collection_id", data.collection_id, row["workspace_id"])
            values["collection_id"] = collection["id"]
    with problems.check():
        if data.string is not UNSET:
            await check_template(partials.template_content(data.string))
    problems.raise_all()
    if values.get("status", row["status"]) != row["status"]:
        await partials.check_status_change(session, row, values["status"])
    latest = await saved_prompts.select_version(session, row, None)
    version_id: str = latest["id"]
    if data.string is not UNSET and data.string != latest["content"]["string"]:
        description = None if data.description is UNSET else data.description
        changed, version_id = await partials.add_version(session, row, data.string, description)
        values |= changed
    await PARTIALS.update(session, row, values)
    return UpdatedPartial(prompt_partial_version_id=version_id)


async def delete_partial(session: TenantSession, row: Row) -> None:
    """Deletes a partial with all of its versions, unless a partial or a published version of a prompt includes it."""
    await partials.delete_partial(session, row)


@get(
    "/{key:str}/versions",
    guards=[require_scopes("prompts.read")],
    summary="List versions of a partial",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def list_versions(
    key: IdOrSlug, context: NamedDependency[RequestContext], page: NamedDependency[PageRequest]
) -> ListResponse[PartialVersion]:
    """Lists the versions of a partial, newest first."""
    async with context.read_session(context.query_workspace) as session:
        row = await PARTIALS.get(session, key)
        total, versions = await saved_versions.list_versions(session.organisation(), row["id"], page)
        return ListResponse(total, [_to_version(row, version) for version in versions])


@put(
    "/{key:str}/makeDefault",
    guards=[require_scopes("prompts.publish")],
    summary="Publish version of a partial",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def publish_version(
    key: IdOrSlug, data: JSONBody[DefaultVersion], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Makes a version the one that templates include."""
    async with context.write_session(context.query_workspace) as session:
        row = await PARTIALS.get(session, key)
        version = await saved_prompts.find_by_number(session, row, data.version)
        values = await partials.publish_values(session, row, version)
        await PARTIALS.update(session, row, values, "publish")
        return EmptyResponse()


async def _render_newest(session: TenantSession, rows: list[Row]) -> list[PartialDetail]:
    return [_to_detail(row, await saved_prompts.select_version(session, row, None)) for row in rows]


def _to_detail(row: Row, version: Row) -> PartialDetail:
    return row_to_struct(
        PartialDetail,
        row,
        string=version["content"]["string"],
        version=version["number"],
        version_description=version["content"]["description"],
        prompt_partial_version_id=version["id"],
        prompt_partial_version_status=row["status"],
    )


def _to_version(row: Row, version: Row) -> PartialVersion:
    return PartialVersion(
        prompt_partial_id=row["id"],
        prompt_partial_version_id=version["id"],
        slug=row["slug"],
        version=version["number"],
        string=version["content"]["string"],
        description=version["content"]["description"],
        is_default=version["number"] == row["default_version"],
        created_at=format_required_timestamp(version["created_at"]),
        prompt_version_status=row["status"],
    )


CRUD_ROUTES = CrudRoutes(PARTIALS, KIND, TAGS, scopes="prompts")
routes = [
    CRUD_ROUTES.create_route(CreatePartial, CreatedPartial, create_partial),
    CRUD_ROUTES.list_route(PartialSummary, plain_renderer(PartialSummary), build_list_query),
    get_partial,
    list_versions,
    publish_version,
    CRUD_ROUTES.update_route(UpdatePartial, UpdatedPartial, update_partial, PartialDetail, _render_newest),
    CRUD_ROUTES.delete_route(delete_partial),
]
