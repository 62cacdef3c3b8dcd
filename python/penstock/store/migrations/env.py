"""Alembic environment. Runs migrations on the connection that `penstock.store.migrate` provides."""

from __future__ import annotations

from alembic import context

from penstock.store import columns, guardrail_tables, job_tables, limit_tables, prompt_tables, tables

# Each of these modules adds its tables to the metadata when it is imported.
TABLE_MODULES = (tables, guardrail_tables, job_tables, limit_tables, prompt_tables)

# `render_as_batch`, because SQLite can change a table only by copying it.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=columns.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
