"""Icons of workspaces, and the names that an invitation proposes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_icons_and_names"
down_revision = "0014_refused_requests"

COLUMN_NAMES = {"workspaces": ("icon",), "invites": ("first_name", "last_name")}


def upgrade() -> None:
    """Adds the columns. They stay empty for existing rows."""
    for table, names in COLUMN_NAMES.items():
        with op.batch_alter_table(table) as altered:
            for name in names:
                altered.add_column(sa.Column(name, sa.String(255), nullable=True))


def downgrade() -> None:
    """Drops the columns."""
    for table, names in COLUMN_NAMES.items():
        with op.batch_alter_table(table) as altered:
            for name in reversed(names):
                altered.drop_column(name)
