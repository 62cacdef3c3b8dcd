"""Holders of API keys: the users on whose authority the secret of a key was issued. Audit log entries also get the key
of the request.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0013_key_holders"
down_revision = "0012_removed_workspace_members"

ADMIN_ROLES = ("owner", "admin")
GIVEN_BY_COLUMNS = ("key_given_by", "configurations_given_by")


def upgrade() -> None:
    """Adds the columns. The holder of an existing key is the user who created it. The key expires if that user no
    longer exists, or has no access to its workspace.

    Drops the columns with owners of credentials: a new destination now requires the credential itself, even from its
    owner.
    """
    op.add_column("key_digests", sa.Column("holders", sa.JSON(), nullable=True))
    op.add_column("key_digests", sa.Column("issued_to", sa.String(36), nullable=True))
    op.add_column("invites", sa.Column("holders", sa.JSON(), nullable=True))
    op.add_column("audit", sa.Column("key_id", sa.String(36), nullable=True))
    op.add_column("audit", sa.Column("key_name", sa.String(255), nullable=True))
    op.add_column("audit", sa.Column("key_made_by", sa.String(36), nullable=True))
    for name in GIVEN_BY_COLUMNS:
        op.drop_column("integrations", name)
    _copy_creators()


def _copy_creators() -> None:
    json_type = sa.JSON(none_as_null=True)
    keys = sa.table(
        "api_keys", sa.column("id"), sa.column("organisation_id"), sa.column("workspace_id"), sa.column("created_by")
    )
    users = sa.table("users", sa.column("id"), sa.column("organisation_id"), sa.column("role"))
    members = sa.table("members", sa.column("user_id"), sa.column("workspace_id"))
    creator_keys = keys.alias("creator_keys")
    digests = sa.table(
        "key_digests",
        sa.column("api_key_id"),
        sa.column("sealed"),
        sa.column("expires_at"),
        sa.column("holders", json_type),
        sa.column("issued_to"),
    )
    is_creator = sa.and_(users.c.id == keys.c.created_by, users.c.organisation_id == keys.c.organisation_id)
    is_creator_key = sa.and_(
        creator_keys.c.id == keys.c.created_by, creator_keys.c.organisation_id == keys.c.organisation_id
    )
    is_member = sa.exists().where(members.c.user_id == users.c.id, members.c.workspace_id == keys.c.workspace_id)
    has_access = sa.or_(creator_keys.c.id.is_not(None), users.c.role.in_(ADMIN_ROLES), is_member)
    connection = op.get_bind()
    creators = connection.execute(
        sa.select(keys.c.id, keys.c.created_by, users.c.id.label("user_id"), has_access.label("has_access"))
        .outerjoin(users, is_creator)
        .outerjoin(creator_keys, is_creator_key)
        .where(keys.c.created_by.is_not(None))
    ).all()
    now = time.time_ns() // 1_000_000
    for row in creators:
        is_held = sa.and_(digests.c.api_key_id == row.id, digests.c.sealed.is_(None))
        values = {"holders": [row.user_id] if row.user_id else None, "issued_to": row.created_by}
        connection.execute(sa.update(digests).where(is_held).values(values))
        if not row.has_access:
            is_valid = sa.or_(digests.c.expires_at.is_(None), digests.c.expires_at > now)
            connection.execute(sa.update(digests).where(is_held, is_valid).values(expires_at=now))


def downgrade() -> None:
    """Drops the columns, and restores the empty columns for the owners of credentials."""
    for name in GIVEN_BY_COLUMNS:
        op.add_column("integrations", sa.Column(name, sa.String(36), nullable=True))
    for name in ("key_made_by", "key_name", "key_id"):
        op.drop_column("audit", name)
    op.drop_column("invites", "holders")
    for name in ("issued_to", "holders"):
        op.drop_column("key_digests", name)
