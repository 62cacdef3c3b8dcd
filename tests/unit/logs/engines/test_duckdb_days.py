"""Sealed days: Parquet files with the same contents as the table before, records that arrive late, and retention."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from typing import TYPE_CHECKING, Any, get_args

import duckdb
import pandas as pd
import pytest

from penstock.logs.batch import RecordBatch
from penstock.logs.engines.duckdb_days import SealedDays
from penstock.logs.query import GetQuery, GraphName, GraphQuery, ListQuery, LogFilters
from tests.unit.logs.conftest import open_duckdb
from tests.unit.logs.engines.test_graphs import DAYS, allow_rounding
from tests.unit.logs.samples import START, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.logs.engines.duckdb import DuckDbEngine

DAY = dt.timedelta(days=1)


@pytest.fixture
def sealed_store(tmp_path: Path, small_sample: Sample) -> Iterator[DuckDbEngine]:
    """Returns a store of which 4 of 6 days are sealed."""
    engine = open_duckdb(tmp_path / "store")
    engine.insert(small_sample.batch(), {})
    engine.seal_days(START + 5 * DAY)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def small_sample() -> Sample:
    return Sample(600, days=6)


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "store/days").iterdir())


def count(engine: DuckDbEngine) -> int:
    query = ListQuery(filters=LogFilters(organisation_id="org"), columns=["id"], limit=1, with_total=True)
    return engine.run(query, 20)["total"]


def test_days_before_yesterday_are_sealed(sealed_store: DuckDbEngine, tmp_path: Path, small_sample: Sample):
    assert list_files(tmp_path) == [f"2026-11-0{day}.1.parquet" for day in (2, 3, 4, 5)]
    with sealed_store._transaction() as cursor:
        left = cursor.execute("SELECT count(*) FROM records").fetchall()[0][0]
    assert left == sum(record["created_at"] >= "2026-11-06" for record in small_sample.records)


@pytest.mark.parametrize("graph", get_args(GraphName))
def test_graphs_do_not_change_when_days_are_sealed(
    sealed_store: DuckDbEngine, tmp_path: Path, small_sample: Sample, graph: Any
):
    fresh = open_duckdb(tmp_path / "fresh")
    fresh.insert(small_sample.batch(), {})
    query = GraphQuery(filters=DAYS, graph=graph)
    assert sealed_store.run(query, 20) == allow_rounding(fresh.run(query, 20))
    fresh.close()


def test_files_are_sorted_and_readable_by_other_tools(sealed_store: DuckDbEngine, tmp_path: Path):
    path = f"{tmp_path}/store/days/2026-11-03.1.parquet"
    rows = duckdb.read_parquet(path).select("workspace_id", "created_at", "metadata", "decisions").fetchall()
    assert len(rows) > 50
    assert rows == sorted(rows, key=lambda row: (row[0], row[1]))
    assert isinstance(rows[0][2], dict)
    frame = pd.read_parquet(path)
    assert list(frame["workspace_id"]) == [row[0] for row in rows]
    assert [dict(pairs) for pairs in frame["metadata"]] == [row[2] for row in rows]
    assert frame["cost_nanodollars"].sum() > 0
    sealed_store.close()


def test_batch_sent_again_after_sealing_is_inserted_once(sealed_store: DuckDbEngine, small_sample: Sample):
    before = count(sealed_store)
    sealed_store.insert(small_sample.batch(), {})
    assert count(sealed_store) == before


def test_old_record_does_not_make_an_insertion_read_all_days_since(
    sealed_store: DuckDbEngine, small_sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    files: list[str] = []
    quote_path = SealedDays._quote_path
    monkeypatch.setattr(SealedDays, "_quote_path", lambda days, name: [files.append(name), quote_path(days, name)][1])
    before = count(sealed_store)
    files.clear()
    sent = [json.dumps(record).encode() for record in (small_sample.records[0], small_sample.records[-1])]
    sealed_store.insert(RecordBatch("n", "w", sent), {})
    assert files == ["2026-11-02.1.parquet"]
    assert count(sealed_store) == before


def test_late_record_joins_its_day(sealed_store: DuckDbEngine, tmp_path: Path):
    before = count(sealed_store)
    sealed_store.insert(RecordBatch("n", "w", [json.dumps(make_late_record()).encode()]), {})
    assert count(sealed_store) == before + 1
    sealed_store.seal_days(START + 5 * DAY)
    assert count(sealed_store) == before + 1
    assert "2026-11-02.2.parquet" in list_files(tmp_path)
    # Queries that began earlier may still read the old file.
    assert "2026-11-02.1.parquet" in list_files(tmp_path)
    sealed_store.seal_days(START + 6 * DAY)
    assert "2026-11-02.1.parquet" not in list_files(tmp_path)
    assert count(sealed_store) == before + 1


def test_amendments_of_sealed_days_are_written_to_the_files(sealed_store: DuckDbEngine, small_sample: Sample):
    record = next(record for record in small_sample.records if record["organisation_id"] == "org")
    sealed_store.insert(RecordBatch("n", "w", amendments=[{"id": record["id"], "cost_nanodollars": 123}]), {})
    get = GetQuery(organisation_id="org", id=record["id"])
    assert sealed_store.run(get, 20)["record"]["cost_nanodollars"] == 123
    sealed_store.seal_days(START + 5 * DAY)
    with sealed_store._transaction() as cursor:
        assert cursor.execute("SELECT count(*) FROM amendments").fetchall() == [(0,)]
    assert sealed_store.run(get, 20)["record"]["cost_nanodollars"] == 123


def test_file_of_a_killed_process_is_ignored_and_deleted(sealed_store: DuckDbEngine, tmp_path: Path):
    before = count(sealed_store)
    folder = tmp_path / "store/days"
    (folder / "2026-11-02.9.parquet").write_bytes((folder / "2026-11-02.1.parquet").read_bytes())
    (folder / "2026-11-06.1.parquet.temporary").write_bytes(b"torn")
    assert count(sealed_store) == before
    sealed_store.close()
    sealed_store.open()
    assert list_files(tmp_path) == [f"2026-11-0{day}.1.parquet" for day in (2, 3, 4, 5)]
    assert count(sealed_store) == before


def test_failure_while_sealing_changes_nothing(sealed_store: DuckDbEngine, monkeypatch: pytest.MonkeyPatch):
    before = count(sealed_store)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("penstock.logs.engines.duckdb_days._sync", fail)
    with pytest.raises(OSError, match="disk full"):
        sealed_store.seal_days(START + 20 * DAY)
    assert count(sealed_store) == before
    monkeypatch.undo()
    sealed_store.seal_days(START + 20 * DAY)
    assert count(sealed_store) == before


def test_large_day_is_sealed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.logs.engines.duckdb.MAX_TEMPORARY_SIZE", "24MB")
    engine = open_duckdb(tmp_path / "store", memory_limit="64MB")
    filler = random.Random(1)  # noqa: S311 - not for cryptography
    for hour in range(8):
        lines = [
            json.dumps({
                "id": str(uuid.uuid4()),
                "created_at": (START + dt.timedelta(hours=hour, milliseconds=number)).isoformat(),
                "organisation_id": "org",
                "workspace_id": f"w{number % 3}",
                "request_headers": {"x": filler.randbytes(3000).hex()},
            }).encode()
            for number in range(1000)
        ]  # fmt: skip
        engine.insert(RecordBatch("n", "w", lines, may_repeat=False), {})
    monkeypatch.setattr("penstock.logs.engines.duckdb_days.MAX_SORTED_BYTES", 7_000_000)
    engine.seal_days(START + 5 * DAY)
    assert len(list_files(tmp_path)) == 8
    assert count(engine) == 8000
    assert engine.run(GraphQuery(filters=DAYS, graph="requests"), 20)["summary"]["total"] == 8000
    # A record that arrives late replaces all files of the day.
    engine.insert(RecordBatch("n", "w", [json.dumps(make_late_record()).encode()]), {})
    engine.seal_days(START + 5 * DAY)
    engine.seal_days(START + 5 * DAY)
    assert count(engine) == 8001
    engine.close()


def make_late_record() -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "created_at": (START + DAY / 2).isoformat(), "organisation_id": "org"}


def test_retention_deletes_files(sealed_store: DuckDbEngine, tmp_path: Path, small_sample: Sample):
    sealed_store.drop_before((START + 2 * DAY).date(), (START + 4 * DAY).date())
    assert list_files(tmp_path) == ["2026-11-04.1.parquet", "2026-11-05.1.parquet"]
    remaining = [
        record
        for record in small_sample.records
        if record["organisation_id"] == "org" and record["created_at"] >= "2026-11-04"
    ]
    assert count(sealed_store) == len(remaining)
    assert sorted(path.stem for path in (tmp_path / "store/text").glob("*.sqlite")) == ["2026-11-06", "2026-11-07"]


def test_folder_name_with_wildcards_is_a_name(tmp_path: Path, small_sample: Sample):
    engine = open_duckdb(tmp_path / "a[1]*'x")
    engine.insert(small_sample.batch(), {})
    engine.seal_days(START + 20 * DAY)
    assert count(engine) == sum(record["organisation_id"] == "org" for record in small_sample.records)
    engine.close()
