"""Limits that tokens carry in their claims, as the data plane has seen them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024_token_limits"
down_revision = "0023_partner_credentials"

TABLE = "token_limits"


def upgrade() -> None:
    """Creates the table. It is filled as tokens are used."""
    op.create_table(
        TABLE,
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("workspace_id", sa.String(36), nullable=False),
        sa.Column("limit_id", sa.String(255), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("alert", sa.BigInteger(), nullable=True),
        sa.Column("unit", sa.String(32), nullable=True),
        sa.Column("period_start", sa.BigInteger(), nullable=True),
        sa.Column("period_end", sa.BigInteger(), nullable=True),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f(f"fk_{TABLE}_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f(f"fk_{TABLE}_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
    )
    op.create_index(op.f(f"ix_{TABLE}_limit_id_workspace_id"), TABLE, ["limit_id", "workspace_id"], unique=True)
    for columns in (["workspace_id", "seen_at"], ["organisation_id", "seen_at"], ["seen_at"]):
        op.create_index(op.f(f"ix_{TABLE}_{'_'.join(columns)}"), TABLE, columns)


def downgrade() -> None:
    """Drops the table. The limits of tokens are still enforced."""
    op.drop_table(TABLE)
