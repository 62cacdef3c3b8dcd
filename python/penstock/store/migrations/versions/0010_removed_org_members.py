"""Removed members of an organisation. A token that still names a removed user must not authenticate as that user."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_removed_org_members"
down_revision = "0009_credential_owner"


def upgrade() -> None:
    """Creates the table. Users removed earlier are unknown and are not listed."""
    op.create_table(
        "departed",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("email", sa.String(320), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_departed_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_departed")),
    )
    for name in ("user_id", "email"):
        op.create_index(op.f(f"ix_departed_organisation_id_{name}"), "departed", ["organisation_id", name])


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("departed")
