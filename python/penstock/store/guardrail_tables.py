"""Table of guardrails. Their earlier versions are in `versions`."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text

from penstock.store.columns import (
    JSON_DOCUMENT,
    NAME,
    SLUG,
    UUID,
    WORD,
    foreign_key_column,
    id_column,
    metadata,
    timestamp_columns,
)

guardrails = Table(
    "guardrails",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    # Null if it belongs to the organisation.
    foreign_key_column("workspaces", optional=True, ends_with_it=True),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    # Secret values of the checks are masked here and stored encrypted in `sealed`.
    Column("checks", JSON_DOCUMENT, nullable=False),
    Column("sealed", Text),
    Column("actions", JSON_DOCUMENT, nullable=False),
    Column("version_id", UUID, nullable=False),
    Column("status", WORD, nullable=False),
    Column("owner_id", UUID),
    Column("updated_by", UUID),
    *timestamp_columns(),
    # Workspaces name guardrails of the organisation, so a slug may exist only once.
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
)
