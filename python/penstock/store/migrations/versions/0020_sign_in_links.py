"""Links that sign a user in to the console once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_sign_in_links"
down_revision = "0019_guardrails"


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "sign_in_links",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_sign_in_links_organisation_id")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sign_in_links_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_in_links")),
        sa.UniqueConstraint("sha256", name=op.f("uq_sign_in_links_sha256")),
    )
    for column in ("user_id", "expires_at"):
        op.create_index(op.f(f"ix_sign_in_links_{column}"), "sign_in_links", [column])


def downgrade() -> None:
    """Drops the table. Links that were not used stop working."""
    op.drop_table("sign_in_links")
