"""Saved prompts: templates with the provider, the model and the parameters of their requests. Every version is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.integrations.missing_providers import WarningsField
from penstock.integrations.provider_references import find_prompt_users
from penstock.kit import shared_fields  # noqa: TC001 - the framework reads the annotations at runtime
from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.crud_routes import CrudRoutes, workspace_request_context
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.references import ReferenceList, list_visible
from penstock.kit.route_parameters import IdOrSlug, SearchFilter
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.prompts import saved_prompts
from penstock.prompts.collections import find_parent_collection, resolve_collection
from penstock.prompts.partials import check_references
from penstock.prompts.publication import check_removal, shared_conditions
from penstock.prompts.saved_prompts import PROMPTS, PromptContent, PromptSummary, VersionFields
from penstock.prompts.sharing import SharedPrompt, to_shared_prompt
from penstock.prompts.templates import check_template
from penstock.resources import _prompt_sharing, _prompt_versions
from penstock.resources._prompt_versions import CreatedPrompt, PromptDetail, render_prompt
from penstock.schemas import ListResponse, row_to_struct, sent_fields
from penstock.store.prompt_tables import collections, prompts

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from penstock.store.tenant import Row

TAGS = _prompt_versions.TAGS

CollectionField = Annotated[
    str | None, Meta(description="id or slug of the collection; default: the default one of the workspace")
]
CollectionFilter = Annotated[str | None, QueryParameter(description="id or slug of a collection")]
SharedFilter = Annotated[
    Literal["shared"] | None, QueryParameter(description="`shared`: prompts that other workspaces share with this one")
]
ShowShare = Annotated[bool, QueryParameter(description="true: with the fields that say how each prompt is shared")]


class CreatePrompt(VersionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt to create."""

    name: shared_fields.Name
    string: saved_prompts.TemplateField
    parameters: saved_prompts.ParametersField
    virtual_key: saved_prompts.VirtualKeyField
    model: saved_prompts.ModelField = None
    collection_id: CollectionField = None
    slug: shared_fields.ChosenSlug = None
    status: shared_fields.NewStatus = "active"
    workspace_id: shared_fields.WorkspaceIdOrSlug = None


class UpdatePrompt(VersionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a prompt to change. Fields of the template make a new version."""

    patch: Annotated[
        bool, Meta(description="true: a new version takes the fields that are not sent from the newest version")
    ] = False
    name: shared_fields.OptionalName = UNSET
    collection_id: Annotated[str | UnsetType, Meta(description="id or slug of the collection to move it to")] = UNSET
    status: Annotated[
        Literal["active", "archived"] | UnsetType, Meta(description="an archived prompt cannot be used")
    ] = UNSET
    string: Annotated[str | UnsetType, Meta(description="template; if it differs, it makes a new version")] = UNSET
    parameters: Annotated[
        dict[str, Any] | UnsetType, Meta(description="parameters of the request, such as `max_tokens`")
    ] = UNSET
    virtual_key: Annotated[
        saved_prompts.ProviderSlug | UnsetType, Meta(description="slug of the saved provider that requests are sent to")
    ] = UNSET
    model: Annotated[saved_prompts.ModelName | UnsetType | None, Meta(description="name of the model")] = UNSET


class UpdatedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a prompt after a change of its template; empty if only other fields were changed."""

    id: Annotated[str | UnsetType, Meta(description="its id")] = UNSET
    slug: Annotated[str | UnsetType, Meta(description="its slug")] = UNSET
    prompt_version_id: Annotated[str | UnsetType, Meta(description="id of its newest version")] = UNSET
    warnings: WarningsField = UNSET


async def create_prompt(session: TenantSession, data: CreatePrompt) -> CreatedPrompt:
    """Creates a prompt. Its first version is the one that requests use, until another one is published."""
    fields = sent_fields(data)
    content = saved_prompts.merge_fields(fields, None)
    collection: Row | None = None
    problems = CollectedProblems()
    with problems.check():
        collection = await find_parent_collection(session, "collection_id", data.collection_id)
    with problems.check():
        saved_prompts.check_metadata(fields)
    with problems.check():
        await check_template(content.content, content.template_metadata)
        if collection:
            await check_references(session, collection["workspace_id"], content.content)
    with problems.check():
        await saved_prompts.check_new_slug(session, collection["workspace_id"] if collection else None, data.slug)
    problems.raise_all()
    collection = collection or {}
    values = {"name": data.name, "slug": data.slug, "collection_id": collection["id"], "status": data.status}
    row, version_id = await saved_prompts.create_prompt(session, collection["workspace_id"], values, content)
    warnings = await saved_prompts.find_warnings(session, row, content)
    return CreatedPrompt(id=row["id"], slug=row["slug"], version_id=version_id, warnings=warnings)


@get(
    "/",
    guards=[require_scopes("prompts.list")],
    summary="List prompts",
    tags=TAGS,
    dependencies={"context": Provide(workspace_request_context, sync_to_thread=False)},
)
async def list_prompts(
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    collection_id: CollectionFilter = None,
    search: SearchFilter = None,
    type: SharedFilter = None,  # noqa: A002 - name of the query parameter
    show_prompt_share: ShowShare = False,
) -> ListResponse[PromptSummary | SharedPrompt]:
    """Lists the prompts of a workspace, newest first."""
    conditions: list[ColumnElement[bool]] = []
    if collection_id:
        is_named = or_(collections.c.id == collection_id, collections.c.slug == collection_id)
        conditions.append(prompts.c.collection_id.in_(select(collections.c.id).where(is_named)))
    if search:
        conditions.append(or_(*(prompts.c[name].icontains(search, autoescape=True) for name in ("name", "slug"))))
    async with context.read_session(context.query_workspace) as session:
        tenant = session
        if type == "shared":
            tenant = session.organisation()
            conditions += shared_conditions(session.workspace_ids)
        total, rows = await PROMPTS.list_page(tenant, page, conditions)
        return ListResponse(total, [_to_summary(row, with_share=show_prompt_share) for row in rows])


@get(
    "/{key:str}",
    guards=[require_scopes("prompts.read")],
    summary="Get prompt",
    tags=TAGS,
    dependencies={"context": Provide(workspace_request_context, sync_to_thread=False)},
)
async def get_prompt(
    key: IdOrSlug, context: NamedDependency[RequestContext], version: saved_prompts.VersionSelector = None
) -> PromptDetail:
    """Returns a prompt with one of its versions. Prompts that other workspaces share can be read, too."""
    async with context.read_session(context.query_workspace) as session:
        row = await saved_prompts.get_readable_prompt(session, key)
        return await render_prompt(session, row, await saved_prompts.select_version(session, row, version))


@get(
    "/{key:str}/references",
    guards=[require_scopes("prompts.read")],
    summary="List what uses a prompt",
    tags=TAGS,
    dependencies={"context": Provide(workspace_request_context, sync_to_thread=False)},
)
async def list_references(key: IdOrSlug, context: NamedDependency[RequestContext]) -> ReferenceList:
    """Lists the forks of a prompt and the policies that name it. Counts those that the caller may not see."""
    async with context.read_session(context.query_workspace) as session:
        row = await PROMPTS.get(session, key)
        return list_visible(session, await find_prompt_users(session, row))


async def update_prompt(session: TenantSession, row: Row, data: UpdatePrompt) -> UpdatedPrompt:
    """Changes a prompt. A changed template becomes a new version, which requests use once it is published.

    Without `patch`, a new version needs `string`, `parameters`, `virtual_key` and `model`.
    """
    await session.check_precondition(prompts, row)
    values: dict[str, Any] = {name: value for name in ("name", "status") if (value := getattr(data, name)) is not UNSET}
    if values.get("status", row["status"]) != row["status"]:
        await check_removal(session, row)
    problems = CollectedProblems()
    if data.collection_id is not UNSET:
        with problems.check():
            collection = await resolve_collection(session, "collection_id", data.collection_id, row["workspace_id"])
            values["collection_id"] = collection["id"]
    fields = {name: value for name, value in sent_fields(data).items() if name in saved_prompts.VERSION_FIELDS}
    if not fields:
        problems.raise_all()
        await PROMPTS.update(session, row, values)
        return UpdatedPrompt()
    latest = await saved_prompts.select_version(session, row, None)
    before = PromptContent.from_version(latest)
    content = saved_prompts.merge_fields(fields, before if data.patch else None)
    is_new = not saved_prompts.is_same(content, before)
    with problems.check():
        saved_prompts.check_metadata(fields)
    with problems.check():
        if not data.patch:
            saved_prompts.check_required(fields)
    with problems.check():
        if is_new and (data.patch or "string" in fields):
            await saved_prompts.check_content(session, row["workspace_id"], content)
    problems.raise_all()
    version_id: str = latest["id"]
    if is_new:
        changed, version_id = await saved_prompts.add_version(session, row, content)
        values |= changed
    await PROMPTS.update(session, row, values)
    warnings = await saved_prompts.find_warnings(session, row, content)
    return UpdatedPrompt(id=row["id"], slug=row["slug"], prompt_version_id=version_id, warnings=warnings)


async def delete_prompt(session: TenantSession, row: Row) -> None:
    """Deletes a prompt with all of its versions. Forks of it stay."""
    await saved_prompts.delete_prompt(session, row)


def _to_summary(row: Row, *, with_share: bool) -> PromptSummary:
    return to_shared_prompt(row) if with_share else row_to_struct(PromptSummary, row)


async def _render_newest(session: TenantSession, rows: list[Row]) -> list[PromptDetail]:
    return [await render_prompt(session, row, await saved_prompts.select_version(session, row, None)) for row in rows]


CRUD_ROUTES = CrudRoutes(PROMPTS, "prompt", TAGS)
routes = [
    CRUD_ROUTES.create_route(CreatePrompt, CreatedPrompt, create_prompt),
    list_prompts,
    get_prompt,
    list_references,
    CRUD_ROUTES.update_route(UpdatePrompt, UpdatedPrompt, update_prompt, PromptDetail, _render_newest),
    CRUD_ROUTES.delete_route(delete_prompt),
    *_prompt_versions.routes,
    *_prompt_sharing.routes,
]
