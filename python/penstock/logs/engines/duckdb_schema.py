"""Schema of the DuckDB file: records of today and yesterday, feedback, amendments, positions and the list of sealed
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs.columns import AMENDABLE_COLUMNS, COLUMNS, Column, ColumnType

if TYPE_CHECKING:
    import duckdb

SQL_TYPES = {
    ColumnType.UUID: "UUID",
    ColumnType.STRING: "VARCHAR",
    ColumnType.CATEGORY: "VARCHAR",
    ColumnType.INTEGER: "BIGINT",
    ColumnType.FLOAT: "DOUBLE",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.JSON: "VARCHAR",
    ColumnType.MAP: "MAP(VARCHAR, VARCHAR)",
}
# Matches routing decisions in which a fallback chose another target than its first one.
FALLBACK_PATTERN = '"strategy": ?"fallback", ?"target": ?[1-9]'
OTHER_TABLES = """
CREATE TABLE IF NOT EXISTS positions (writer VARCHAR PRIMARY KEY, segment BIGINT NOT NULL, "offset" BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS sealed_files (day DATE NOT NULL, name VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS feedback (
    id UUID PRIMARY KEY, organisation_id VARCHAR NOT NULL, workspace_id VARCHAR, trace_id VARCHAR, value DOUBLE,
    weight DOUBLE, metadata VARCHAR, created_at TIMESTAMP
);
"""


def _define_columns(columns: tuple[Column, ...]) -> dict[str, str]:
    return {column.name: SQL_TYPES[column.type] for column in columns}


def create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates the tables, and adds columns that an older version did not have."""
    for table, columns in (
        ("records", _define_columns(COLUMNS)),
        ("amendments", {"id": "UUID", "amended_at": "TIMESTAMP", **_define_columns(AMENDABLE_COLUMNS)}),
    ):
        definitions = [f'"{name}" {sql_type}' for name, sql_type in columns.items()]
        if table == "amendments":
            definitions[0] += " PRIMARY KEY"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(definitions)})")
        for name, sql_type in columns.items():
            connection.execute(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS "{name}" {sql_type}')
    connection.execute(OTHER_TABLES)


def _json_columns(columns: tuple[Column, ...]) -> str:
    types = {column.name: "JSON" if column.type is ColumnType.JSON else SQL_TYPES[column.type] for column in columns}
    return ", ".join(f"'{name}': '{sql_type}'" for name, sql_type in types.items())


# DuckDB reads `decoded_records` from the variable of this name in the function that runs the statement. Columns that it
# lacks become null or their default.
INSERT_RECORDS = "INSERT INTO records BY NAME SELECT * FROM decoded_records"
# Like `INSERT_RECORDS`, without the records whose ids are in `$known`.
INSERT_NEW_RECORDS = f"{INSERT_RECORDS} WHERE id NOT IN (SELECT unnest($known::UUID[]))"
_AMENDED_COLUMNS = (Column("id", ColumnType.UUID, ""), *AMENDABLE_COLUMNS)
INSERT_AMENDMENTS = (
    "INSERT INTO amendments BY NAME SELECT *, now()::TIMESTAMP AS amended_at "
    f"FROM read_json($path, format = 'newline_delimited', columns = {{{_json_columns(_AMENDED_COLUMNS)}}}) "
    "ON CONFLICT (id) DO UPDATE SET amended_at = excluded.amended_at, "
    + ", ".join(
        f'"{column.name}" = coalesce(excluded."{column.name}", "{column.name}")' for column in AMENDABLE_COLUMNS
    )
)
_FEEDBACK_COLUMNS = {
    "id": "UUID",
    "organisation_id": "VARCHAR",
    "workspace_id": "VARCHAR",
    "trace_id": "VARCHAR",
    "value": "DOUBLE",
    "weight": "DOUBLE",
    "metadata": "VARCHAR",
    "created_at": "TIMESTAMP",
}
INSERT_FEEDBACK = f"""
INSERT INTO feedback BY NAME SELECT *
FROM read_json($path, format = 'newline_delimited', columns = {_FEEDBACK_COLUMNS})
ON CONFLICT (id) DO UPDATE SET
    workspace_id = coalesce(feedback.workspace_id, excluded.workspace_id),
    trace_id = coalesce(excluded.trace_id, feedback.trace_id),
    value = coalesce(excluded.value, feedback.value),
    weight = coalesce(excluded.weight, feedback.weight),
    metadata = coalesce(excluded.metadata, feedback.metadata),
    created_at = least(feedback.created_at, excluded.created_at)
WHERE feedback.organisation_id = excluded.organisation_id
"""
