"""Figures of graphs and groups over millions of records: CPU time, in absolute terms and beside PostgreSQL."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import asyncpg
import msgspec
import pytest

from penstock.logs.engines.runner import run_query
from penstock.logs.engines.sql import Row, ValueType
from penstock.logs.query import GraphName, GraphQuery, GroupColumn, GroupQuery, ListQuery, LogFilters, SummaryQuery
from tests.unit.logs.conftest import open_duckdb
from tests.unit.logs.engines.test_duckdb import FILL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.logs.engines.duckdb import DuckDbEngine
    from penstock.logs.query import LogQuery
    from tests.postgres import Postgres

pytestmark = [pytest.mark.figures, pytest.mark.timeout(1800)]

TIME_FACTOR = float(os.environ.get("PENSTOCK_FIGURES_FACTOR", "1"))
ROWS = int(os.environ.get("ROWS", "10000000"))
# PostgreSQL takes minutes for ten million rows. Its times grow at least linearly, so they are scaled.
POSTGRES_ROWS = min(ROWS, 1_000_000)
ROWS_PER_FILL = 1_000_000
MAX_MS, MAX_WORKSPACE_MS = 1000 * TIME_FACTOR, 150 * TIME_FACTOR
MAX_RECORD_BYTES = 100
MIN_RATIO = 10
ALL_SECTIONS = LogFilters(
    organisation_id="org",
    time_of_generation_min=dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    time_of_generation_max=dt.datetime(2026, 11, 30, 23, 59, tzinfo=dt.UTC),
)
# The workspace `w0` has a third of all records.
ONE_WORKSPACE = msgspec.structs.replace(ALL_SECTIONS, workspace_ids=["w0"])
GROUPS = ("users", "ai-models", "metadata", "ai_service", "model", "status_code", "api_key", "workspace")
FEEDBACK = """
INSERT INTO feedback SELECT uuid(), 'org', 'w' || i % 40, 't' || i * 7, i % 21 - 10, 1, NULL, '2026-11-01'
FROM range(20000) AS t(i)
"""


def fill(engine: DuckDbEngine, rows: int) -> None:
    for start in range(0, rows, ROWS_PER_FILL):
        with engine._transaction() as cursor:
            numbers = f"(SELECT i + {start} AS i FROM range({min(ROWS_PER_FILL, rows - start)}) AS n(i)) AS t(i)"  # noqa: S608 - of the test
            cursor.execute(FILL.replace("range($rows) AS t(i)", numbers), {"rows": rows})


def build_queries(filters: LogFilters) -> dict[str, LogQuery]:
    queries: dict[str, LogQuery] = {graph: GraphQuery(filters=filters, graph=graph) for graph in get_args(GraphName)}
    queries["cache summary"] = SummaryQuery(filters=filters)
    for group in GROUPS:
        query = GroupQuery(filters=filters, group_by=group, metadata_key="team" if group == "metadata" else None)
        queries[f"group {group}"] = query
    columns = list(get_args(GroupColumn))
    queries["group model, all columns"] = GroupQuery(filters=filters, group_by="model", columns=columns)
    queries["list"] = ListQuery(filters=filters)
    return queries


@pytest.fixture(scope="module")
def engine_with_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDbEngine]:
    engine = open_duckdb(tmp_path_factory.mktemp("filled") / "store")
    fill(engine, ROWS)
    with engine._transaction() as cursor:
        cursor.execute(FEEDBACK)
    started = time.process_time()
    engine.seal_days(dt.datetime(2026, 11, 30, tzinfo=dt.UTC))
    print(f"sealing: {1e6 * (time.process_time() - started) / ROWS:.1f} µs of CPU per record")
    yield engine
    engine.close()


def measure(action: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Returns the CPU milliseconds of the fastest of three runs."""
    times = []
    for _ in range(3):
        started = clock()
        action()
        times.append(1000 * (clock() - started))
    return min(times)


def measure_all(engine: DuckDbEngine, filters: LogFilters) -> dict[str, float]:
    return {name: measure(lambda query=query: engine.run(query, 60)) for name, query in build_queries(filters).items()}


def test_graphs_and_groups_over_millions_of_records_are_fast(engine_with_records: DuckDbEngine):
    whole, part = (measure_all(engine_with_records, filters) for filters in (ALL_SECTIONS, ONE_WORKSPACE))
    for name, milliseconds in whole.items():
        print(f"{name}: {milliseconds:.0f} ms, one workspace {part[name]:.0f} ms")
    print(f"at most {max(whole.values()):.0f} ms, one workspace {max(part.values()):.0f} ms with {ROWS} records")
    assert max(whole.values()) <= MAX_MS
    assert max(part.values()) <= MAX_WORKSPACE_MS


def test_record_takes_few_bytes(engine_with_records: DuckDbEngine):
    sealed = sum(path.stat().st_size for path in (engine_with_records._folder / "days").iterdir())
    with engine_with_records._transaction() as cursor:
        ((unsealed,),) = cursor.execute("SELECT count(*) FROM records").fetchall()
    size = sealed / (ROWS - unsealed)
    print(f"Parquet: {size:.0f} bytes per record")
    assert size <= MAX_RECORD_BYTES


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────────────────────

POSTGRES_TYPES = {
    ValueType.STRING: "text",
    ValueType.INTEGER: "bigint",
    ValueType.FLOAT: "double precision",
    ValueType.TIMESTAMP: "timestamp",
    ValueType.UUID: "uuid",
}
# Columns that the graphs and groups read. A complete table would be wider, and slower.
POSTGRES_COLUMNS = {
    "created_at": "timestamp",
    **dict.fromkeys(
        ("organisation_id", "workspace_id", "api_key_id", "user", "trace_id", "ai_org", "ai_model"), "text"
    ),
    **dict.fromkeys(("cache_status", "cache_type", "usage", "workspace_slug", "prompt_version", "outcome"), "text"),
    **dict.fromkeys(("response_status_code", "retry_success_count"), "integer"),
    **dict.fromkeys(("req_units", "res_units", "total_units", "cost_nanodollars"), "bigint"),
    **dict.fromkeys(("is_success", "is_fallback"), "boolean"),
    "response_time": "double precision",
    "metadata": "jsonb",
}


class PostgresTable:
    """The records in a table of PostgreSQL, and its SQL for the queries of the log store."""

    ticks_per_ms = 1000

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection[Any] = self._runner.run(asyncpg.connect(url))
        ((self._pid,),) = self.execute("SELECT pg_backend_pid()", {})

    def load(self, engine: DuckDbEngine, file: Path) -> None:
        columns = ", ".join(f'"{name}"' for name in POSTGRES_COLUMNS if name != "metadata")
        definitions = ", ".join(f'"{name}" {kind}' for name, kind in POSTGRES_COLUMNS.items())
        with engine._transaction() as cursor:
            cursor.execute(f"COPY (SELECT {columns}, to_json(metadata) FROM records) TO '{file}' (HEADER false)")  # noqa: S608 - of the test
        for statement in (
            "SET jit = off",
            "SET max_parallel_workers_per_gather = 0",
            "SET work_mem = '256MB'",
            f"CREATE TABLE records ({definitions})",
        ):
            self.execute(statement, {})
        copying = self._connection.copy_to_table("records", source=file, format="csv", columns=list(POSTGRES_COLUMNS))
        self._runner.run(copying)
        self.execute("CREATE INDEX ON records (organisation_id, workspace_id, created_at)", {})
        self.execute("VACUUM ANALYZE records", {})

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the server process of this connection."""
        return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]) / 1e9

    def ticks(self, expression: str) -> str:
        return f"(extract(epoch FROM {expression}) * 1000000)::bigint"

    def placeholder(self, name: str, value_type: ValueType) -> str:
        return f"<{name}>::{POSTGRES_TYPES[value_type]}"

    def milliseconds(self, expression: str) -> str:
        return f"(extract(epoch FROM {expression}) * 1000)::bigint"

    def divide(self, expression: str, divisor: int) -> str:
        return f"(({expression}) / {divisor})"

    def quantiles(self, expression: str, levels: Sequence[float]) -> str:
        return f"(percentile_cont(ARRAY{list(levels)}) WITHIN GROUP (ORDER BY {expression}))"

    def map_value(self, column: str, key: str) -> str:
        return f"({column} ->> {key})"

    def id_text(self, expression: str) -> str:
        return f"({expression})::text"

    def records(self, where: str, _filters: LogFilters) -> str:
        return f"(SELECT * FROM records WHERE {where})"  # noqa: S608 - of the test

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        for name, value in values.items():
            sql = sql.replace("HAVING k IS NOT NULL", "").replace(f"<{name}>", f"'{str(value).removesuffix('+00:00')}'")
        rows = self._runner.run(self._connection.fetch(sql))
        return [tuple(float(value) if isinstance(value, Decimal) else value for value in row.values()) for row in rows]


POSTGRES_QUERIES = (
    *("requests", "cost", "latency", "tokens", "users", "users/requests", "errors", "errors/rate", "errors/stacks"),
    *("errors/status-codes", "requests/rescued", "cache/hit-rate", "cache/latency", "cache summary"),
    *("group users", "group ai-models", "group ai_service", "group model", "group status_code", "group api_key"),
)


def test_graphs_are_cheaper_than_in_postgresql(engine_with_records: DuckDbEngine, postgres: Postgres, tmp_path: Path):
    queries = build_queries(ALL_SECTIONS)
    ratios: dict[str, float] = {}
    sums = [0.0, 0.0]
    with closing(open_duckdb(tmp_path / "small")) as small, closing(PostgresTable(postgres.create_database())) as table:
        fill(small, POSTGRES_ROWS)
        table.load(small, tmp_path / "records.csv")
        for name in POSTGRES_QUERIES:
            query = queries[name]
            assert_equal_totals(run_query(table, query), small.run(query, 60))  # pyright: ignore[reportArgumentType]
            ours = measure(lambda query=query: engine_with_records.run(query, 60))
            theirs = measure(lambda query=query: run_query(table, query), table.cpu_seconds)  # pyright: ignore[reportArgumentType]
            theirs *= ROWS / POSTGRES_ROWS
            ratios[name] = theirs / ours
            sums = [sums[0] + ours, sums[1] + theirs]
            print(f"{name}: {ours:.0f} ms, PostgreSQL {theirs:.0f} ms, {ratios[name]:.1f} times")
    print(f"all: {sums[1] / sums[0]:.1f} times, at least {min(ratios.values()):.1f} times")
    assert sums[1] / sums[0] >= MIN_RATIO


def assert_equal_totals(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, value in first.get("summary", {"total": first.get("total")}).items():
        other = second.get("summary", second)[name]
        assert float(value) == pytest.approx(float(other), rel=1e-6), name
