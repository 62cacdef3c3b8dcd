"""Policies: usage limits and rate limits of groups of requests, and the usage that counts towards limits."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017_policies"
down_revision = "0016_log_exports"


def _usage_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("credit_limit", sa.Double(), nullable=False),
        sa.Column("alert_threshold", sa.Double(), nullable=True),
        sa.Column("periodic_reset", sa.String(32), nullable=True),
        sa.Column("periodic_reset_days", sa.Integer(), nullable=True),
        sa.Column("next_usage_reset_at", sa.BigInteger(), nullable=True),
        sa.Column("last_reset_at", sa.BigInteger(), nullable=True),
        sa.Column("enforcement", sa.String(32), nullable=False),
    ]


def _rate_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("window", sa.String(32), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
    ]


OWN_COLUMNS = {"usage_limits_policies": _usage_columns, "rate_limits_policies": _rate_columns}


def upgrade() -> None:
    """Creates the tables."""
    for table, own_columns in OWN_COLUMNS.items():
        op.create_table(
            table,
            sa.Column("id", sa.String(36), nullable=False),
            sa.Column("organisation_id", sa.String(36), nullable=False),
            sa.Column("workspace_id", sa.String(36), nullable=False),
            sa.Column("name", sa.String(255), nullable=True),
            sa.Column("description", sa.Text(), nullable=True),
            sa.Column("status", sa.String(32), nullable=False),
            sa.Column("conditions", sa.JSON(none_as_null=True), nullable=False),
            sa.Column("group_by", sa.JSON(none_as_null=True), nullable=False),
            sa.Column("type", sa.String(32), nullable=False),
            sa.Column("dry_run", sa.Boolean(), nullable=False),
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
        for workspace in ("workspace_id", "organisation_id"):
            op.create_index(op.f(f"ix_{table}_{workspace}_id"), table, [workspace, "id"])
    op.create_table(
        "limit_usage",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("limit_id", sa.String(255), nullable=False),
        sa.Column("value_key", sa.Text(), nullable=False),
        sa.Column("period_start", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("requests", "tokens", "nanodollars")),
        sa.Column("status", sa.String(32), nullable=False),
        *(
            sa.Column(name, sa.Boolean(), nullable=False)
            for name in ("is_threshold_alert_sent", "is_exhausted_alert_sent")
        ),
        sa.Column("measure", sa.String(32), nullable=False),
        sa.Column("resets", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("limit_id", "value_key", "period_start", name=op.f("pk_limit_usage")),
        sa.UniqueConstraint("id", name=op.f("uq_limit_usage_id")),
    )
    op.create_index(op.f("ix_limit_usage_updated_at"), "limit_usage", ["updated_at"])
    op.create_table(
        "usage_ledger_nodes",
        sa.Column("node", sa.String(36), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_usage_ledger_nodes")),
    )


def downgrade() -> None:
    """Drops the tables."""
    for table in ("usage_ledger_nodes", "limit_usage", *OWN_COLUMNS):
        op.drop_table(table)
