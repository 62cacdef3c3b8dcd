"""Actions on prompts and partials that require the scope `prompts.publish`, besides publishing. They remove objects
that others rely on, or put another object under a slug that clients may still use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Table, Text, cast, or_, select

from penstock.errors import ForbiddenError
from penstock.ids import new_id
from penstock.prompts.labels import PUBLISH_SCOPE, list_prompt_labels
from penstock.schemas import now
from penstock.store.prompt_tables import prompts, released_slugs

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

ACTIVE = "active"
# Value of `shared_with` for all workspaces of the organisation.
ALL_WORKSPACES = "*"


async def check_removal(session: TenantSession, row: Row) -> None:
    """Raises ForbiddenError if a caller who may not publish would delete or archive a prompt that is shared, or that
    has a protected label. Otherwise the caller could create another prompt for clients that use the label.
    """
    if PUBLISH_SCOPE in session.granted_scopes:
        return
    prompt_labels = await list_prompt_labels(session, [row["id"]])
    protected = next((label["name"] for label in prompt_labels if label["protected"]), None)
    reason = f"it has the protected label {protected!r}" if protected else "it is shared with other workspaces"
    if protected or row["shared_with"] is not None:
        message = f"the prompt {row['slug']!r} cannot be removed without the scope {PUBLISH_SCOPE}: {reason}"
        raise ForbiddenError(message)


async def release_slug(session: TenantSession, table: Table, row: Row) -> None:
    """Stores the slug of a deleted prompt or partial in `released_slugs`, because clients may still use it."""
    if await _is_released(session, table, row["slug"], row["workspace_id"]):
        return
    owner = {"organisation_id": row["organisation_id"], "workspace_id": row["workspace_id"]}
    released = {"id": new_id(), **owner, "resource": table.name, "slug": row["slug"], "created_at": now()}
    await session.organisation().insert(released_slugs, released)


async def check_slug(session: TenantSession, table: Table, slug: str | None, workspace_id: str) -> None:
    """Raises ForbiddenError if a caller who may not publish chooses a slug that clients may use for another object.
    That is a deleted object, or a prompt that another workspace shares with this one.
    """
    if slug is None or PUBLISH_SCOPE in session.granted_scopes:
        return
    if await _is_released(session, table, slug, workspace_id):
        reason = "an object with this slug was deleted, and clients may still use it"
    elif table is prompts and await _is_shared(session, slug, workspace_id):
        reason = "another workspace shares a prompt with this slug"
    else:
        return
    message = f"the slug {slug!r} cannot be used without the scope {PUBLISH_SCOPE}: {reason}; choose another slug"
    raise ForbiddenError(message)


def shared_conditions(workspace_ids: Collection[str] | None) -> list[ColumnElement[bool]]:
    """Returns SQL conditions for active prompts that other workspaces share with these workspaces; `None` selects all
    shared prompts.
    """
    conditions = [prompts.c.status == ACTIVE, prompts.c.shared_with.is_not(None)]
    if workspace_ids is None:
        return conditions
    shared_with = cast(prompts.c.shared_with, Text)
    names = [f'"{name}"' for name in (ALL_WORKSPACES, *sorted(workspace_ids))]
    is_with_them = or_(*(shared_with.contains(name, autoescape=True) for name in names))
    return [*conditions, prompts.c.workspace_id.not_in(sorted(workspace_ids)), is_with_them]


async def _is_released(session: TenantSession, table: Table, slug: str, workspace_id: str) -> bool:
    columns = released_slugs.c
    conditions = [columns.workspace_id == workspace_id, columns.resource == table.name, columns.slug == slug]
    return bool(await session.organisation().count(released_slugs, conditions))


async def _is_shared(session: TenantSession, slug: str, workspace_id: str) -> bool:
    query = select(prompts).where(prompts.c.slug == slug, *shared_conditions([workspace_id]))
    return await session.organisation().fetch_first(query, prompts) is not None
