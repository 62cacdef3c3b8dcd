"""Slugs of deleted prompts and partials, which only publishers may use again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021_released_slugs"
down_revision = "0020_sign_in_links"


def upgrade() -> None:
    """Creates the table. Slugs of objects that were deleted before are not known."""
    op.create_table(
        "released_slugs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("workspace_id", sa.String(36), nullable=False),
        sa.Column("resource", sa.String(32), nullable=False),
        sa.Column("slug", sa.String(255), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_released_slugs_organisation_id")
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_released_slugs_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_released_slugs")),
    )
    op.create_index(
        op.f("ix_released_slugs_workspace_id_resource_slug"),
        "released_slugs",
        ["workspace_id", "resource", "slug"],
        unique=True,
    )
    op.create_index(op.f("ix_released_slugs_organisation_id"), "released_slugs", ["organisation_id"])


def downgrade() -> None:
    """Drops the table. Slugs of deleted objects can be used by everybody again."""
    op.drop_table("released_slugs")
