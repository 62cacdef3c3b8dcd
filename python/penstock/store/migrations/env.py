"""Alembic environment. Runs migrations on the connection that `penstock.store.migrate` provides."""

from __future__ import annotations

from alembic import context

from penstock.store.tables import metadata

# Batch mode, because SQLite changes a table by copying it.
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
