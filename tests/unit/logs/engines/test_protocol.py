"""What every engine guarantees for insertions: once, amendments, feedback, positions and retention."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logs.batch import BodyLocation, Position, RecordBatch
from penstock.logs.query import FeedbackQuery, GetQuery, GraphQuery, ListQuery, LogFilters
from tests.unit.logs.engines.test_graphs import DAYS
from tests.unit.logs.samples import START, Sample

if TYPE_CHECKING:
    from penstock.logs.engines.protocol import LogEngine

NOW = dt.datetime.now(dt.UTC)


def make_line(**fields: Any) -> dict[str, Any]:
    # ClickHouse deletes rows by their age, so these are new.
    return {
        "id": str(uuid.uuid4()),
        "created_at": NOW.isoformat(),
        "organisation_id": "org",
        "workspace_id": "w1",
        **fields,
    }


def insert(engine: LogEngine, *lines: dict[str, Any], **fields: Any) -> None:
    engine.insert(RecordBatch("n1", "edge-0", [json.dumps(line).encode() for line in lines], **fields), {})


def count(engine: LogEngine, **filters: Any) -> int:
    query = ListQuery(filters=LogFilters(organisation_id="org", **filters), columns=["id"], limit=1, with_total=True)
    return engine.run(query, 20)["total"]


def get(engine: LogEngine, line: dict[str, Any]) -> dict[str, Any]:
    return engine.run(GetQuery(organisation_id="org", id=line["id"]), 20)


def test_batch_sent_again_is_inserted_once(engine: LogEngine):
    recent = Sample(60, seed=1)
    for record in recent.records:
        record["created_at"] = NOW.isoformat()
        record["organisation_id"] = "org"
    for item in recent.feedback:
        item["organisation_id"] = "org"
    batch = recent.batch()
    batch.records += batch.records[:5]
    batch.amendments = [{"id": recent.records[0]["id"], "total_units": 7}]
    for _ in range(3):
        engine.insert(batch, {"edge-0": Position(1, 100)})
    assert count(engine) == 60
    assert count(engine, q="apple") == sum("apple" in text for text in recent.texts.values())
    ids = [item["id"] for item in recent.feedback]
    assert engine.run(FeedbackQuery(organisation_id="org", ids=ids), 20)["total"] == len(ids) == 7


def test_part_of_a_batch_sent_again_is_inserted_once(engine: LogEngine):
    lines = [make_line() for _ in range(10)]
    insert(engine, *lines[:6])
    insert(engine, *lines)
    assert count(engine) == 10


def test_positions_are_those_of_the_last_batch(engine: LogEngine):
    assert engine.positions() == {}
    engine.insert(RecordBatch("n1", "edge-0"), {"edge-0": Position(1, 900), "control": Position(1, 5)})
    engine.insert(RecordBatch("n1", "edge-0"), {"edge-0": Position(2, 100)})
    assert engine.positions() == {"edge-0": Position(2, 100), "control": Position(1, 5)}


def test_opening_again_keeps_everything(engine: LogEngine):
    line = make_line()
    insert(engine, line)
    engine.close()
    engine.open()
    assert get(engine, line)["record"]["id"] == line["id"]


def test_amendments_replace_usage_and_cost(engine: LogEngine):
    line, other = make_line(total_units=5, cost_nanodollars=None, ai_model="m"), make_line(total_units=1)
    # An amendment may arrive before its record.
    insert(engine, amendments=[{"id": line["id"], "cost_nanodollars": 20_000_000, "price_version": "a"}])
    insert(engine, line, other)
    insert(
        engine, amendments=[{"id": line["id"], "cost_nanodollars": 30_000_000, "usage": {"input": 9}, "ai_model": "x"}]
    )
    record = get(engine, line)["record"]
    assert record["cost"] == 3
    assert record["price_version"] == "a"
    assert record["usage"] == {"input": 9}
    assert record["total_units"] == 5
    assert record["ai_model"] == "m"
    assert count(engine, cost_min=2.9, cost_max=3.1) == 1
    filters = LogFilters(
        organisation_id="org",
        time_of_generation_min=NOW - dt.timedelta(hours=1),
        time_of_generation_max=NOW + dt.timedelta(hours=1),
    )
    assert engine.run(GraphQuery(filters=filters, graph="cost"), 20)["summary"] == {"total": 3, "avg": 3, "unpriced": 1}


def test_location_of_bodies_may_follow_the_record(engine: LogEngine):
    line = make_line()
    insert(engine, line)
    assert get(engine, line)["bodies"] is None
    insert(engine, bodies={uuid.UUID(line["id"]): BodyLocation("p", 3, 4)})
    assert get(engine, line)["bodies"] == {"key": "p", "offset": 3, "length": 4}


def make_feedback(**fields: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()), "organisation_id": "org", "workspace_id": "w1", "trace_id": "t", "value": 5, "weight": 1.0,
        "metadata": {"a": "b"}, "created_at": NOW.isoformat(), **fields,
    }  # fmt: skip


def test_feedback_is_updated_only_by_its_organisation(engine: LogEngine):
    item = make_feedback()
    insert(engine, feedback=[item])
    insert(engine, feedback=[{"id": item["id"], "organisation_id": "org", "value": -3, "weight": 0.5}])
    insert(engine, feedback=[{"id": item["id"], "organisation_id": "other", "value": 9, "trace_id": "x"}])
    feedback = engine.run(FeedbackQuery(organisation_id="org", ids=[item["id"]]), 20)["data"]
    assert len(feedback) == 1
    assert (feedback[0]["value"], feedback[0]["weight"], feedback[0]["trace_id"]) == (-3, 0.5, "t")
    assert feedback[0]["metadata"] == {"a": "b"}


def test_feedback_of_another_workspace_with_the_same_trace_does_not_count(engine: LogEngine):
    insert(engine, make_line(trace_id="t"), make_line(trace_id="t", workspace_id="w2"))
    insert(engine, feedback=[make_feedback()])
    assert count(engine, weighted_feedback_min=-10) == 1
    assert count(engine, weighted_feedback_min=-10, workspace_ids=["w2"]) == 0


def test_record_without_an_organisation_is_never_found(engine: LogEngine):
    insert(engine, make_line(organisation_id=None), make_line(workspace_id=None))
    assert count(engine) == 1


def test_invalid_parts_of_a_batch_are_counted(engine: LogEngine):
    line = make_line()
    batch = RecordBatch(
        "n1",
        "edge-0",
        [json.dumps(line).encode(), b"{"],
        amendments=[{"id": "x"}],
        feedback=[{"id": "y"}, {"value": 1}],
    )
    assert engine.insert(batch, {}) == 4
    assert count(engine) == 1


def test_retention_deletes_old_days(engine: LogEngine):
    old = START - dt.timedelta(days=400)
    insert(engine, make_line(), make_line(created_at=old.isoformat()))
    engine.drop_before((NOW - dt.timedelta(days=300)).date(), (NOW - dt.timedelta(days=30)).date())
    assert count(engine) == 1
    assert count(engine, time_of_generation_max=old) == 0


@pytest.mark.parametrize("graph", ["requests", "feedbacks"])
def test_empty_store_has_empty_graphs(engine: LogEngine, graph: Any):
    assert engine.run(GraphQuery(filters=DAYS, graph=graph), 20)["summary"] == {"total": 0}
