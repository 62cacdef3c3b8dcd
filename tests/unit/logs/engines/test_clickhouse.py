"""The ClickHouse engine: limits of time and memory, migrations, values of a wrong type, and the schema of a cluster."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logs.batch import Position, RecordBatch
from penstock.logs.engines.clickhouse_schema import quote_name, render_statements
from penstock.logs.engines.protocol import QueryTooLargeError
from penstock.logs.query import GroupQuery, ListQuery, LogFilters
from tests.unit.logs.engines.test_protocol import count, insert, make_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logs.engines.clickhouse import ClickHouseEngine


def fill(engine: ClickHouseEngine, rows: int) -> None:
    select = f"SELECT generateUUIDv4(), now(), 'org', 'w1', number, map('k', toString(number)) FROM numbers({rows})"  # noqa: S608 - a number of the test
    columns = "id, created_at, organisation_id, workspace_id, response_time, metadata"
    engine._client.command(f"INSERT INTO records ({columns}) {select}")


GROUP = GroupQuery(
    filters=LogFilters(organisation_id="org"), group_by="metadata", metadata_key="k", columns=["p99_latency"]
)


def test_query_over_its_time_is_rejected(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse()
    fill(engine, 1_000_000)
    with pytest.raises(QueryTooLargeError):
        engine.run(GROUP, 0.05)
    assert count(engine) == 1_000_000


def test_query_over_its_memory_is_rejected(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse(memory_bytes=30_000_000)
    fill(engine, 500_000)
    with pytest.raises(QueryTooLargeError, match="memory"):
        engine.run(GROUP, 30)
    engine._memory_bytes = 10**9
    assert engine.run(GROUP, 30)["total"] == 500_000


def test_values_of_a_wrong_type_stop_no_record(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse()
    good = make_line()
    bad = make_line(req_units="many", is_success={"x": 1}, metadata={"a": 1, "b": "c"}, ai_model=[1])
    insert(engine, good, bad)
    result = engine.run(ListQuery(filters=LogFilters(organisation_id="org")), 20)
    by_id = {record["id"]: record for record in result["data"]}
    assert len(by_id) == 2
    assert by_id[bad["id"]]["req_units"] is None
    assert by_id[bad["id"]]["metadata"] == {"b": "c"}


def test_records_of_many_months_are_inserted_once(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse(keep_days=36_500)
    lines = [
        make_line(created_at=f"{year}-{month:02}-01T00:00:00Z") for year in range(2016, 2026) for month in range(1, 13)
    ]
    for _ in range(2):
        insert(engine, *lines)
    assert count(engine) == len(lines)


def test_new_columns_are_added_to_old_tables(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse()
    engine._client.command("ALTER TABLE records DROP COLUMN user, DROP COLUMN attempts")
    line = make_line(user="ann")
    engine.open()
    insert(engine, line)
    result = engine.run(ListQuery(filters=LogFilters(organisation_id="org")), 20)
    assert result["data"][0]["user"] == "ann"


def test_insert_that_stops_before_its_positions_is_repeated_once(
    clickhouse: Callable[..., ClickHouseEngine], monkeypatch: pytest.MonkeyPatch
):
    engine = clickhouse()
    lines = [make_line() for _ in range(5)]
    batch = RecordBatch(
        "n1", "edge-0", [json.dumps(line).encode() for line in lines], texts={uuid.UUID(lines[0]["id"]): "word"}
    )
    command = engine._client.command

    def fail_for_texts(sql: str, *arguments: Any) -> None:
        if "texts" in sql:
            raise ConnectionError
        command(sql, *arguments)

    monkeypatch.setattr(engine._client, "command", fail_for_texts)
    with pytest.raises(ConnectionError):
        engine.insert(batch, {})
    monkeypatch.undo()
    engine.insert(batch, {})
    assert count(engine) == 5
    assert count(engine, q="word") == 1


def test_nodes_have_positions_of_their_own(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse()
    engine.insert(RecordBatch("n1", "edge-0"), {"edge-0": Position(3, 4)})
    engine._node = "n2"
    assert engine.positions() == {}


def test_cluster_has_replicated_tables():
    statements = list(render_statements("ma`in", 365, 30))
    creations = [statement for statement in statements if statement.startswith("CREATE")]
    assert len(creations) == 5
    assert all("ON CLUSTER `ma\\`in`" in statement for statement in statements)
    assert all("ENGINE = Replicated" in statement for statement in creations)
    assert "INTERVAL 30 DAY" in next(statement for statement in creations if " texts " in statement)
    assert quote_name("a`b\\") == "`a\\`b\\\\`"


def test_amendments_are_deleted_with_the_records_they_belong_to(clickhouse: Callable[..., ClickHouseEngine]):
    engine = clickhouse()
    line = make_line()
    insert(engine, line, amendments=[{"id": line["id"], "total_units": 7}])
    today = dt.datetime.now(dt.UTC).date()
    stored = "SELECT count() FROM amendments"
    engine.drop_before(today - dt.timedelta(days=1), today)
    assert engine._fetch(stored, {}) == [(1,)]
    engine.drop_before(today + dt.timedelta(days=1), today)
    assert engine._fetch(stored, {}) == [(0,)]
