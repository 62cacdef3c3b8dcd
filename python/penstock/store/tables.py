"""Every table. Ids are UUIDs of version 7, so their order is the order of creation; moments are milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

NAME, SLUG, UUID, WORD, DIGEST = String(255), String(255), String(36), String(32), String(64)
JSON_DOCUMENT = JSON(none_as_null=True)


def _id_column() -> Column[str]:
    return Column("id", UUID, primary_key=True)


def _foreign_key_column(table: str, *, optional: bool = False, ends_with_it: bool = False) -> Column[Any]:
    """Refer to a row of another table: `workspaces` becomes `workspace_id`."""
    rule = "CASCADE" if ends_with_it else None
    return Column(f"{table[:-1]}_id", UUID, ForeignKey(f"{table}.id", ondelete=rule), nullable=optional)


def _timestamp_columns() -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in ("created_at", "last_updated_at")]


def _limit_columns() -> list[Column[Any]]:
    return [
        Column("usage_limits", JSON_DOCUMENT),
        Column("rate_limits", JSON_DOCUMENT),
        Column("last_reset_at", BigInteger),
    ]


organisations = Table(
    "organisations",
    metadata,
    _id_column(),
    Column("slug", SLUG, nullable=False, unique=True),
    Column("name", NAME, nullable=False),
    Column("settings", JSON_DOCUMENT, nullable=False),
    *_timestamp_columns(),
)

workspaces = Table(
    "workspaces",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("is_default", Boolean, nullable=False),
    Column("status", WORD, nullable=False),
    Column("defaults", JSON_DOCUMENT, nullable=False),
    Column("settings", JSON_DOCUMENT, nullable=False),
    Column("created_by", UUID),
    Column("creation_source", WORD, nullable=False),
    *_limit_columns(),
    *_timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)

users = Table(
    "users",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("email", String(320), nullable=False),
    Column("first_name", NAME, nullable=False),
    Column("last_name", NAME, nullable=False),
    Column("role", WORD, nullable=False),
    # Hashed with argon2; who signs in otherwise has none.
    Column("password", Text),
    *_timestamp_columns(),
    Index(None, "organisation_id", "email", unique=True),
    Index(None, "organisation_id", "id"),
)

# Who was taken out of the organisation, or of one workspace alone: a token may still name them. Whoever is invited again is a
# user again, whatever stands here; who is taken into the workspace again stands here no longer.
removed_members = Table(
    "departed",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("user_id", UUID, nullable=False),
    Column("email", String(320), nullable=False),
    Column("workspace_id", UUID),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "organisation_id", "user_id"),
    Index(None, "organisation_id", "email"),
)

members = Table(
    "members",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", ends_with_it=True),
    _foreign_key_column("users", ends_with_it=True),
    Column("role", WORD, nullable=False),
    Column("scopes", JSON_DOCUMENT, nullable=False),
    *_timestamp_columns(),
    Index(None, "workspace_id", "user_id", unique=True),
    Index(None, "user_id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", optional=True, ends_with_it=True),
    _foreign_key_column("users", optional=True, ends_with_it=True),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("type", WORD, nullable=False),
    Column("status", WORD, nullable=False),
    Column("creation_mode", WORD, nullable=False),
    Column("masked", WORD, nullable=False),
    Column("scopes", JSON_DOCUMENT, nullable=False),
    Column("defaults", JSON_DOCUMENT, nullable=False),
    Column("alert_emails", JSON_DOCUMENT),
    Column("expires_at", BigInteger),
    Column("rotation_policy", JSON_DOCUMENT),
    Column("last_rotated_at", BigInteger),
    Column("created_by", UUID),
    *_limit_columns(),
    *_timestamp_columns(),
    Index(None, "organisation_id", "id"),
    Index(None, "workspace_id", "id"),
)

# A key's text is never kept; while it is rotated two digests lead to it.
key_digests = Table(
    "key_digests",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("api_keys", ends_with_it=True),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("expires_at", BigInteger),
    # The text of a scheduled rotation, sealed until it is asked for.
    Column("sealed", Text),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "api_key_id"),
)

# Who is asked to come in; the link holds what only its digest is kept of.
invites = Table(
    "invites",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("email", String(320), nullable=False),
    Column("role", WORD, nullable=False),
    Column("workspaces", JSON_DOCUMENT, nullable=False),
    Column("key_scopes", JSON_DOCUMENT),
    Column("status", WORD, nullable=False),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("expires_at", BigInteger, nullable=False),
    Column("accepted_at", BigInteger),
    Column("invited_by", UUID),
    *_timestamp_columns(),
    Index(None, "organisation_id", "id"),
    Index(None, "organisation_id", "email"),
)

# Who is signed in: a person, or whoever holds a key; the cookie's text is not kept.
sessions = Table(
    "sessions",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("users", optional=True, ends_with_it=True),
    _foreign_key_column("api_keys", optional=True, ends_with_it=True),
    # Of the text that was shown: the session ends with it.
    Column("key_sha256", DIGEST),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id"),
    Index(None, "api_key_id"),
    Index(None, "created_at"),
)

# What a create with an Idempotency-Key was answered, sealed: it may hold a key's text.
idempotent_responses = Table(
    "answers",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("asked", DIGEST, nullable=False),
    Column("status", Integer, nullable=False),
    Column("sealed", Text),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "created_at"),
)

integrations = Table(
    "integrations",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", optional=True, ends_with_it=True),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("ai_provider_id", NAME, nullable=False),
    Column("status", WORD, nullable=False),
    # Made along with a virtual key, and gone with the last that uses it.
    Column("brought_along", Boolean, nullable=False),
    Column("sealed_key", Text),
    Column("masked_key", WORD),
    # What is secret among them is masked here, and sealed as one text beside it.
    Column("configurations", JSON_DOCUMENT, nullable=False),
    Column("sealed_configurations", Text),
    Column("secret_mappings", JSON_DOCUMENT, nullable=False),
    Column("tags", JSON_DOCUMENT, nullable=False),
    Column("allow_all_models", Boolean, nullable=False),
    Column("pricing_adjustments", JSON_DOCUMENT),
    # Whether workspaces may use it of which nothing else is said, and how much.
    Column("global_access", JSON_DOCUMENT, nullable=False),
    Column("default_provider_slug", SLUG),
    Column("owner_id", UUID),
    # Who may send them elsewhere: whoever made it may have left that to others.
    Column("key_given_by", UUID),
    Column("configurations_given_by", UUID),
    *_timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)

# Models that an operator said something of: whether they may be used, where they are, what they cost.
integration_models = Table(
    "integration_models",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("integrations", ends_with_it=True),
    Column("slug", NAME, nullable=False),
    Column("name", NAME),
    Column("enabled", Boolean, nullable=False),
    Column("is_custom", Boolean, nullable=False),
    Column("is_finetune", Boolean, nullable=False),
    Column("base_model_slug", NAME),
    Column("configurations", JSON_DOCUMENT, nullable=False),
    Column("sealed_configurations", Text),
    Column("pricing_config", JSON_DOCUMENT),
    *_timestamp_columns(),
    Index(None, "integration_id", "slug", unique=True),
)

# What was said of one workspace's access to an integration of the organisation.
integration_workspaces = Table(
    "integration_workspaces",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("integrations", ends_with_it=True),
    _foreign_key_column("workspaces", ends_with_it=True),
    Column("enabled", Boolean, nullable=False),
    *_limit_columns(),
    *_timestamp_columns(),
    Index(None, "integration_id", "workspace_id", unique=True),
    Index(None, "workspace_id"),
)

# Where a secret is kept, and how it is asked for there; what is secret of the latter is sealed.
secret_references = Table(
    "secret_references",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("manager_type", WORD, nullable=False),
    Column("auth_config", JSON_DOCUMENT, nullable=False),
    Column("sealed_auth_config", Text),
    Column("secret_path", String(1024), nullable=False),
    Column("secret_key", NAME),
    Column("allow_all_workspaces", Boolean, nullable=False),
    Column("allowed_workspaces", JSON_DOCUMENT, nullable=False),
    Column("tags", JSON_DOCUMENT, nullable=False),
    Column("status", WORD, nullable=False),
    Column("created_by", UUID),
    *_timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)

# A provider is an integration made usable in one workspace; a virtual key is one that brought its integration along.
providers = Table(
    "providers",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", ends_with_it=True),
    _foreign_key_column("integrations"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("note", Text),
    Column("status", WORD, nullable=False),
    Column("expires_at", BigInteger),
    Column("tags", JSON_DOCUMENT, nullable=False),
    *_limit_columns(),
    *_timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
    Index(None, "integration_id"),
)

configs = Table(
    "configs",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", ends_with_it=True),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    # What is secret in it is masked here, and sealed as one text beside it.
    Column("config", Text, nullable=False),
    Column("sealed", Text),
    Column("version_id", UUID, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("status", WORD, nullable=False),
    Column("owner_id", UUID),
    Column("updated_by", UUID),
    *_timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
)

# What was saved under a slug before, for every resource that keeps its history.
versions = Table(
    "versions",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", optional=True, ends_with_it=True),
    Column("resource", WORD, nullable=False),
    Column("resource_id", UUID, nullable=False),
    Column("number", Integer, nullable=False),
    Column("content", JSON_DOCUMENT, nullable=False),
    # What is secret of it.
    Column("sealed", Text),
    Column("created_by", UUID),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "resource_id", "number", unique=True),
)

audit_log = Table(
    "audit",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("workspace_id", UUID),
    Column("user_id", UUID),
    Column("user_type", WORD, nullable=False),
    Column("method", WORD, nullable=False),
    Column("uri", Text, nullable=False),
    Column("query_params", Text, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("client_ip", DIGEST, nullable=False),
    Column("resource_type", WORD, nullable=False),
    Column("resource_id", UUID),
    Column("action", WORD, nullable=False),
    Column("response_status_code", Integer, nullable=False),
    # What was asked for, which may have changed several things.
    Column("asked_id", UUID),
    Column("before", JSON_DOCUMENT),
    Column("after", JSON_DOCUMENT),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "organisation_id", "id"),
)

# Header fields and bodies of requests that changed something, credentials left out.
audited_requests = Table(
    "requests",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("request_headers", Text, nullable=False),
    Column("request_body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "organisation_id"),
)

# Keys that seal credentials, themselves sealed with the master key.
data_keys = Table(
    "data_keys",
    metadata,
    _id_column(),
    Column("master", WORD, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# What was uploaded to the gateway itself, or made by a batch of its own; the content is a blob of the same id.
files = Table(
    "files",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", ends_with_it=True),
    Column("purpose", WORD, nullable=False),
    Column("filename", NAME, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_by", UUID),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index(None, "workspace_id", "id"),
    Index(None, "expires_at"),
)

batches = Table(
    "batches",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", ends_with_it=True),
    Column("endpoint", WORD, nullable=False),
    Column("completion_window", WORD, nullable=False),
    Column("status", WORD, nullable=False),
    Column("input_file_id", UUID, nullable=False),
    Column("output_file_id", UUID),
    Column("error_file_id", UUID),
    Column("internal_output_file_id", UUID),
    Column("model", NAME),
    Column("details", JSON_DOCUMENT),
    Column("errors", JSON_DOCUMENT),
    # Of a batch that a provider runs: what it is called there.
    Column("job", JSON_DOCUMENT),
    # What its requests carry, the caller's key among it; forgotten when it is over.
    Column("sealed", Text),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    # By the status that began then.
    Column("moments", JSON_DOCUMENT, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    # Which process runs it, and until when it need not say so again.
    Column("run_by", UUID),
    Column("run_until", BigInteger),
    Column("created_by", UUID),
    *_timestamp_columns(),
    Index(None, "workspace_id", "id"),
    Index(None, "status", "id"),
)

# Lines of a batch that were answered, until they are put together as files.
batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", UUID, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("failed", Boolean, nullable=False),
    Column("content", Text, nullable=False),
)

# One row: how often something changed that the data plane must know.
change_counter = Table(
    "changes", metadata, Column("id", Integer, primary_key=True), Column("number", BigInteger, nullable=False)
)

# Of each number of those: which parts of it changed then; older ones are forgotten.
change_log = Table(
    "changed",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("parts", JSON_DOCUMENT, nullable=False),
)
