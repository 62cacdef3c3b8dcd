"""Tables of the ClickHouse log store. They are created and extended at every start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs.columns import AMENDABLE_COLUMNS, COLUMNS, Column, ColumnType
from penstock.logs.engines.duckdb_schema import FALLBACK_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator

SQL_TYPES = {
    ColumnType.UUID: "UUID",
    ColumnType.STRING: "Nullable(String)",
    ColumnType.CATEGORY: "LowCardinality(Nullable(String))",
    ColumnType.INTEGER: "Nullable(Int64)",
    ColumnType.FLOAT: "Nullable(Float64)",
    ColumnType.BOOLEAN: "Nullable(Bool)",
    ColumnType.TIMESTAMP: "DateTime64(3, 'UTC')",
    ColumnType.JSON: "Nullable(String)",
    ColumnType.MAP: "Map(LowCardinality(String), String)",
}
KEY_COLUMNS = ("organisation_id", "workspace_id")
INDEXES = (
    "INDEX by_time created_at TYPE minmax GRANULARITY 1",
    "INDEX by_id id TYPE bloom_filter(0.001) GRANULARITY 4",
    "INDEX by_trace trace_id TYPE bloom_filter(0.001) GRANULARITY 4",
)
# Maximum lifetime of rows. ClickHouse's DateTime ends in 2106, and it would treat a later end of life as past.
MAX_TTL_DAYS = 20_000
ORDER = "(organisation_id, workspace_id, created_at)"


def render_statements(cluster: str | None, keep_days: int, keep_bodies_days: int) -> Iterator[str]:
    """Returns the statements that create the tables, and that add what tables of an older version lack."""
    on_cluster = f" ON CLUSTER {quote_name(cluster)}" if cluster else ""
    columns = {column.name: _column_type(column) for column in COLUMNS}
    amended = {column.name: SQL_TYPES[column.type] for column in AMENDABLE_COLUMNS}
    version = {"version": "UInt64"}
    feedback = {
        "id": "UUID",
        "organisation_id": "String",
        "workspace_id": "Nullable(String)",
        "trace_id": "Nullable(String)",
        "value": "Nullable(Float64)",
        "weight": "Nullable(Float64)",
        "metadata": "Nullable(String)",
        "created_at": "Nullable(DateTime64(3, 'UTC'))",
    }
    texts = {
        "organisation_id": "String",
        "created_at": "DateTime64(3, 'UTC')",
        "id": "UUID",
        "words": "Array(String)",
    }
    positions = {"node": "String", "writer": "String", "segment": "UInt64", "byte": "UInt64"} | version
    word_index = ("INDEX by_word words TYPE bloom_filter(0.01) GRANULARITY 1",)
    yield from _render_table(
        on_cluster, "records", columns, INDEXES, _storage(cluster, ORDER, ("created_at", keep_days))
    )
    yield from _render_table(
        on_cluster, "amendments", {"id": "UUID"} | version | amended, (), _storage(cluster, "version")
    )
    yield from _render_table(on_cluster, "feedback", feedback | version, (), _storage(cluster, "(organisation_id, id)"))
    yield from _render_table(
        on_cluster, "positions", positions, (), _storage(cluster, "(node, writer)", replacing=True)
    )
    lifetime = ("created_at", min(keep_days, keep_bodies_days))
    yield from _render_table(
        on_cluster, "texts", texts, word_index, _storage(cluster, "(organisation_id, created_at)", lifetime)
    )


def quote_name(name: str) -> str:
    """Quotes an identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _column_type(column: Column) -> str:
    if column.name in KEY_COLUMNS:
        return "LowCardinality(String)"
    if column.name == "is_fallback":
        return f"Bool DEFAULT ifNull(match(decisions, '{FALLBACK_PATTERN}'), false)"
    return SQL_TYPES[column.type]


def _storage(
    cluster: str | None, order: str, lifetime: tuple[str, int] | None = None, *, replacing: bool = False
) -> tuple[str, str]:
    """Returns the clauses of a table for its engine and order, and the clause for its TTL."""
    kind = "ReplacingMergeTree" if replacing else "MergeTree"
    arguments = "version" if replacing else ""
    if cluster:
        replica = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
        kind, arguments = f"Replicated{kind}", ", ".join(filter(None, (replica, arguments)))
    partition = f"PARTITION BY toYYYYMM({lifetime[0]}) " if lifetime else ""
    ttl = f"toDateTime({lifetime[0]}) + INTERVAL {min(lifetime[1], MAX_TTL_DAYS)} DAY" if lifetime else ""
    return f"ENGINE = {kind}({arguments}) {partition}ORDER BY {order}", ttl


def _render_table(
    on_cluster: str, name: str, columns: dict[str, str], indexes: tuple[str, ...], storage: tuple[str, str]
) -> Iterator[str]:
    definitions = [f"{quote_name(column)} {sql_type}" for column, sql_type in columns.items()]
    engine, ttl = storage
    yield f"CREATE TABLE IF NOT EXISTS {name}{on_cluster} ({', '.join([*definitions, *indexes])}) {engine}" + (
        f" TTL {ttl}" if ttl else ""
    )
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {definition}" for definition in definitions)
    yield f"ALTER TABLE {name}{on_cluster} {added}"
    if ttl:
        yield f"ALTER TABLE {name}{on_cluster} MODIFY TTL {ttl} SETTINGS materialize_ttl_after_modify = 0"
