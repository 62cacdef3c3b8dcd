"""The DuckDB engine: batches that are sent again, kills during inserts, limits of time and memory, and wrong values."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.logs.batch import Position, RecordBatch
from penstock.logs.columns import RECORD_COLUMNS, ColumnType
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.logs.query import (
    GraphQuery,
    GroupQuery,
    ListQuery,
    LogFilters,
)
from tests.processes import Program, wait_for
from tests.unit.logs.conftest import open_duckdb
from tests.unit.logs.engines.test_graphs import DAYS
from tests.unit.logs.samples import START, Sample

if TYPE_CHECKING:
    from penstock.logs.engines.duckdb import DuckDbEngine

ROOT = Path(__file__).parents[4]
KILLS = int(os.environ.get("KILLS", "8"))
BATCH_ROWS = 20
WRITER = """
import json, sys, uuid
from pathlib import Path
from penstock.logs.batch import Position, RecordBatch
from penstock.logs.engines.duckdb import DuckDbEngine

engine = DuckDbEngine(Path(sys.argv[1]))
engine.open()
at = engine.positions().get("edge-0", Position(0, 0)).offset
print("ready", flush=True)
while True:
    ids = [uuid.uuid5(uuid.NAMESPACE_URL, f"{at}/{row}") for row in range(20)]
    lines = [json.dumps({"id": str(key), "created_at": "2026-11-02T00:00:00Z", "organisation_id": "org"}).encode() for key in ids]
    engine.insert(RecordBatch("n", "edge-0", lines, texts={key: "word" for key in ids}), {"edge-0": Position(0, at + 1)})
    at += 1
    print(at, flush=True)
"""


def count(engine: DuckDbEngine, **filters: object) -> int:
    query = ListQuery(filters=LogFilters(organisation_id="org", **filters), columns=["id"], limit=1, with_total=True)
    return engine.run(query, 20)["total"]


@pytest.mark.slow(18)
def test_no_record_is_lost_or_doubled_by_kills(tmp_path: Path):
    for number in range(KILLS):
        program = Program(
            [sys.executable, "-c", WRITER, tmp_path / "store"], tmp_path / f"{number}.log", env=os.environ, cwd=ROOT
        )
        wait_for(
            "the writer", lambda program=program: program.read_output().count("\n") > 2 or program.check_alive(), 30
        )
        time.sleep(0.02 * number)
        os.kill(program.pid, signal.SIGKILL)
        program.kill()
        acknowledged = int(program.read_output().split()[-1])
        engine = open_duckdb(tmp_path / "store")
        position = engine.positions()["edge-0"].offset
        assert position >= acknowledged
        assert count(engine) == count(engine, q="word") == position * BATCH_ROWS
        engine.close()


def test_second_process_cannot_open_the_store(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    opening = "from pathlib import Path; from penstock.logs.engines.duckdb import DuckDbEngine; DuckDbEngine(Path('store')).open()"
    program = Program(
        [sys.executable, "-c", opening],
        tmp_path / "log",
        env={**os.environ, "PYTHONPATH": f"{ROOT}/python"},
        cwd=tmp_path,
    )
    assert program.process.wait(20) == 1
    assert "the log store store cannot be opened" in program.read_output()
    engine.close()


def test_closed_store_returns_an_error(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    engine.close()
    with pytest.raises(LogEngineError, match="is not open"):
        engine.positions()


def test_query_over_its_time_is_interrupted(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    fill(engine, 200_000)
    started = time.monotonic()
    query = GroupQuery(
        filters=LogFilters(organisation_id="org"), group_by="metadata", metadata_key="k", columns=["p99_latency"]
    )
    with pytest.raises(QueryTooLargeError, match="took longer than"):
        engine.run(query, 0.01)
    assert time.monotonic() - started < 20
    assert count(engine) == 200_000
    engine.close()


def test_query_over_its_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = open_duckdb(tmp_path / "store")
    fill(engine, 400_000)
    engine.close()
    monkeypatch.setattr("penstock.logs.engines.duckdb.MAX_TEMPORARY_SIZE", "1MB")
    engine = open_duckdb(tmp_path / "store", memory_limit="24MB")
    query = GroupQuery(
        filters=LogFilters(organisation_id="org"), group_by="metadata", metadata_key="k", columns=["p99_latency"]
    )
    with pytest.raises(QueryTooLargeError, match="needs more memory"):
        engine.run(query, 50)
    assert count(engine) == 400_000
    engine.close()


def fill(engine: DuckDbEngine, rows: int) -> None:
    """Inserts rows by SQL, because JSON would take longer than the test."""
    with engine._transaction() as cursor:
        cursor.execute(
            "INSERT INTO records BY NAME SELECT uuid() AS id, '2026-11-02'::TIMESTAMP + to_milliseconds(i) AS created_at, "
            "'org' AS organisation_id, 'w1' AS workspace_id, random() AS response_time, "
            "MAP {'k': CAST(i AS VARCHAR)} AS metadata FROM range($rows) AS t(i)",
            {"rows": rows},
        )


def test_values_of_a_wrong_type_stop_no_record(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    good = {"id": str(uuid.uuid4()), "created_at": START.isoformat(), "organisation_id": "org"}
    bad = good | {"id": str(uuid.uuid4()), "req_units": "many", "is_success": "x", "metadata": {"a": 1, "b": "c"}}
    huge = good | {"id": str(uuid.uuid4()), "total_units": 10**40, "response_time": "fast"}
    lines = [json.dumps(item).encode() for item in (good, bad, huge)]
    invalid = [b"", b"{", b"[]", b'{"id":"x","created_at":"2026-11-02T00:00:00Z"}', b"\xff", b'{"created_at":1}']
    assert engine.insert(RecordBatch("n", "w", lines + invalid), {"w": Position(0, 1)}) == len(invalid)
    result = engine.run(ListQuery(filters=LogFilters(organisation_id="org")), 20)
    by_id = {record["id"]: record for record in result["data"]}
    assert len(by_id) == 3
    assert by_id[bad["id"]]["req_units"] is None
    assert by_id[bad["id"]]["metadata"] == {"b": "c"}
    assert by_id[huge["id"]]["total_units"] is None
    engine.close()


def test_columns_hold_what_the_lines_say(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    sample = Sample(200)
    engine.insert(sample.batch(), {"edge-0": Position(0, 1)})
    with engine._transaction() as cursor:
        rows = cursor.execute("SELECT * FROM records").fetchall()
        names = [field[0] for field in cursor.description or ()]
    stored = {row["id"]: row for row in (dict(zip(names, values, strict=True)) for values in rows)}
    assert len(stored) == len(sample.records)
    for at, record in enumerate(sample.records):
        row = stored[uuid.UUID(record["id"])]
        assert (row["node"], row["body_key"], row["body_offset"], row["body_length"]) == ("n1", "pack", at, 1)
        assert bool(row["is_fallback"]) == any(step["step"] == "chose" for step in record["decisions"] or ())
        assert row["created_at"].replace(tzinfo=dt.UTC) == dt.datetime.fromisoformat(record["created_at"])
        for column in RECORD_COLUMNS:
            if column.type is ColumnType.JSON:
                assert json.loads(row[column.name] or "null") == record.get(column.name)
            elif column.type not in {ColumnType.UUID, ColumnType.TIMESTAMP}:
                assert row[column.name] == record.get(column.name)
    engine.close()


def test_positions_of_several_writers_are_replaced(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    engine.insert(RecordBatch("n", "a"), {"a": Position(1, 1)})
    engine.insert(RecordBatch("n", "a"), {"a": Position(1, 2), "b": Position(2**40, 0)})
    engine.insert(RecordBatch("n", "a"), {"a": Position(1, 3), "b": Position(2**40, 2**50)})
    assert engine.positions() == {"a": Position(1, 3), "b": Position(2**40, 2**50)}
    engine.close()


def test_reads_run_beside_writes(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    fill(engine, 1000)
    line = json.dumps({"id": str(uuid.uuid4()), "created_at": START.isoformat(), "organisation_id": "org"}).encode()
    with engine._transaction() as cursor:
        cursor.execute("SELECT count(*) FROM records")
        engine.insert(RecordBatch("n", "w", [line]), {})
        assert cursor.execute("SELECT count(*) FROM records").fetchall() == [(1000,)]
    assert count(engine) == 1001
    assert engine.run(GraphQuery(filters=DAYS, graph="requests"), 20)["summary"] == {"total": 1001}
    engine.close()


# Inserts $rows records of a month, of 40 workspaces, of which `w0` has a third.
FILL = """
INSERT INTO records BY NAME
SELECT uuid() AS id, '2026-11-01'::TIMESTAMP + to_milliseconds(((i * 2592000000) // $rows)::BIGINT) AS created_at,
    'org' AS organisation_id, 'w' || CASE WHEN i % 10 < 3 THEN 0 ELSE i % 40 END AS workspace_id,
    'k' || hash(i) % 200 AS api_key_id, 'u' || hash(i) % 5000 AS user, 't' || i // 3 AS trace_id,
    (i % 5)::VARCHAR || 'org' AS ai_org, 'model-' || hash(i + 1) % 30 AS ai_model, 'chat_completions' AS operation,
    CASE WHEN hash(i) % 20 = 0 THEN 500 + i % 4 ELSE 200 END AS response_status_code, hash(i) % 20 <> 0 AS is_success,
    random() * 3000 AS response_time, hash(i) % 4000 AS req_units, hash(i + 2) % 900 AS res_units,
    hash(i) % 4000 + hash(i + 2) % 900 AS total_units, hash(i) % 90000000 AS cost_nanodollars, 'USD' AS cost_currency,
    CASE WHEN i % 7 = 0 THEN 'hit' ELSE 'miss' END AS cache_status, i % 3 AS retry_success_count,
    i % 11 = 0 AS is_fallback, MAP {'team': 'team-' || hash(i) % 50, '_user': 'u' || hash(i) % 5000} AS metadata,
    'POST' AS request_method, '/v1/chat/completions' AS request_url
FROM range($rows) AS t(i)
"""


@pytest.mark.figures
@pytest.mark.timeout(300)
def test_insertion_takes_few_microseconds_per_record(tmp_path: Path):
    engine = open_duckdb(tmp_path / "store")
    source = Sample(10_000, days=1)
    lines = source.batch().records
    for size in (100, 1000, 10_000):
        started = time.process_time()
        rounds = max(1, 20_000 // size)
        for number in range(rounds):
            # Other identifiers, so that every record is new.
            batch = [line.replace(line[8:16], f"{number:02x}{size:06x}".encode(), 1) for line in lines[:size]]
            engine.insert(RecordBatch("n", "w", batch), {"w": Position(0, number)})
        microseconds = 1e6 * (time.process_time() - started) / rounds / size
        print(f"batches of {size}: {microseconds:.1f} µs of CPU per record")
    engine.close()
    assert microseconds < 100
