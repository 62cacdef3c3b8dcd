"""E-mail addresses of people in small letters, by which they are found: `init --email` kept an owner's as it was typed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_addresses"
down_revision = "0011_departed"

USERS = sa.table("users", sa.column("id"), sa.column("organisation_id"), sa.column("email"))


def upgrade() -> None:
    """Write them so, but for who would then have that of somebody else."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(USERS).order_by(USERS.c.id)).all()
    taken = {(row.organisation_id, row.email) for row in rows}
    for row in rows:
        small = (row.organisation_id, row.email.lower())
        if small not in taken:
            taken.add(small)
            connection.execute(sa.update(USERS).where(USERS.c.id == row.id).values(email=small[1]))


def downgrade() -> None:
    """Leave them: nobody knows how they were typed."""
