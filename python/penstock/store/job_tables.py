"""Tables of files, batches and log exports, which background jobs process."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text

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

# Files uploaded to the gateway or produced by its own batches. The content is a blob with the same id.
files = Table(
    "files",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    foreign_key_column("workspaces", ends_with_it=True),
    Column("purpose", SHORT_TEXT, nullable=False),
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
    id_column(),
    foreign_key_column("organisations"),
    foreign_key_column("workspaces", ends_with_it=True),
    Column("endpoint", SHORT_TEXT, nullable=False),
    Column("completion_window", SHORT_TEXT, nullable=False),
    Column("status", SHORT_TEXT, nullable=False),
    Column("input_file_id", UUID, nullable=False),
    Column("output_file_id", UUID),
    Column("error_file_id", UUID),
    Column("internal_output_file_id", UUID),
    Column("model", NAME),
    Column("details", JSON_DOCUMENT),
    Column("errors", JSON_DOCUMENT),
    # Identifiers of the batch at its provider, if it runs there.
    Column("job", JSON_DOCUMENT),
    # Encrypted data that the requests of the batch need, including the caller's API key. Cleared when the batch ends.
    Column("sealed", Text),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    # Start time of each status, by the name of the status.
    Column("moments", JSON_DOCUMENT, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    # Lease: the process that runs the batch, and the time by which the process must renew the lease.
    Column("run_by", UUID),
    Column("run_until", BigInteger),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "id"),
    Index(None, "status", "id"),
)

# Finished lines of a batch, until they are written to its output files.
batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", UUID, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("failed", Boolean, nullable=False),
    Column("content", Text, nullable=False),
)

# Exports of request logs. The finished export is a file with the purpose `log_export`.
log_exports = Table(
    "log_exports",
    metadata,
    id_column(),
    foreign_key_column("organisations"),
    foreign_key_column("workspaces", ends_with_it=True),
    Column("status", SHORT_TEXT, nullable=False),
    Column("description", Text),
    Column("filters", JSON_DOCUMENT, nullable=False),
    Column("requested_data", JSON_DOCUMENT, nullable=False),
    # Number of requests that match the filters.
    Column("total", BigInteger, nullable=False),
    # Number of rows in the file.
    Column("total_records", BigInteger),
    # User to whose requests the export is restricted, because its creator may see no others.
    Column("restricted_to", UUID),
    Column("file_id", UUID),
    # Reason of a failed export.
    Column("error", Text),
    # Lease: the process that runs the export, and the time by which the process must renew the lease.
    Column("run_by", UUID),
    Column("run_until", BigInteger),
    Column("created_by", UUID),
    *timestamp_columns(),
    Index(None, "workspace_id", "id"),
    Index(None, "organisation_id", "id"),
    Index(None, "status", "id"),
)
