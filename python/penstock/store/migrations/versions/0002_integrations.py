"""Model and workspace settings of integrations, and references to secrets in external secret managers."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002_integrations"
down_revision = "0001_first_tables"

JSON_DOCUMENT = sa.JSON(none_as_null=True)


def _new_integration_columns() -> list[Any]:
    return [
        sa.Column("sealed_configurations", sa.Text()),
        sa.Column("tags", JSON_DOCUMENT, nullable=False, server_default="{}"),
        sa.Column("allow_all_models", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("pricing_adjustments", JSON_DOCUMENT),
        # Existing integrations were open to every workspace.
        sa.Column("global_access", JSON_DOCUMENT, nullable=False, server_default='{"enabled": true}'),
        sa.Column("default_provider_slug", sa.String(length=255)),
        sa.Column("owner_id", sa.String(length=36)),
    ]


def upgrade() -> None:
    """Creates the tables and adds the columns to `integrations`."""
    with op.batch_alter_table("integrations") as table:
        for column in _new_integration_columns():
            table.add_column(column)
    _create_integration_models()
    _create_integration_workspaces()
    _create_secret_references()


def downgrade() -> None:
    """Drops the tables and the added columns."""
    op.drop_table("secret_references")
    op.drop_table("integration_workspaces")
    op.drop_table("integration_models")
    with op.batch_alter_table("integrations") as table:
        for column in reversed(_new_integration_columns()):
            table.drop_column(column.name)


def _common_columns(table: str, *parents: str) -> list[Any]:
    """Returns the columns that every table has, and the foreign keys to the parent tables."""
    columns: list[Any] = [sa.Column("id", sa.String(length=36), nullable=False)]
    rules: list[Any] = [sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}"))]
    for parent in ("organisations", *parents):
        name = f"{parent[:-1]}_id"
        columns.append(sa.Column(name, sa.String(length=36), nullable=False))
        rule = None if parent == "organisations" else "CASCADE"
        rules.append(sa.ForeignKeyConstraint([name], [f"{parent}.id"], name=op.f(f"fk_{table}_{name}"), ondelete=rule))
    times = [sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at", "last_updated_at")]
    return [*columns, *times, *rules]


def _create_integration_models() -> None:
    op.create_table(
        "integration_models",
        *_common_columns("integration_models", "integrations"),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255)),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("is_custom", sa.Boolean(), nullable=False),
        sa.Column("is_finetune", sa.Boolean(), nullable=False),
        sa.Column("base_model_slug", sa.String(length=255)),
        sa.Column("configurations", JSON_DOCUMENT, nullable=False),
        sa.Column("sealed_configurations", sa.Text()),
        sa.Column("pricing_config", JSON_DOCUMENT),
    )
    _create_index("integration_models", "integration_id", "slug", unique=True)


def _create_integration_workspaces() -> None:
    op.create_table(
        "integration_workspaces",
        *_common_columns("integration_workspaces", "integrations", "workspaces"),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("usage_limits", JSON_DOCUMENT),
        sa.Column("rate_limits", JSON_DOCUMENT),
        sa.Column("last_reset_at", sa.BigInteger()),
    )
    _create_index("integration_workspaces", "integration_id", "workspace_id", unique=True)
    _create_index("integration_workspaces", "workspace_id")


def _create_secret_references() -> None:
    op.create_table(
        "secret_references",
        *_common_columns("secret_references"),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text()),
        sa.Column("manager_type", sa.String(length=32), nullable=False),
        sa.Column("auth_config", JSON_DOCUMENT, nullable=False),
        sa.Column("sealed_auth_config", sa.Text()),
        sa.Column("secret_path", sa.String(length=1024), nullable=False),
        sa.Column("secret_key", sa.String(length=255)),
        sa.Column("allow_all_workspaces", sa.Boolean(), nullable=False),
        sa.Column("allowed_workspaces", JSON_DOCUMENT, nullable=False),
        sa.Column("tags", JSON_DOCUMENT, nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("created_by", sa.String(length=36)),
    )
    _create_index("secret_references", "organisation_id", "slug", unique=True)
    _create_index("secret_references", "organisation_id", "id")


def _create_index(table: str, *columns: str, unique: bool = False) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns), unique=unique)
