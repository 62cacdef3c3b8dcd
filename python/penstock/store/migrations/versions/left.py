"""Who was taken out of a workspace alone: a token that names both is of no use there any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_left"
down_revision = "0012_addresses"


def upgrade() -> None:
    """Add the workspace; those who are there were taken out of all of the organisation."""
    op.add_column("departed", sa.Column("workspace_id", sa.String(36)))


def downgrade() -> None:
    """Forget who was taken out of one workspace alone: without it they would count as taken out of all."""
    rows = sa.table("departed", sa.column("workspace_id"))
    op.execute(sa.delete(rows).where(rows.c.workspace_id.is_not(None)))
    op.drop_column("departed", "workspace_id")
