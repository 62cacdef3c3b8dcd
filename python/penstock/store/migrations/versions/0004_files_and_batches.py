"""Files and batches that the gateway stores itself."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004_files_and_batches"
down_revision = "0003_users_and_sessions"


def _tenant_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
    ]


def _constraints(table: str) -> list[sa.Constraint]:
    return [
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f(f"fk_{table}_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f(f"fk_{table}_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
    ]


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "files",
        *_tenant_columns(),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        *_constraints("files"),
    )
    op.create_index(op.f("ix_files_workspace_id_id"), "files", ["workspace_id", "id"])
    op.create_index(op.f("ix_files_expires_at"), "files", ["expires_at"])
    op.create_table(
        "batches",
        *_tenant_columns(),
        sa.Column("endpoint", sa.String(length=32), nullable=False),
        sa.Column("completion_window", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("input_file_id", sa.String(length=36), nullable=False),
        sa.Column("output_file_id", sa.String(length=36), nullable=True),
        sa.Column("error_file_id", sa.String(length=36), nullable=True),
        sa.Column("internal_output_file_id", sa.String(length=36), nullable=True),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("job", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("moments", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("run_by", sa.String(length=36), nullable=True),
        sa.Column("run_until", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        *_constraints("batches"),
    )
    op.create_index(op.f("ix_batches_workspace_id_id"), "batches", ["workspace_id", "id"])
    op.create_index(op.f("ix_batches_status_id"), "batches", ["status", "id"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batch_lines_batch_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("pk_batch_lines")),
    )


def downgrade() -> None:
    """Drops the tables."""
    for table in ("batch_lines", "batches", "files"):
        op.drop_table(table)
