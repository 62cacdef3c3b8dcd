"""Encrypts the credentials in stored configs, and masks them in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic import context, op

if TYPE_CHECKING:
    from penstock.store.migrate import SyncConfigSealer

revision = "0006_encrypted_configs"
down_revision = "0005_change_log"

JSON_DOCUMENT = sa.JSON(none_as_null=True)
CONFIGS = sa.table("configs", sa.column("id"), sa.column("config"), sa.column("sealed"))
VERSIONS = sa.table(
    "versions", sa.column("id"), sa.column("resource"), sa.column("content", JSON_DOCUMENT), sa.column("sealed")
)
AUDIT = sa.table(
    "audit",
    sa.column("id"),
    sa.column("resource_type"),
    sa.column("before", JSON_DOCUMENT),
    sa.column("after", JSON_DOCUMENT),
)


def upgrade() -> None:
    """Adds the `sealed` columns, encrypts the credentials of configs and their versions, and masks the audit log."""
    for table in ("configs", "versions"):
        op.add_column(table, sa.Column("sealed", sa.Text(), nullable=True))
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # Overwrites deleted content, so that no plain-text credentials remain in unused pages of the file.
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    for row in _fetch_rows(sa.select(CONFIGS)):
        config, sealed = _config_sealer().seal(row["config"], row["id"])
        _update_row(CONFIGS, row["id"], config=config, sealed=sealed)
    for row in _fetch_rows(sa.select(VERSIONS).where(VERSIONS.c.resource == "configs")):
        config, sealed = _config_sealer().seal(row["content"]["config"], row["id"])
        _update_row(VERSIONS, row["id"], content={**row["content"], "config": config}, sealed=sealed)
    for row in _fetch_rows(sa.select(AUDIT).where(AUDIT.c.resource_type == "configs")):
        _update_row(
            AUDIT, row["id"], before=_mask_audited_config(row["before"]), after=_mask_audited_config(row["after"])
        )


def downgrade() -> None:
    """Decrypts the credentials and drops the columns. The audit log stays masked."""
    for row in _fetch_rows(sa.select(CONFIGS).where(CONFIGS.c.sealed.is_not(None))):
        _update_row(CONFIGS, row["id"], config=_config_sealer().open(row["config"], row["sealed"], row["id"]))
    for row in _fetch_rows(sa.select(VERSIONS).where(VERSIONS.c.sealed.is_not(None))):
        config = _config_sealer().open(row["content"]["config"], row["sealed"], row["id"])
        _update_row(VERSIONS, row["id"], content={**row["content"], "config": config})
    for table in ("configs", "versions"):
        with op.batch_alter_table(table) as altered:
            altered.drop_column("sealed")


def _config_sealer() -> SyncConfigSealer:
    sealer: SyncConfigSealer | None = context.config.attributes.get("rewriting")
    if sealer is None:
        message = "the store has configs, but there is no key to encrypt their credentials with"
        raise LookupError(message)
    return sealer


def _fetch_rows(query: sa.Select[Any]) -> list[sa.RowMapping]:
    return list(op.get_bind().execute(query).mappings())


def _update_row(table: sa.TableClause, row_id: str, **values: Any) -> None:  # noqa: ANN401 - columns
    op.get_bind().execute(sa.update(table).where(table.c.id == row_id).values(**values))


def _mask_audited_config(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Masks the credentials in an audited row. Their encrypted form is discarded, because the audit log never needs
    them.
    """
    if not row or not isinstance(row.get("config"), str):
        return row
    config, _ = _config_sealer().seal(row["config"], row["id"])
    return {**row, "config": config}
