"""Audited requests: header fields and body, without credentials, that belong to the entries of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_audited_requests"
down_revision = "0007_session_key_digest"


def upgrade() -> None:
    """Creates the table and adds `audit.audited_request_id`. It stays empty for existing entries, whose requests are
    unknown.
    """
    op.create_table(
        "requests",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("request_headers", sa.Text(), nullable=False),
        sa.Column("request_body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_requests_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_organisation_id"), "requests", ["organisation_id"])
    op.add_column("audit", sa.Column("audited_request_id", sa.String(36), nullable=True))


def downgrade() -> None:
    """Drops the table and the column."""
    with op.batch_alter_table("audit") as altered:
        altered.drop_column("audited_request_id")
    op.drop_index(op.f("ix_requests_organisation_id"), table_name="requests")
    op.drop_table("requests")
