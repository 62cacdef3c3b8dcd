"""Prompts of a workspace as a whole: the initial objects of a new workspace, and what is deleted with a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.prompts.collections import COLLECTIONS
from penstock.prompts.default_labels import initial_prompt_rows
from penstock.prompts.labels import LABELS
from penstock.prompts.partials import PARTIALS
from penstock.prompts.saved_prompts import PROMPTS
from penstock.store.prompt_tables import collections, labels

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession


async def create_initial_rows(session: TenantSession, workspace_id: str) -> None:
    """Creates the rows that each workspace has from the start."""
    for table, row in initial_prompt_rows(session.organisation_id, workspace_id):
        await session.insert(table, row)


async def delete_contents(session: TenantSession) -> None:
    """Deletes the prompts, partials, labels and collections of the session's workspace. The calling code deletes their
    versions, together with those of other objects.
    """
    for resource in (PROMPTS, PARTIALS):
        await resource.delete_all(session)
    await LABELS.delete_all(session, ~labels.c.is_universal)
    await COLLECTIONS.delete_all(session, ~collections.c.is_default)
    # Deletes the initial objects without entries in the audit log, because their creation has none either.
    for table in (labels, collections):
        await session.delete(table)
