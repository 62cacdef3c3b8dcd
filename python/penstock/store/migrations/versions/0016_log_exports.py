"""Log exports: their filters, fields and state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_log_exports"
down_revision = "0015_icons_and_names"


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "log_exports",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("workspace_id", sa.String(36), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("filters", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("requested_data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("total_records", sa.BigInteger(), nullable=True),
        sa.Column("restricted_to", sa.String(36), nullable=True),
        sa.Column("file_id", sa.String(36), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_by", sa.String(36), nullable=True),
        sa.Column("run_until", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.String(36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_log_exports_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_log_exports_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_exports")),
    )
    for columns in (("workspace_id", "id"), ("organisation_id", "id"), ("status", "id")):
        op.create_index(op.f(f"ix_log_exports_{'_'.join(columns)}"), "log_exports", columns)


def downgrade() -> None:
    """Drops the table. The files of finished exports expire as all files do."""
    op.drop_table("log_exports")
