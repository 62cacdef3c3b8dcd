"""Invites, passwords, sessions, and stored responses for idempotent creates."""

import sqlalchemy as sa
from alembic import op

revision = "0003_users_and_sessions"
down_revision = "0002_integrations"


def upgrade() -> None:
    """Creates the tables and adds the columns."""
    with op.batch_alter_table("users") as users:
        users.add_column(sa.Column("password", sa.Text(), nullable=True))
    with op.batch_alter_table("key_digests") as digests:
        digests.add_column(sa.Column("sealed", sa.Text(), nullable=True))
    op.create_table(
        "invites",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("workspaces", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("key_scopes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("accepted_at", sa.BigInteger(), nullable=True),
        sa.Column("invited_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_invites_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invites")),
        sa.UniqueConstraint("sha256", name=op.f("uq_invites_sha256")),
    )
    op.create_index(op.f("ix_invites_organisation_id_id"), "invites", ["organisation_id", "id"])
    op.create_index(op.f("ix_invites_organisation_id_email"), "invites", ["organisation_id", "email"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("api_key_id", sa.String(length=36), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_sessions_organisation_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sessions_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_sessions_api_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("sha256", name=op.f("uq_sessions_sha256")),
    )
    for column in ("user_id", "api_key_id", "created_at"):
        op.create_index(op.f(f"ix_sessions_{column}"), "sessions", [column])
    op.create_table(
        "idempotent_responses",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_idempotent_responses_organisation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idempotent_responses")),
        sa.UniqueConstraint("sha256", name=op.f("uq_idempotent_responses_sha256")),
    )
    op.create_index(op.f("ix_idempotent_responses_created_at"), "idempotent_responses", ["created_at"])


def downgrade() -> None:
    """Drops the tables and the added columns."""
    for table in ("idempotent_responses", "sessions", "invites"):
        op.drop_table(table)
    with op.batch_alter_table("key_digests") as digests:
        digests.drop_column("sealed")
    with op.batch_alter_table("users") as users:
        users.drop_column("password")
