"""Credential owners of an integration: the users who supplied its key and configurations. They may differ from the
creator.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_credential_owner"
down_revision = "0008_audited_requests"

COLUMN_NAMES = ("key_given_by", "configurations_given_by")


def upgrade() -> None:
    """Adds the columns. They stay empty for existing rows, whose credential owners are unknown."""
    with op.batch_alter_table("integrations") as altered:
        for name in COLUMN_NAMES:
            altered.add_column(sa.Column(name, sa.String(36), nullable=True))


def downgrade() -> None:
    """Drops the columns."""
    with op.batch_alter_table("integrations") as altered:
        for name in reversed(COLUMN_NAMES):
            altered.drop_column(name)
