"""Parts of what the data plane knows of the store: a change says which it is in, and only that one is gathered again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import String, func

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

EVERYTHING, REST = "*", "rest"
# Tables that may be large: by the last two digits of ids, which are random, their rows fall into 256 parts alike.
PARTITIONED_TABLES = ("api_keys", "configs")
# Small ones, which nothing of the large ones depends on.
SHARED_SECTION_TABLES = (
    "integration_models",
    "integration_workspaces",
    "integrations",
    "members",
    "organisations",
    "providers",
    "secret_references",
    "users",
)
DIGITS, FIRST_OF_THEM = 2, 35


def section_name(table: Table, row_id: str) -> str:
    """Name the part that a row is in."""
    if table.name in PARTITIONED_TABLES:
        return f"{table.name}/{row_id[-DIGITS:]}"
    return REST if table.name in SHARED_SECTION_TABLES else EVERYTHING


def section_digits(column: ColumnElement[str]) -> ColumnElement[str]:
    """Give that which the part of a row of a large table is named by."""
    return func.substr(column, FIRST_OF_THEM, DIGITS, type_=String)
