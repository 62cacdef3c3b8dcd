"""Tables of guardrails and of the credentials of their partners. Earlier versions of guardrails are in `versions`."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, String, Table, Text

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

guardrails = Table(
    "guardrails",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    # Null if the guardrail belongs to the organisation.
    foreign_key_column("workspaces", optional=True, ends_with_it=True),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    # Secret values of the checks are masked here and stored encrypted in `sealed`.
    Column("checks", JSON_DOCUMENT, nullable=False),
    Column("sealed", Text),
    Column("actions", JSON_DOCUMENT, nullable=False),
    Column("version_id", UUID, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("owner_id", UUID),
    Column("updated_by", UUID),
    *timestamp_columns(),
    # Workspaces also refer to guardrails of the organisation by slug, so slugs are unique in the organisation.
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
)

# Credentials of guardrail partners. Checks of a partner use them if they have no credentials of their own.
partner_credentials = Table(
    "partner_credentials",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    # Name of the partner: the part of its checks' ids before the dot.
    Column("slug", SLUG, nullable=False),
    # Credentials with masked values. The real values are stored encrypted in `sealed`.
    Column("credentials", JSON_DOCUMENT, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("base_url", String(2048)),
    Column("allow_all_workspaces", Boolean, nullable=False),
    Column("allowed_workspaces", JSON_DOCUMENT, nullable=False),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)
