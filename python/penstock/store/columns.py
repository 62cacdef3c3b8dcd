"""Column types and columns that the tables of the store share, and the metadata that all tables belong to."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, MetaData, String

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

NAME, SLUG, UUID, SHORT_TEXT, DIGEST = String(255), String(255), String(36), String(32), String(64)
JSON_DOCUMENT = JSON(none_as_null=True)


def id_column() -> Column[str]:
    """Returns the primary key of a table."""
    return Column("id", UUID, primary_key=True)


def foreign_key_column(table: str, *, optional: bool = False, ends_with_it: bool = False) -> Column[Any]:
    """Returns a column that refers to another table: `workspaces` gives `workspace_id`. With `ends_with_it`, a row is
    deleted together with the row that it refers to.
    """
    rule = "CASCADE" if ends_with_it else None
    return Column(f"{table[:-1]}_id", UUID, ForeignKey(f"{table}.id", ondelete=rule), nullable=optional)


def timestamp_columns() -> list[Column[int]]:
    """Returns the columns with the time of creation and of the last change."""
    return [Column(name, BigInteger, nullable=False) for name in ("created_at", "last_updated_at")]
