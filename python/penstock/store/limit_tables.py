"""Tables of limits: policies, the usage that counts towards limits, and the nodes that report it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text
from sqlalchemy.types import Double

from penstock.store.columns import (
    JSON_DOCUMENT,
    NAME,
    SHORT_TEXT,
    UUID,
    foreign_key_column,
    id_column,
    metadata,
    timestamp_columns,
)


def _policy_columns() -> list[Column[Any] | Index]:
    return [
        id_column(),
        foreign_key_column("organisations"),
        foreign_key_column("workspaces", ends_with_it=True),
        Column("name", NAME),
        Column("description", Text),
        Column("status", SHORT_TEXT, nullable=False),
        Column("conditions", JSON_DOCUMENT, nullable=False),
        Column("group_by", JSON_DOCUMENT, nullable=False),
        Column("type", SHORT_TEXT, nullable=False),
        # True if the policy only records what it would reject.
        Column("dry_run", Boolean, nullable=False),
        Column("created_by", UUID),
        *timestamp_columns(),
        Index(None, "workspace_id", "id"),
        Index(None, "organisation_id", "id"),
    ]


usage_limits_policies = Table(
    "usage_limits_policies",
    metadata,
    *_policy_columns(),
    # Limit in US dollars, tokens or requests, by `type`.
    Column("credit_limit", Double, nullable=False),
    Column("alert_threshold", Double),
    Column("periodic_reset", SHORT_TEXT),
    Column("periodic_reset_days", Integer),
    Column("next_usage_reset_at", BigInteger),
    Column("last_reset_at", BigInteger),
    Column("enforcement", SHORT_TEXT, nullable=False),
)

rate_limits_policies = Table(
    "rate_limits_policies",
    metadata,
    *_policy_columns(),
    *(Column(name, SHORT_TEXT, nullable=False) for name in ("unit", "window", "target")),
    Column("value", BigInteger, nullable=False),
)

# Usage that counts towards a limit, by value of the policy's groups and period. A limit belongs to a policy, key,
# provider, workspace, integration or token, so its id refers to no single table.
limit_usage = Table(
    "limit_usage",
    metadata,
    Column("id", UUID, nullable=False, unique=True),
    Column("limit_id", NAME, primary_key=True),
    Column("value_key", Text, primary_key=True),
    Column("period_start", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False) for name in ("requests", "tokens", "nanodollars")),
    Column("status", SHORT_TEXT, nullable=False),
    *(Column(f"is_{name}_alert_sent", Boolean, nullable=False) for name in ("threshold", "exhausted")),
    # What the limit counts: `cost`, `tokens` or `requests`.
    Column("measure", SHORT_TEXT, nullable=False),
    # Sum of the corrections of costs that `nanodollars` includes. The counters of the data plane do not include them.
    Column("corrected_nanodollars", BigInteger, nullable=False, server_default="0"),
    # Number of resets of the usage. When it grows, the counters of the data plane start again.
    Column("resets", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False, index=True),
)

# Limits that tokens carry in their claims, as the data plane has seen them last. Amounts are in requests, tokens or
# nano-dollars. A user has the same limit and usage in all workspaces of an organisation.
token_limits = Table(
    "token_limits",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    foreign_key_column("workspaces", ends_with_it=True),
    Column("limit_id", NAME, nullable=False),
    Column("user_name", NAME, nullable=False),
    # `usage` or `rate`.
    Column("kind", SHORT_TEXT, nullable=False),
    Column("type", SHORT_TEXT, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("alert", BigInteger),
    # Unit of a rate limit, such as `minute`.
    Column("unit", SHORT_TEXT),
    # Period of a budget.
    Column("period_start", BigInteger),
    Column("period_end", BigInteger),
    Column("seen_at", BigInteger, nullable=False, index=True),
    Index(None, "limit_id", "workspace_id", unique=True),
    Index(None, "workspace_id", "seen_at"),
    Index(None, "organisation_id", "seen_at"),
)

# Nodes that report usage. `sequence` is the number of the last batch that the ledger contains, and `seen_at` the time
# when the node was last alive.
usage_ledger_nodes = Table(
    "usage_ledger_nodes",
    metadata,
    Column("node", UUID, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("workers", Integer, nullable=False, server_default="0"),
    Column("seen_at", BigInteger, nullable=False, server_default="0", index=True),
)
