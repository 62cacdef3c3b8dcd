"""Who gave the credentials of an integration, which need not be who made it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_givers"
down_revision = "0009_requests"

COLUMN_NAMES = ("key_given_by", "configurations_given_by")


def upgrade() -> None:
    """Make room for it; of those that are there already nobody knows it any more."""
    with op.batch_alter_table("integrations") as altered:
        for name in COLUMN_NAMES:
            altered.add_column(sa.Column(name, sa.String(36), nullable=True))


def downgrade() -> None:
    """Take it away."""
    with op.batch_alter_table("integrations") as altered:
        for name in reversed(COLUMN_NAMES):
            altered.drop_column(name)
