"""Labels of prompt versions, such as `production`. Each is on at most one version of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import or_, select

from penstock.errors import ConflictError, Problem
from penstock.kit.resource import Resource
from penstock.schemas import unknown_reference_error
from penstock.store.prompt_tables import labels, prompt_labels, prompts
from penstock.store.snapshot_sections import prompt_section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

LABELS = Resource("labels", labels)
# Assignments of labels to versions of prompts. A change publishes the prompt to the data plane.
PROMPT_LABELS = Resource("prompt_labels", prompt_labels, publishes=True)
# Maximum number of labels of a workspace, with the universal ones.
MAX_LABELS = 100
PUBLISH_SCOPE = "prompts.publish"
MAX_NAMED_PROMPTS = 5


async def reject_too_many(session: TenantSession, workspace_id: str) -> None:
    """Raises ConflictError if the workspace already has `MAX_LABELS` labels."""
    count = await session.organisation().count(labels, [labels.c.workspace_id == workspace_id])
    if count >= MAX_LABELS:
        reason = f"has {count} labels; at most {MAX_LABELS} are allowed: delete one first"
        raise ConflictError(f"workspace_id {reason}", [Problem("workspace_id", reason)])


async def reject_taken_name(session: TenantSession, name: str, workspace_id: str) -> None:
    """Raises ConflictError if the workspace has a label with this name."""
    used = [labels.c.workspace_id == workspace_id, labels.c.name == name]
    if await session.organisation().count(labels, used):
        reason = f"{name!r} is the name of another label of this workspace; choose another name"
        raise ConflictError(f"name {reason}", [Problem("name", reason)])


async def reject_if_in_use(session: TenantSession, row: Row) -> None:
    """Raises ConflictError if a label is universal, or on a version of a prompt."""
    if row["is_universal"]:
        raise ConflictError(f"the label {row['name']!r} is built in and cannot be deleted")
    query = (
        select(prompts.c.slug)
        .join(prompt_labels, prompt_labels.c.prompt_id == prompts.c.id)
        .where(prompt_labels.c.label_id == row["id"])
        .order_by(prompts.c.id)
    )
    rows = [row["slug"] for row in await session.organisation().fetch_rows(query, prompts)]
    if rows:
        names = ", ".join(map(repr, rows[:MAX_NAMED_PROMPTS]))
        more = f" and {len(rows) - MAX_NAMED_PROMPTS} more" if len(rows) > MAX_NAMED_PROMPTS else ""
        raise ConflictError(
            f"the label {row['name']!r} is on versions of the prompts {names}{more}; remove it from them first"
        )


async def mark_prompts_changed(session: TenantSession, row: Row) -> None:
    """Publishes the prompts that have a label, because its name changed."""
    query = select(prompt_labels.c.prompt_id).where(prompt_labels.c.label_id == row["id"])
    labelled = await session.organisation().fetch_rows(query, prompt_labels)
    if labelled:
        await session.mark_changed(*{prompt_section(item["prompt_id"]) for item in labelled})


async def list_prompt_labels(session: TenantSession, prompt_ids: Iterable[str]) -> list[Row]:
    """Returns the labels on versions of these prompts, most recently moved first. The columns are those of
    `prompt_labels`, the label's `name` and `protected`.
    """
    query = (
        select(prompt_labels, labels.c.name, labels.c.protected)
        .join(labels, labels.c.id == prompt_labels.c.label_id)
        .where(prompt_labels.c.prompt_id.in_(list(prompt_ids)))
        .order_by(prompt_labels.c.last_updated_at.desc(), labels.c.name)
    )
    return await session.organisation().fetch_rows(query, prompt_labels)


async def resolve_label(session: TenantSession, path: str, key: str, workspace_id: str) -> Row:
    """Returns the label with this id or name in the workspace. `path` is the body field that contains `key`, for
    errors.
    """
    query = select(labels).where(or_(labels.c.id == key, labels.c.name == key), labels.c.workspace_id == workspace_id)
    row = await session.organisation().fetch_first(query.order_by(labels.c.id != key), labels)
    if row is None:
        raise unknown_reference_error(path, f"{key!r} is no label of this workspace")
    return row


async def put_label(session: TenantSession, prompt: Row, label: Row, number: int) -> bool:
    """Moves a label to a version of a prompt. Returns false if the version already has it."""
    labels_of_prompt = await list_prompt_labels(session, [prompt["id"]])
    before = next((row for row in labels_of_prompt if row["label_id"] == label["id"]), None)
    if before and before["number"] == number:
        return False
    if label["protected"]:
        session.require_any_scope(PUBLISH_SCOPE)
    values: dict[str, Any] = {"number": number, "created_by": session.caller.actor_id}
    if before:
        await PROMPT_LABELS.update(session, _without_label(before), values)
        return True
    owner = {"prompt_id": prompt["id"], "label_id": label["id"], "workspace_id": prompt["workspace_id"]}
    await PROMPT_LABELS.create(session, {**owner, **values})
    return True


async def remove_labels(session: TenantSession, prompt: Row, number: int) -> bool:
    """Removes all labels from a version of a prompt. Returns false if it has none."""
    moved_labels = [row for row in await list_prompt_labels(session, [prompt["id"]]) if row["number"] == number]
    if any(row["protected"] for row in moved_labels):
        session.require_any_scope(PUBLISH_SCOPE)
    for row in moved_labels:
        await PROMPT_LABELS.delete(session, _without_label(row))
    return bool(moved_labels)


def _without_label(row: Row) -> dict[str, Any]:
    """Returns a row of `list_prompt_labels` without the columns of the label."""
    return {column.name: row[column.name] for column in prompt_labels.c}
