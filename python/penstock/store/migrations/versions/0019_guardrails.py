"""Table of guardrails."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019_guardrails"
down_revision = "0018_prompts"

DEFAULT_FIELDS = ("input_guardrails", "output_guardrails")


def upgrade() -> None:
    """Creates the table. Removes default guardrails from settings, because they cannot name guardrails that did not
    exist yet.
    """
    op.create_table(
        "guardrails",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("organisation_id", sa.String(36), nullable=False),
        sa.Column("workspace_id", sa.String(36), nullable=True),
        sa.Column("slug", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("checks", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("actions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("version_id", sa.String(36), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("owner_id", sa.String(36), nullable=True),
        sa.Column("updated_by", sa.String(36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_guardrails_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_guardrails_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_guardrails")),
    )
    op.create_index(op.f("ix_guardrails_organisation_id_slug"), "guardrails", ["organisation_id", "slug"], unique=True)
    for owner in ("workspace_id", "organisation_id"):
        op.create_index(op.f(f"ix_guardrails_{owner}_id"), "guardrails", [owner, "id"])
    _update_documents("workspaces", "defaults", _without_guardrails)
    _update_documents("organisations", "settings", _without_default_guardrails)


def _update_documents(table: str, column: str, change: Any) -> None:  # noqa: ANN401 - a function
    rows = sa.table(table, sa.column("id"), sa.column(column, sa.JSON(none_as_null=True)))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows.c.id, rows.c[column])).all():
        changed = change(row[1])
        if changed != row[1]:
            connection.execute(sa.update(rows).where(rows.c.id == row.id).values({column: changed}))


def _without_guardrails(defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if name not in DEFAULT_FIELDS}


def _without_default_guardrails(settings: dict[str, Any]) -> dict[str, Any]:
    defaults = settings.get("defaults")
    return {**settings, "defaults": _without_guardrails(defaults)} if defaults else settings


def downgrade() -> None:
    """Drops the table. Removes default guardrails and exclusions from settings: the guardrails no longer exist."""
    versions = sa.table("versions", sa.column("resource"))
    op.execute(sa.delete(versions).where(versions.c.resource == "guardrails"))
    _update_documents("workspaces", "defaults", _without_guardrails)
    _update_documents("organisations", "settings", _without_exclusions)
    op.drop_table("guardrails")


def _without_exclusions(settings: dict[str, Any]) -> dict[str, Any]:
    remaining = {name: value for name, value in settings.items() if name != "guardrail_exclusions"}
    return _without_default_guardrails(remaining)
