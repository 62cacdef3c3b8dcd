"""Alembic environment. Runs migrations on the connection that `penstock.store.migrate` provides."""

from __future__ import annotations

from alembic import context

from penstock.store import columns

# `render_as_batch`, because SQLite can change a table only by copying it.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=columns.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
