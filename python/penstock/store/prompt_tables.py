"""Tables of prompts, their partials, collections and labels. The contents of prompts and partials are in `versions`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text

from penstock.store.columns import (
    JSON_DOCUMENT,
    NAME,
    SHORT_TEXT,
    SLUG,
    UUID,
    foreign_key_column,
    id_column,
    metadata,
    timestamp_columns,
)


def _owner_columns() -> list[Column[str] | Index]:
    return [
        id_column(),
        foreign_key_column("organisations"),
        foreign_key_column("workspaces", ends_with_it=True),
        Index(None, "workspace_id", "id"),
        Index(None, "organisation_id", "id"),
    ]


def _version_columns() -> list[Column[int]]:
    """Returns the columns with the numbers of the default version and of the newest version."""
    return [Column(f"{name}_version", Integer, nullable=False) for name in ("default", "latest")]


# Folders of prompts and partials. Each workspace has one that is its default.
collections = Table(
    "collections",
    metadata,
    *_owner_columns(),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("parent_collection_id", UUID, ForeignKey("collections.id", ondelete="CASCADE")),
    Column("is_default", Boolean, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "parent_collection_id"),
)

prompts = Table(
    "prompts",
    metadata,
    *_owner_columns(),
    foreign_key_column("collections"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    # Model of the newest version.
    Column("model", Text),
    *_version_columns(),
    # Other workspaces that may read and use the prompt: `"*"` for all, or a list of ids; null if it is not shared.
    Column("shared_with", JSON_DOCUMENT),
    Column("shared_at", BigInteger),
    Column("shared_by_user_id", UUID),
    # Default version at the time when the prompt was shared.
    Column("shared_from_version_id", UUID),
    # Prompt that this prompt is a fork of.
    Column("forked_from_prompt_id", UUID),
    # Version that was copied for the fork.
    Column("forked_from_prompt_version_id", UUID),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "collection_id"),
)

prompt_partials = Table(
    "prompt_partials",
    metadata,
    *_owner_columns(),
    foreign_key_column("collections"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    *_version_columns(),
    # Slugs of the partials that the newest and the default version of this partial refer to.
    Column("partials", JSON_DOCUMENT, nullable=False),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "collection_id"),
)

labels = Table(
    "labels",
    metadata,
    *_owner_columns(),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("color_code", SHORT_TEXT),
    # True for the labels that every workspace has.
    Column("is_universal", Boolean, nullable=False),
    # True if moving the label requires the scope `prompts.publish`.
    Column("protected", Boolean, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "name", unique=True),
)

# Assignments of labels to versions of prompts. A label is on at most one version of each prompt.
prompt_labels = Table(
    "prompt_labels",
    metadata,
    *_owner_columns(),
    foreign_key_column("prompts", ends_with_it=True),
    foreign_key_column("labels"),
    Column("number", Integer, nullable=False),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "prompt_id", "label_id", unique=True),
    Index(None, "label_id"),
)

# Slugs of deleted prompts and partials. Clients may still use them, so only callers who may publish can use such a slug
# for another object.
released_slugs = Table(
    "released_slugs",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    foreign_key_column("workspaces", ends_with_it=True),
    # Name of the table that contained the object.
    Column("resource", SHORT_TEXT, nullable=False),
    Column("slug", SLUG, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "workspace_id", "resource", "slug", unique=True),
    Index(None, "organisation_id"),
)
