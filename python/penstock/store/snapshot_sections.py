"""Snapshot sections: partitions of the data that the data plane loads from the store. Each change names its section, so
that only that section is queried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import String, func

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

EVERYTHING, REST = "*", "rest"
# Tables that may be large. The last two digits of their random ids split the rows into 256 sections of similar size.
PARTITIONED_TABLES = ("api_keys", "configs")
# Small tables that share one section. Nothing in the large tables depends on them.
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
    """Returns the name of the section that contains a row."""
    if table.name in PARTITIONED_TABLES:
        return f"{table.name}/{row_id[-DIGITS:]}"
    return REST if table.name in SHARED_SECTION_TABLES else EVERYTHING


def section_digits(column: ColumnElement[str]) -> ColumnElement[str]:
    """Returns an SQL expression for the id digits that select the section of a row in a large table."""
    return func.substr(column, FIRST_OF_THEM, DIGITS, type_=String)
