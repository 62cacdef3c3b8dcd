"""Sessions record the digest of the API key that opened them. Existing sessions, which have no digest, become invalid."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_session_key_digest"
down_revision = "0006_encrypted_configs"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("sessions", sa.Column("key_sha256", sa.String(64), nullable=True))


def downgrade() -> None:
    """Drops the column; sessions are then tied to the key's id only."""
    op.drop_column("sessions", "key_sha256")
