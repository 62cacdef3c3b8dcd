"""Credentials of an organisation for guardrail partners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023_partner_credentials"
down_revision = "0022_usage_corrections"

TABLE = "partner_credentials"


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        TABLE,
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("slug", sa.String(255), nullable=False),
        sa.Column("credentials", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("base_url", sa.String(2048), nullable=True),
        sa.Column("allow_all_workspaces", sa.Boolean(), nullable=False),
        sa.Column("allowed_workspaces", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_by", sa.String(36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f(f"fk_{TABLE}_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
    )
    op.create_index(op.f(f"ix_{TABLE}_organisation_id_slug"), TABLE, ["organisation_id", "slug"], unique=True)
    op.create_index(op.f(f"ix_{TABLE}_organisation_id_id"), TABLE, ["organisation_id", "id"])


def downgrade() -> None:
    """Drops the table. Guardrails without credentials of their own are no longer published."""
    op.drop_table(TABLE)
