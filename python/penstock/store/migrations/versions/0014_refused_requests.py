"""Refused requests: audit log entries for requests that got a 401 or 403 response. Their number is bounded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_refused_requests"
down_revision = "0013_key_holders"


def upgrade() -> None:
    """Adds the column and the index by which the oldest refusals are found. The column stays empty for changes."""
    op.add_column("audit", sa.Column("refused_from", sa.String(32), nullable=True))
    op.create_index(
        op.f("ix_audit_refused_from_organisation_id_id"), "audit", ["refused_from", "organisation_id", "id"]
    )


def downgrade() -> None:
    """Deletes the refusals, which older releases would show as changes."""
    rows = sa.table("audit", sa.column("refused_from"))
    op.execute(sa.delete(rows).where(rows.c.refused_from.is_not(None)))
    op.drop_index(op.f("ix_audit_refused_from_organisation_id_id"), table_name="audit")
    op.drop_column("audit", "refused_from")
