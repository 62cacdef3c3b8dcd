"""Initial tables of the store."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first_tables"
down_revision = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
    )
    op.create_table(
        "data_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("master", sa.String(length=32), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_keys")),
    )
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
        sa.UniqueConstraint("slug", name=op.f("uq_organisations_slug")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("user_type", sa.String(length=32), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("query_params", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("client_ip", sa.String(length=64), nullable=False),
        sa.Column("resource_type", sa.String(length=32), nullable=False),
        sa.Column("resource_id", sa.String(length=36), nullable=True),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("response_status_code", sa.Integer(), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_audit_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_organisation_id_id"), "audit", ["organisation_id", "id"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=False),
        sa.Column("first_name", sa.String(length=255), nullable=False),
        sa.Column("last_name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_users_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
    )
    op.create_index(op.f("ix_users_organisation_id_email"), "users", ["organisation_id", "email"], unique=True)
    op.create_index(op.f("ix_users_organisation_id_id"), "users", ["organisation_id", "id"], unique=False)
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("defaults", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("creation_source", sa.String(length=32), nullable=False),
        sa.Column("usage_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rate_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_reset_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_workspaces_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
    )
    op.create_index(op.f("ix_workspaces_organisation_id_id"), "workspaces", ["organisation_id", "id"], unique=False)
    op.create_index(op.f("ix_workspaces_organisation_id_slug"), "workspaces", ["organisation_id", "slug"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("creation_mode", sa.String(length=32), nullable=False),
        sa.Column("masked", sa.String(length=32), nullable=False),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("defaults", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("alert_emails", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("rotation_policy", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_rotated_at", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("usage_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rate_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_reset_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_api_keys_organisation_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_api_keys_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_organisation_id_id"), "api_keys", ["organisation_id", "id"], unique=False)
    op.create_index(op.f("ix_api_keys_workspace_id_id"), "api_keys", ["workspace_id", "id"], unique=False)
    op.create_table(
        "configs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=True),
        sa.Column("updated_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_configs_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_configs_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_configs")),
    )
    op.create_index(op.f("ix_configs_organisation_id_id"), "configs", ["organisation_id", "id"], unique=False)
    op.create_index(op.f("ix_configs_workspace_id_id"), "configs", ["workspace_id", "id"], unique=False)
    op.create_index(op.f("ix_configs_workspace_id_slug"), "configs", ["workspace_id", "slug"], unique=True)
    op.create_table(
        "integrations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("ai_provider_id", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("brought_along", sa.Boolean(), nullable=False),
        sa.Column("sealed_key", sa.Text(), nullable=True),
        sa.Column("masked_key", sa.String(length=32), nullable=True),
        sa.Column("configurations", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("secret_mappings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_integrations_organisation_id")
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_integrations_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_integrations")),
    )
    op.create_index(op.f("ix_integrations_organisation_id_id"), "integrations", ["organisation_id", "id"], unique=False)
    op.create_index(
        op.f("ix_integrations_organisation_id_slug"), "integrations", ["organisation_id", "slug"], unique=True
    )
    op.create_table(
        "members",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_members_organisation_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_members_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_members_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_user_id"), "members", ["user_id"], unique=False)
    op.create_index(op.f("ix_members_workspace_id_user_id"), "members", ["workspace_id", "user_id"], unique=True)
    op.create_table(
        "versions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("resource", sa.String(length=32), nullable=False),
        sa.Column("resource_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_versions_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_versions_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
    )
    op.create_index(op.f("ix_versions_resource_id_number"), "versions", ["resource_id", "number"], unique=True)
    op.create_table(
        "key_digests",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("api_key_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_key_digests_api_key_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_key_digests_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key_digests")),
        sa.UniqueConstraint("sha256", name=op.f("uq_key_digests_sha256")),
    )
    op.create_index(op.f("ix_key_digests_api_key_id"), "key_digests", ["api_key_id"], unique=False)
    op.create_table(
        "providers",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organisation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("integration_id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("usage_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rate_limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_reset_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["integration_id"], ["integrations.id"], name=op.f("fk_providers_integration_id")),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_providers_organisation_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_providers_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_providers")),
    )
    op.create_index(op.f("ix_providers_integration_id"), "providers", ["integration_id"], unique=False)
    op.create_index(op.f("ix_providers_organisation_id_id"), "providers", ["organisation_id", "id"], unique=False)
    op.create_index(op.f("ix_providers_workspace_id_id"), "providers", ["workspace_id", "id"], unique=False)
    op.create_index(op.f("ix_providers_workspace_id_slug"), "providers", ["workspace_id", "slug"], unique=True)


def downgrade() -> None:
    """Drops the tables."""
    op.drop_index(op.f("ix_providers_workspace_id_slug"), table_name="providers")
    op.drop_index(op.f("ix_providers_workspace_id_id"), table_name="providers")
    op.drop_index(op.f("ix_providers_organisation_id_id"), table_name="providers")
    op.drop_index(op.f("ix_providers_integration_id"), table_name="providers")
    op.drop_table("providers")
    op.drop_index(op.f("ix_key_digests_api_key_id"), table_name="key_digests")
    op.drop_table("key_digests")
    op.drop_index(op.f("ix_versions_resource_id_number"), table_name="versions")
    op.drop_table("versions")
    op.drop_index(op.f("ix_members_workspace_id_user_id"), table_name="members")
    op.drop_index(op.f("ix_members_user_id"), table_name="members")
    op.drop_table("members")
    op.drop_index(op.f("ix_integrations_organisation_id_slug"), table_name="integrations")
    op.drop_index(op.f("ix_integrations_organisation_id_id"), table_name="integrations")
    op.drop_table("integrations")
    op.drop_index(op.f("ix_configs_workspace_id_slug"), table_name="configs")
    op.drop_index(op.f("ix_configs_workspace_id_id"), table_name="configs")
    op.drop_index(op.f("ix_configs_organisation_id_id"), table_name="configs")
    op.drop_table("configs")
    op.drop_index(op.f("ix_api_keys_workspace_id_id"), table_name="api_keys")
    op.drop_index(op.f("ix_api_keys_organisation_id_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_index(op.f("ix_workspaces_organisation_id_slug"), table_name="workspaces")
    op.drop_index(op.f("ix_workspaces_organisation_id_id"), table_name="workspaces")
    op.drop_table("workspaces")
    op.drop_index(op.f("ix_users_organisation_id_id"), table_name="users")
    op.drop_index(op.f("ix_users_organisation_id_email"), table_name="users")
    op.drop_table("users")
    op.drop_index(op.f("ix_audit_organisation_id_id"), table_name="audit")
    op.drop_table("audit")
    op.drop_table("organisations")
    op.drop_table("data_keys")
    op.drop_table("changes")
