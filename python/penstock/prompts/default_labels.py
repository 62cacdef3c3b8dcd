"""Initial objects of each workspace for its prompts: a default collection, and the labels that all workspaces have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.ids import generate_slug, new_id
from penstock.schemas import now
from penstock.store.prompt_tables import collections, labels

if TYPE_CHECKING:
    from sqlalchemy import Table

DEFAULT_COLLECTION_NAME = "Default"
# Labels that every workspace has. They cannot be renamed or deleted.
UNIVERSAL_LABELS = ("production", "staging", "development")


def initial_prompt_rows(organisation_id: str, workspace_id: str) -> list[tuple[Table, dict[str, Any]]]:
    """Returns the default collection and the universal labels of a new workspace."""
    moment = now()
    owner: dict[str, Any] = {"organisation_id": organisation_id, "workspace_id": workspace_id, "status": "active"}
    owner |= {"created_by": None, "created_at": moment, "last_updated_at": moment}
    name = DEFAULT_COLLECTION_NAME
    collection = {"slug": generate_slug("co", name, 20), "name": name, "parent_collection_id": None, "is_default": True}
    label = {"description": None, "color_code": None, "is_universal": True, "protected": False}
    return [
        (collections, {"id": new_id(), **collection, **owner}),
        *((labels, {"id": new_id(), "name": name, **label, **owner}) for name in UNIVERSAL_LABELS),
    ]
