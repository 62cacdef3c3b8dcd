"""Corrections of costs in the usage ledger, and the workers of each node, which share limits while Redis is away."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022_usage_corrections"
down_revision = "0021_released_slugs"


def upgrade() -> None:
    """Adds the columns."""
    with op.batch_alter_table("limit_usage") as table:
        table.add_column(sa.Column("corrected_nanodollars", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("usage_ledger_nodes") as table:
        table.add_column(sa.Column("workers", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("seen_at", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index(op.f("ix_usage_ledger_nodes_seen_at"), "usage_ledger_nodes", ["seen_at"])


def downgrade() -> None:
    """Drops the columns. The counters of the data plane no longer include corrections."""
    op.drop_index(op.f("ix_usage_ledger_nodes_seen_at"), "usage_ledger_nodes")
    with op.batch_alter_table("usage_ledger_nodes") as table:
        table.drop_column("seen_at")
        table.drop_column("workers")
    with op.batch_alter_table("limit_usage") as table:
        table.drop_column("corrected_nanodollars")
