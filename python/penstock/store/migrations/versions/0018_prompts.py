"""Prompts, their partials, collections and labels."""

from __future__ import annotations

import secrets
import time
from typing import Any

import sqlalchemy as sa
import uuid_utils
from alembic import op

revision = "0018_prompts"
down_revision = "0017_policies"

UNIVERSAL_LABELS = ("production", "staging", "development")
VERSIONED_RESOURCES = ("prompts", "prompt_partials")
COLLECTION_COLUMNS = ("slug", "name", "parent_collection_id", "is_default", "status")
LABEL_COLUMNS = ("name", "description", "color_code", "is_universal", "protected", "status")


def _collection_columns() -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    return [
        sa.Column("slug", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("parent_collection_id", sa.String(36), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_collection_id"],
            ["collections.id"],
            name=op.f("fk_collections_parent_collection_id"),
            ondelete="CASCADE",
        ),
    ]


def _saved_columns(table: str) -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    """Returns the columns of prompts and of partials."""
    return [
        sa.Column("collection_id", sa.String(36), nullable=False),
        sa.Column("slug", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("default_version", sa.Integer(), nullable=False),
        sa.Column("latest_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["collection_id"], ["collections.id"], name=op.f(f"fk_{table}_collection_id")),
    ]


def _prompt_columns() -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    return [
        *_saved_columns("prompts"),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("shared_with", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("shared_at", sa.BigInteger(), nullable=True),
        sa.Column("shared_by_user_id", sa.String(36), nullable=True),
        sa.Column("shared_from_version_id", sa.String(36), nullable=True),
        sa.Column("forked_from_prompt_id", sa.String(36), nullable=True),
        sa.Column("forked_from_prompt_version_id", sa.String(36), nullable=True),
    ]


def _partial_columns() -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    return [
        *_saved_columns("prompt_partials"),
        sa.Column("partials", sa.JSON(none_as_null=True), nullable=False),
    ]


def _label_columns() -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    return [
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("color_code", sa.String(32), nullable=True),
        sa.Column("is_universal", sa.Boolean(), nullable=False),
        sa.Column("protected", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
    ]


def _prompt_label_columns() -> list[sa.Column[Any] | sa.ForeignKeyConstraint]:
    return [
        sa.Column("prompt_id", sa.String(36), nullable=False),
        sa.Column("label_id", sa.String(36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["prompt_id"], ["prompts.id"], name=op.f("fk_prompt_labels_prompt_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_prompt_labels_label_id")),
    ]


OWN_COLUMNS = {
    "collections": _collection_columns,
    "prompts": _prompt_columns,
    "prompt_partials": _partial_columns,
    "labels": _label_columns,
    "prompt_labels": _prompt_label_columns,
}
UNIQUE_INDEXES = {
    "collections": ["workspace_id", "slug"],
    "prompts": ["workspace_id", "slug"],
    "prompt_partials": ["workspace_id", "slug"],
    "labels": ["workspace_id", "name"],
    "prompt_labels": ["prompt_id", "label_id"],
}
INDEXES = {
    "collections": "parent_collection_id",
    "prompts": "collection_id",
    "prompt_partials": "collection_id",
    "prompt_labels": "label_id",
}


def upgrade() -> None:
    """Creates the tables. Gives each workspace its default collection and the labels that every workspace has.

    Versions of configs that a key of the organisation saved get the workspace of their config.
    """
    for table, own_columns in OWN_COLUMNS.items():
        op.create_table(
            table,
            sa.Column("id", sa.String(36), nullable=False),
            sa.Column("organisation_id", sa.String(36), nullable=False),
            sa.Column("workspace_id", sa.String(36), nullable=False),
            sa.Column("created_by", sa.String(36), nullable=True),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
            *own_columns(),
            sa.ForeignKeyConstraint(
                ["organisation_id"], ["organisations.id"], name=op.f(f"fk_{table}_organisation_id")
            ),
            sa.ForeignKeyConstraint(
                ["workspace_id"], ["workspaces.id"], name=op.f(f"fk_{table}_workspace_id"), ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        )
        for owner in ("workspace_id", "organisation_id"):
            op.create_index(op.f(f"ix_{table}_{owner}_id"), table, [owner, "id"])
        columns = UNIQUE_INDEXES[table]
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, columns, unique=True)
        if column := INDEXES.get(table):
            op.create_index(op.f(f"ix_{table}_{column}"), table, [column])
    _create_workspace_rows()
    _fill_version_workspaces()


def _create_workspace_rows() -> None:
    workspaces = sa.table("workspaces", sa.column("id"), sa.column("organisation_id"))
    times = ("created_at", "last_updated_at")
    owners = ("id", "organisation_id", "workspace_id", *times)
    collections = sa.table("collections", *map(sa.column, (*owners, *COLLECTION_COLUMNS)))
    labels = sa.table("labels", *map(sa.column, (*owners, *LABEL_COLUMNS)))
    connection = op.get_bind()
    now = time.time_ns() // 1_000_000
    for row in connection.execute(sa.select(workspaces.c.id, workspaces.c.organisation_id)).all():
        owner = {"organisation_id": row.organisation_id, "workspace_id": row.id, **dict.fromkeys(times, now)}
        collection = {"slug": f"co-default-{secrets.token_hex(3)}", "name": "Default", "parent_collection_id": None}
        collection |= {"id": str(uuid_utils.uuid7()), "is_default": True, "status": "active", **owner}
        connection.execute(sa.insert(collections).values(collection))
        label = {"description": None, "color_code": None, "is_universal": True, "protected": False}
        connection.execute(
            sa.insert(labels),
            [
                {"id": str(uuid_utils.uuid7()), "name": name, "status": "active", **label, **owner}
                for name in UNIVERSAL_LABELS
            ],
        )


def _fill_version_workspaces() -> None:
    configs = sa.table("configs", sa.column("id"), sa.column("workspace_id"))
    versions = sa.table("versions", sa.column("resource_id"), sa.column("workspace_id"))
    owner = sa.select(configs.c.workspace_id).where(configs.c.id == versions.c.resource_id).scalar_subquery()
    op.execute(sa.update(versions).where(versions.c.workspace_id.is_(None)).values(workspace_id=owner))


def downgrade() -> None:
    """Drops the tables, and the contents of prompts and partials."""
    versions = sa.table("versions", sa.column("resource"))
    op.execute(sa.delete(versions).where(versions.c.resource.in_(VERSIONED_RESOURCES)))
    for table in reversed(OWN_COLUMNS):
        op.drop_table(table)
