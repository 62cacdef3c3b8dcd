"""Sharing of prompts: other workspaces of the organisation may read a shared prompt, use it and fork it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.errors import ConflictError
from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.shared_fields import OptionalTimestamp, WorkspaceId  # noqa: TC001 - msgspec reads the annotations at runtime
from penstock.prompts.publication import ALL_WORKSPACES
from penstock.prompts.saved_prompts import PROMPTS, PromptSummary
from penstock.schemas import field_error, format_timestamp, now, row_to_struct
from penstock.store.prompt_tables import prompts, released_slugs

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

MAX_WORKSPACES = 1000
MAX_NAMED_PROMPTS = 5

_Workspaces = Annotated[list[str], Meta(min_length=1, max_length=MAX_WORKSPACES)]


class SharePrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspaces that a prompt is shared with; all of the organisation if none are named."""

    workspaces: Annotated[_Workspaces | None, Meta(description="ids or slugs of the workspaces")] = None
    allow_all_workspaces: Annotated[
        bool | None, Meta(description="true: all workspaces of the organisation, also those to come")
    ] = None


class SharedPrompt(PromptSummary, frozen=True, kw_only=True):
    """One prompt with its sharing fields and the source of a fork."""

    access_level: Annotated[str, Meta(description="`workspace`: not shared; `organisation`: shared")]
    share_organisation_id: Annotated[str | None, Meta(description="id of the organisation if it is shared")]
    shared_at: OptionalTimestamp
    shared_by_user_id: Annotated[str | None, Meta(description="id of the user who shared it; null for a service key")]
    shared_from_version_id: Annotated[str | None, Meta(description="id of its default version when it was shared")]
    allow_all_workspaces: Annotated[bool, Meta(description="true: shared with all workspaces of the organisation")]
    shared_with: Annotated[list[str], Meta(description="ids of the workspaces that it is shared with, if not with all")]
    prompt_owning_workspace_id: WorkspaceId
    forked_from_prompt_id: Annotated[str | None, Meta(description="id of the prompt that it is a copy of")]
    forked_from_prompt_version_id: Annotated[str | None, Meta(description="id of the version that was copied")]


def share_values(row: Row) -> dict[str, Any]:
    """Returns the response fields that describe how a prompt is shared."""
    shared_with = row["shared_with"]
    same = ("shared_by_user_id", "shared_from_version_id", "forked_from_prompt_id", "forked_from_prompt_version_id")
    return {
        "access_level": "workspace" if shared_with is None else "organisation",
        "share_organisation_id": None if shared_with is None else row["organisation_id"],
        "shared_at": format_timestamp(row["shared_at"]),
        "allow_all_workspaces": shared_with == ALL_WORKSPACES,
        "shared_with": shared_with if isinstance(shared_with, list) else [],
        "prompt_owning_workspace_id": row["workspace_id"],
        **{name: row[name] for name in same},
    }


def to_shared_prompt(row: Row) -> SharedPrompt:
    """Returns a prompt as responses show it, without a version."""
    return row_to_struct(SharedPrompt, row, **share_values(row))


async def share_prompt(session: TenantSession, row: Row, request: SharePrompt, version_id: str) -> Row:
    """Shares a prompt with the requested workspaces, instead of those that it was shared with before."""
    if request.workspaces is not None and request.allow_all_workspaces:
        raise field_error("allow_all_workspaces", "cannot be combined with workspaces; send one of them")
    if request.workspaces is None and request.allow_all_workspaces is False:
        raise field_error("workspaces", "is needed if allow_all_workspaces is false: ids or slugs of workspaces")
    shared_with: str | list[str] = ALL_WORKSPACES
    if request.workspaces is not None:
        org_session = session.organisation()
        problems = CollectedProblems()
        workspace_ids: list[str] = []
        for index, key in enumerate(request.workspaces):
            with problems.check():
                workspace_ids.append((await org_session.resolve_workspace(f"workspaces[{index}]", key, ()))["id"])
        problems.raise_all()
        shared_with = sorted({own_id for own_id in workspace_ids if own_id != row["workspace_id"]})
        if not shared_with:
            raise field_error("workspaces", "names only the prompt's own workspace; name others")
    await _reject_taken_slug(session, row, shared_with)
    values = {"shared_with": shared_with, "shared_at": now(), "shared_by_user_id": session.caller.user_id}
    return await PROMPTS.update(session, row, {**values, "shared_from_version_id": version_id}, "share")


async def _reject_taken_slug(session: TenantSession, row: Row, shared_with: str | list[str]) -> None:
    """Raises ConflictError if the slug of a prompt stands for another prompt in workspaces that it is to be shared
    with. That may be their own prompt, even an archived or deleted one, or one that is already shared with them.
    """
    org_session = session.organisation()
    targets = None if shared_with == ALL_WORKSPACES else list(shared_with)
    prompt_conditions = [prompts.c.slug == row["slug"], prompts.c.id != row["id"]]
    columns = released_slugs.c
    slug_conditions = [
        columns.slug == row["slug"],
        columns.resource == prompts.name,
        columns.workspace_id != row["workspace_id"],
    ]
    if targets is not None:
        prompt_conditions.append(or_(prompts.c.workspace_id.in_(targets), prompts.c.shared_with.is_not(None)))
        slug_conditions.append(columns.workspace_id.in_(targets))
    same_slug = await org_session.fetch_rows(select(prompts).where(*prompt_conditions), prompts)
    others = [other for other in same_slug if targets is None or _reaches(other, targets)]
    if others or await org_session.count(released_slugs, slug_conditions):
        message = f"the slug {row['slug']!r} means another prompt in workspaces that this one would be shared with"
        raise ConflictError(f"{message}; fork it, and share the fork")


def _reaches(prompt: Row, workspace_ids: list[str]) -> bool:
    """Returns true if a prompt belongs to one of these workspaces, or is shared with one of them."""
    if prompt["workspace_id"] in workspace_ids or prompt["shared_with"] == ALL_WORKSPACES:
        return True
    return not set(workspace_ids).isdisjoint(prompt["shared_with"] or ())


async def unshare_prompt(session: TenantSession, row: Row) -> None:
    """Ends the sharing of a prompt. Forks stay as they are."""
    names = ("shared_with", "shared_at", "shared_by_user_id", "shared_from_version_id")
    await PROMPTS.update(session, row, dict.fromkeys(names), "unshare")


async def reject_shared_prompts(session: TenantSession, workspace_id: str) -> None:
    """Raises ConflictError if prompts of a workspace are shared with others."""
    query = select(prompts.c.slug).where(prompts.c.workspace_id == workspace_id, prompts.c.shared_with.is_not(None))
    slugs = [row["slug"] for row in await session.organisation().fetch_rows(query.order_by(prompts.c.id), prompts)]
    if slugs:
        names = ", ".join(map(repr, slugs[:MAX_NAMED_PROMPTS]))
        more = f" and {len(slugs) - MAX_NAMED_PROMPTS} more" if len(slugs) > MAX_NAMED_PROMPTS else ""
        raise ConflictError(f"the workspace shares the prompts {names}{more} with other workspaces; unshare them first")
