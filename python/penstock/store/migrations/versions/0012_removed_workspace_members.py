"""Removed members of single workspaces. A token that names such a user and workspace is no longer valid in that
workspace.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_removed_workspace_members"
down_revision = "0011_lowercase_emails"


def upgrade() -> None:
    """Adds `workspace_id`. It stays empty for existing rows: these users were removed from the whole organisation."""
    op.add_column("departed", sa.Column("workspace_id", sa.String(36)))


def downgrade() -> None:
    """Deletes the rows of single workspaces, which would otherwise count as removals from the whole organisation."""
    rows = sa.table("departed", sa.column("workspace_id"))
    op.execute(sa.delete(rows).where(rows.c.workspace_id.is_not(None)))
    op.drop_column("departed", "workspace_id")
