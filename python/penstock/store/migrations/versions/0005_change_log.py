"""Change log: the snapshot sections that each numbered change affects."""

import sqlalchemy as sa
from alembic import op

revision = "0005_change_log"
down_revision = "0004_files_and_batches"


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "changed",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parts", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_changed")),
    )


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("changed")
