"""Tables of the store. Ids are version 7 UUIDs, so they sort by creation time. Timestamps are milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text, true

from penstock.store.columns import DIGEST, JSON_DOCUMENT, NAME, SHORT_TEXT, SLUG, UUID, metadata
from penstock.store.columns import foreign_key_column as _foreign_key_column
from penstock.store.columns import id_column as _id_column
from penstock.store.columns import timestamp_columns as _timestamp_columns


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
    # Emoji before the displayed name, if it is not part of the name itself.
    Column("icon", NAME),
    Column("description", Text),
    Column("is_default", Boolean, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("defaults", JSON_DOCUMENT, nullable=False),
    Column("settings", JSON_DOCUMENT, nullable=False),
    Column("created_by", UUID),
    Column("creation_source", SHORT_TEXT, nullable=False),
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
    Column("role", SHORT_TEXT, nullable=False),
    # Argon2 hash. Empty for users who sign in by other means.
    Column("password", Text),
    *_timestamp_columns(),
    Index(None, "organisation_id", "email", unique=True),
    Index(None, "organisation_id", "id"),
)

# Users removed from the organisation, or from one workspace if `workspace_id` is set. Tokens that still name them are
# rejected. A user who is invited again is valid despite a row here. Adding a user to a workspace again deletes the row.
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
    Column("role", SHORT_TEXT, nullable=False),
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
    Column("type", SHORT_TEXT, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("creation_mode", SHORT_TEXT, nullable=False),
    Column("masked", SHORT_TEXT, nullable=False),
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

# Digests of the secrets of API keys. During a rotation, a key has two digests.
key_digests = Table(
    "key_digests",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("api_keys", ends_with_it=True),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("expires_at", BigInteger),
    # Encrypted secret, such as that of a scheduled rotation, until a client fetches it. Other secrets are not stored.
    Column("sealed", Text),
    # Ids of the users on whose authority the key's secret was issued. The secret stops working when one of them loses
    # access.
    Column("holders", JSON_DOCUMENT),
    # User or API key that received the secret.
    Column("issued_to", UUID),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "api_key_id"),
)

# Invited users. The invitation link contains a token of which only the digest is stored.
invites = Table(
    "invites",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("email", String(320), nullable=False),
    Column("role", SHORT_TEXT, nullable=False),
    Column("first_name", NAME),
    Column("last_name", NAME),
    Column("workspaces", JSON_DOCUMENT, nullable=False),
    # Scopes of the API keys that the user gets, as a list. An object if the keys also have a name, expiry or metadata.
    Column("key_scopes", JSON_DOCUMENT),
    Column("status", SHORT_TEXT, nullable=False),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("expires_at", BigInteger, nullable=False),
    Column("accepted_at", BigInteger),
    Column("invited_by", UUID),
    # Users on whose authority the invitation was sent, possibly with an API key. It is cancelled when one of them loses
    # rights.
    Column("holders", JSON_DOCUMENT),
    *_timestamp_columns(),
    Index(None, "organisation_id", "id"),
    Index(None, "organisation_id", "email"),
)

# Signed-in sessions, of a user or of the holder of an API key. The value of the cookie is not stored.
sessions = Table(
    "sessions",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("users", optional=True, ends_with_it=True),
    _foreign_key_column("api_keys", optional=True, ends_with_it=True),
    # Digest of the API key that opened the session. The session ends when that digest expires or is deleted.
    Column("key_sha256", DIGEST),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id"),
    Index(None, "api_key_id"),
    Index(None, "created_at"),
)

# Links that sign a user in to the console once. The secret of a link is not stored.
sign_in_links = Table(
    "sign_in_links",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("users", ends_with_it=True),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("expires_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id"),
    Index(None, "expires_at"),
)

# Responses to create requests with an Idempotency-Key. They are encrypted, because a response may contain an API key.
idempotent_responses = Table(
    "idempotent_responses",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("sha256", DIGEST, nullable=False, unique=True),
    Column("request_digest", DIGEST, nullable=False),
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
    Column("status", SHORT_TEXT, nullable=False),
    # True if the integration was created together with a virtual key. It is then deleted with the last virtual key that
    # uses it.
    Column("brought_along", Boolean, nullable=False),
    Column("sealed_key", Text),
    Column("masked_key", SHORT_TEXT),
    # Provider options. Secret values are masked here and stored encrypted in `sealed_configurations`.
    Column("configurations", JSON_DOCUMENT, nullable=False),
    Column("sealed_configurations", Text),
    Column("secret_mappings", JSON_DOCUMENT, nullable=False),
    Column("tags", JSON_DOCUMENT, nullable=False, server_default="{}"),
    Column("allow_all_models", Boolean, nullable=False, server_default=true()),
    Column("pricing_adjustments", JSON_DOCUMENT),
    # Default access for workspaces without an entry of their own: whether they may use the integration, and its limits.
    Column("global_access", JSON_DOCUMENT, nullable=False, server_default='{"enabled": true}'),
    Column("default_provider_slug", SLUG),
    Column("owner_id", UUID),
    *_timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)

# Settings for single models of an integration: if requests may use the model, its host and its price.
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

# Access of single workspaces to an integration of the organisation.
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

# Locations of secrets in external secret managers, with the auth config for the manager, whose secret values are
# encrypted.
secret_references = Table(
    "secret_references",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    Column("slug", SLUG, nullable=False),
    Column("name", NAME, nullable=False),
    Column("description", Text),
    Column("manager_type", SHORT_TEXT, nullable=False),
    Column("auth_config", JSON_DOCUMENT, nullable=False),
    Column("sealed_auth_config", Text),
    Column("secret_path", String(1024), nullable=False),
    Column("secret_key", NAME),
    Column("allow_all_workspaces", Boolean, nullable=False),
    Column("allowed_workspaces", JSON_DOCUMENT, nullable=False),
    Column("tags", JSON_DOCUMENT, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("created_by", UUID),
    *_timestamp_columns(),
    Index(None, "organisation_id", "slug", unique=True),
    Index(None, "organisation_id", "id"),
)

# Providers, each of which makes an integration available in a workspace. A virtual key is a provider that was created
# together with its integration.
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
    Column("status", SHORT_TEXT, nullable=False),
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
    # Secret values are masked here and stored encrypted in `sealed`.
    Column("config", Text, nullable=False),
    Column("sealed", Text),
    Column("version_id", UUID, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("owner_id", UUID),
    Column("updated_by", UUID),
    *_timestamp_columns(),
    Index(None, "workspace_id", "slug", unique=True),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
)

# Versions of objects with a history: configs, guardrails, prompts and partials.
versions = Table(
    "versions",
    metadata,
    _id_column(),
    _foreign_key_column("organisations"),
    _foreign_key_column("workspaces", optional=True, ends_with_it=True),
    Column("resource", SHORT_TEXT, nullable=False),
    Column("resource_id", UUID, nullable=False),
    Column("number", Integer, nullable=False),
    Column("content", JSON_DOCUMENT, nullable=False),
    # Encrypted secret values of `content`.
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
    Column("user_type", SHORT_TEXT, nullable=False),
    # API key of the request.
    Column("key_id", UUID),
    # Name of the key at the time of the request.
    Column("key_name", NAME),
    # User or API key that received the secret of the key.
    Column("key_made_by", UUID),
    Column("method", SHORT_TEXT, nullable=False),
    Column("uri", Text, nullable=False),
    Column("query_params", Text, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("client_ip", DIGEST, nullable=False),
    Column("resource_type", SHORT_TEXT, nullable=False),
    Column("resource_id", UUID),
    Column("action", SHORT_TEXT, nullable=False),
    Column("response_status_code", Integer, nullable=False),
    # Row in `requests` for the request that made the change. One request may make several changes.
    Column("audited_request_id", UUID),
    Column("before", JSON_DOCUMENT),
    Column("after", JSON_DOCUMENT),
    # Origin of a refused request: `anonymous` or `caller`; null for changes. The number of refused requests is bounded.
    Column("refused_from", SHORT_TEXT),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "organisation_id", "id"),
    Index(None, "refused_from", "organisation_id", "id"),
)

# Requests that changed something: their header fields and bodies, without credentials.
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

# Keys that encrypt credentials. They are themselves encrypted with the master key.
data_keys = Table(
    "data_keys",
    metadata,
    _id_column(),
    Column("master", SHORT_TEXT, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Single row with a counter of all changes that affect the data plane.
change_counter = Table(
    "changes", metadata, Column("id", Integer, primary_key=True), Column("number", BigInteger, nullable=False)
)

# Snapshot sections that each change affects, by its number from `change_counter`. Old entries are deleted.
_change_number = Column("number", BigInteger, primary_key=True, autoincrement=False)
change_log = Table("changed", metadata, _change_number, Column("parts", JSON_DOCUMENT, nullable=False))
