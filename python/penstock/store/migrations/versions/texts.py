"""Sessions know the text of the key that they were opened with; those of before, which do not, are over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_texts"
down_revision = "0007_sealed"


def upgrade() -> None:
    """Make room for it."""
    op.add_column("sessions", sa.Column("key_sha256", sa.String(64), nullable=True))


def downgrade() -> None:
    """Go by the key again."""
    op.drop_column("sessions", "key_sha256")
