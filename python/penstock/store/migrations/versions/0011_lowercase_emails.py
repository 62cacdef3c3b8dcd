"""Converts users' e-mail addresses to lower case, as lookups expect. `init --email` stored the owner's address as
typed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_lowercase_emails"
down_revision = "0010_removed_org_members"

USERS = sa.table("users", sa.column("id"), sa.column("organisation_id"), sa.column("email"))


def upgrade() -> None:
    """Converts each address to lower case, except where another user of the organisation already has the result."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(USERS).order_by(USERS.c.id)).all()
    used = {(row.organisation_id, row.email) for row in rows}
    for row in rows:
        small = (row.organisation_id, row.email.lower())
        if small not in used:
            used.add(small)
            connection.execute(sa.update(USERS).where(USERS.c.id == row.id).values(email=small[1]))


def downgrade() -> None:
    """Does nothing: the original spelling is not stored."""
