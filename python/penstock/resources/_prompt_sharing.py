"""Sharing and forking of prompts between the workspaces of an organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import delete, route
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.route_parameters import IdOrSlug
from penstock.kit.tenant_session import RequestContext
from penstock.prompts import partials, saved_prompts
from penstock.prompts.collections import resolve_collection
from penstock.prompts.saved_prompts import PROMPTS, PromptContent
from penstock.prompts.sharing import SharedPrompt, SharePrompt, share_prompt, to_shared_prompt, unshare_prompt
from penstock.prompts.templates import find_partials
from penstock.resources._prompt_versions import IN_WORKSPACE, TAGS, CreatedPrompt
from penstock.schemas import EmptyResponse, field_error
from penstock.store.prompt_tables import prompts

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

SHARE_GUARD, FORK_GUARD = require_scopes("prompts.publish"), require_scopes("prompts.create")


class ForkPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Copy of a version of a prompt, in the same or another workspace."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255)] | None,
        Meta(description="display name of the copy; default: the same"),
    ] = None
    version: Annotated[
        Annotated[int, Meta(ge=1, le=saved_prompts.MAX_NUMBER)] | None,
        Meta(description="number of the version to copy; default: the one that requests use by default"),
    ] = None
    collection_id: Annotated[
        str | None, Meta(description="id or slug of the collection; default: the default one of the workspace")
    ] = None
    workspace_id: Annotated[
        str | None,
        Meta(
            description="id or slug of the workspace of the copy; default: the caller's, or that of the prompt if the caller may create prompts there"
        ),
    ] = None


@route(
    "/{key:str}/share",
    http_method=["POST", "PUT"],
    status_code=200,
    guards=[SHARE_GUARD],
    summary="Share prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def share(
    key: IdOrSlug, context: NamedDependency[RequestContext], data: JSONBody[SharePrompt | None] = None
) -> SharedPrompt:
    """Shares a prompt with other workspaces: they may read, use and fork it, but not change it. Without a body, all
    workspaces of the organisation may.
    """
    async with context.write_session(context.query_workspace) as session:
        row = await PROMPTS.get(session, key)
        version = await saved_prompts.find_by_number(session, row, row["default_version"])
        row = await share_prompt(session, row, data or SharePrompt(), version["id"])
        return to_shared_prompt(row)


@delete(
    "/{key:str}/share",
    status_code=200,
    guards=[SHARE_GUARD],
    summary="Stop sharing prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def stop_sharing(key: IdOrSlug, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Ends the sharing of a prompt, as `unshare` does."""
    return await _unshare(key, context)


@route(
    "/{key:str}/unshare",
    http_method=["POST", "PUT", "DELETE"],
    status_code=200,
    guards=[SHARE_GUARD],
    summary="Unshare prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def unshare(key: IdOrSlug, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Ends the sharing of a prompt. Forks in other workspaces stay as they are."""
    return await _unshare(key, context)


@route(
    "/{key:str}/fork",
    http_method=["POST", "PUT"],
    status_code=200,
    guards=[FORK_GUARD],
    summary="Fork prompt",
    tags=TAGS,
)
async def fork(
    key: IdOrSlug, context: NamedDependency[RequestContext], data: JSONBody[ForkPrompt | None] = None
) -> CreatedPrompt:
    """Copies a version of a prompt to a new prompt, in the same workspace or in one that it is shared with. Partials that
    the workspace lacks are copied, too.
    """
    fork = data or ForkPrompt()
    async with context.write_session(fork.workspace_id) as session:
        source = await _find_source(session, key)
        await session.organisation().check_precondition(prompts, source)
        workspace_id = session.workspace_id or source["workspace_id"]
        if session.workspace_ids is not None and workspace_id not in session.workspace_ids:
            reason = "is required: the caller may create no prompts in the workspace of this prompt"
            raise field_error("workspace_id", reason)
        collection, version = await _find_copied(session, source, fork, workspace_id)
        saved = PromptContent.from_version(version)
        if workspace_id != source["workspace_id"]:
            used = find_partials(saved.content)
            await partials.copy_missing(session, source["workspace_id"], workspace_id, used)
        values: dict[str, Any] = {
            "name": fork.name or source["name"],
            "collection_id": collection["id"],
            "forked_from_prompt_id": source["id"],
            "forked_from_prompt_version_id": version["id"],
        }
        await saved_prompts.check_content(session, workspace_id, saved)
        row, version_id = await saved_prompts.create_prompt(session, workspace_id, values, saved)
        warnings = await saved_prompts.find_warnings(session, row, saved)
        return CreatedPrompt(id=row["id"], slug=row["slug"], version_id=version_id, warnings=warnings)


async def _find_copied(session: TenantSession, source: Row, fork: ForkPrompt, workspace_id: str) -> tuple[Row, Row]:
    """Returns the collection for a copy, and the version to copy. Raises one error with all problems if one or both do
    not exist.
    """
    problems = CollectedProblems()
    collection: Row = {}
    version: Row = {}
    with problems.check():
        collection = await resolve_collection(session, "collection_id", fork.collection_id, workspace_id)
    with problems.check():
        version = await saved_prompts.find_by_number(session, source, fork.version or source["default_version"])
    problems.raise_all()
    return collection, version


async def _unshare(key: str, context: RequestContext) -> EmptyResponse:
    async with context.write_session(context.query_workspace) as session:
        await unshare_prompt(session, await PROMPTS.get(session, key))
        return EmptyResponse()


async def _find_source(session: TenantSession, key: str) -> Row:
    """Returns the prompt to copy. A caller with access to several workspaces may copy from any of them to another."""
    caller = session.caller
    row = await session.organisation().find(prompts, key) if caller.workspace_id is None else None
    if row and "prompts.read" in caller.granted_scopes(row["workspace_id"]):
        session.set_requested_row(prompts, row)
        return row
    return await saved_prompts.get_readable_prompt(session, key)


routes = [share, stop_sharing, unshare, fork]
