"""Lists with a cursor, single records, traces, feedback and models without a price, on both engines."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logs.batch import Position, RecordBatch
from penstock.logs.engines.lists import MAX_TRACE_RECORDS, MAX_TREE_DEPTH, build_tree
from penstock.logs.engines.protocol import QueryTooLargeError
from penstock.logs.query import (
    FeedbackQuery,
    GetQuery,
    GraphQuery,
    ListQuery,
    LogFilterError,
    LogFilters,
    Restriction,
    TraceQuery,
)
from tests.unit.logs.conftest import open_duckdb
from tests.unit.logs.engines.test_graphs import DAYS
from tests.unit.logs.samples import START, Sample

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.logs.engines.protocol import LogEngine


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_a_list_have_every_record_once(sample_engine: LogEngine, sample: Sample, order: Any):
    ids: list[str] = []
    cursor = None
    while True:
        page = sample_engine.run(ListQuery(filters=DAYS, columns=["id"], order=order, limit=300, cursor=cursor), 20)
        ids += [record["id"] for record in page["data"]]
        cursor = page["next_cursor"]
        assert page["has_more"] == (cursor is not None)
        if cursor is None:
            break
    records = sorted(sample.select(DAYS), key=lambda record: (record["created_at"], record["id"]))
    expected = [record["id"] for record in records]
    assert ids == (expected if order == "asc" else expected[::-1])


def test_records_of_the_same_millisecond_are_paged(engine: LogEngine):
    ids = sorted(str(uuid.uuid4()) for _ in range(7))
    records = [{"id": key, "created_at": START.isoformat(), "organisation_id": "org"} for key in ids]
    engine.insert(RecordBatch("n", "w", [json.dumps(record).encode() for record in records]), {})
    listed, cursor = [], None
    for _ in range(4):
        query = ListQuery(filters=LogFilters(organisation_id="org"), columns=["id"], limit=2, cursor=cursor)
        page = engine.run(query, 20)
        listed += [record["id"] for record in page["data"]]
        cursor = page["next_cursor"]
    assert listed == ids[::-1]
    assert cursor is None


def test_record_of_a_list_has_the_values_of_its_line(sample_engine: LogEngine, sample: Sample):
    page = sample_engine.run(ListQuery(filters=DAYS, limit=1, with_total=True), 20)
    assert page["total"] == len(sample.select(DAYS))
    expected = next(record for record in sample.records if record["id"] == page["data"][0]["id"])
    record = page["data"][0]
    for key in expected.keys() - {"decisions", "request_headers", "later_field"}:
        assert record[key] == expected[key], key
    assert "request_headers" not in record
    nanodollars = expected.get("cost_nanodollars")
    assert record["cost"] == (None if nanodollars is None else pytest.approx(nanodollars / 1e7))


@pytest.mark.parametrize("cursor", ["", "x", "!!", "MQ", "MTIzLmFiYw", "9" * 400])
def test_rejects_an_invalid_cursor(sample_engine: LogEngine, cursor: str):
    with pytest.raises(LogFilterError, match="next_cursor of the page before"):
        sample_engine.run(ListQuery(filters=DAYS, cursor=cursor), 20)


def test_rejects_an_unknown_column_and_suggests_another(sample_engine: LogEngine):
    with pytest.raises(LogFilterError, match="did you mean ai_model"):
        sample_engine.run(ListQuery(filters=DAYS, columns=["ai_mode"]), 20)


def test_get_returns_all_columns_with_feedback_and_bodies(sample_engine: LogEngine, sample: Sample):
    expected = next(record for record in sample.select(DAYS) if sample.feedback_of(record))
    result = sample_engine.run(GetQuery(organisation_id="org", id=expected["id"]), 20)
    assert result["record"]["decisions"] == expected["decisions"]
    assert result["record"]["request_headers"] == {"accept": "*/*"}
    assert result["record"]["metadata"] == expected["metadata"]
    assert result["record"]["node"] == "n1"
    assert result["bodies"] == {"key": "pack", "offset": sample.records.index(expected), "length": 1}
    feedback = {(item["id"], item["value"], item["weight"]) for item in sample.feedback_of(expected)}
    assert {(item["id"], item["value"], item["weight"]) for item in result["feedback"]} == feedback
    assert result["feedback"][0]["metadata"] == {"by": "test"}


@pytest.mark.parametrize(
    "key", ["", "no-uuid", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-7fff-8fff-ffffffffffff"]
)
def test_get_of_an_unknown_record_returns_none(sample_engine: LogEngine, key: str):
    assert sample_engine.run(GetQuery(organisation_id="org", id=key), 20) == {"record": None}


def test_get_finds_no_record_of_another_tenant(sample_engine: LogEngine, sample: Sample):
    record = sample.select(DAYS)[0]
    for query in (
        GetQuery(organisation_id="other", id=record["id"]),
        GetQuery(organisation_id="org", id=record["id"], workspace_ids=["w9"]),
        GetQuery(organisation_id="org", id=record["id"], workspace_ids=[]),
        GetQuery(organisation_id="org", id=record["id"], restricted_to=Restriction(user_ids=["u9"])),
    ):
        assert sample_engine.run(query, 20) == {"record": None}


def make_span(span: str | None, parent: str | None) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "created_at": START.isoformat(),
        "organisation_id": "org",
        "workspace_id": "w1",
        "trace_id": "t",
        "span_id": span,
        "parent_span_id": parent,
    }


def test_trace_is_a_tree_of_spans(engine: LogEngine):
    spans = [
        make_span("a", None),
        make_span("b", "a"),
        make_span("c", "b"),
        make_span(None, "a"),
        make_span("d", "gone"),
    ]
    engine.insert(RecordBatch("n", "w", [json.dumps(span).encode() for span in spans]), {})
    result = engine.run(TraceQuery(organisation_id="org", trace_id="t"), 20)
    assert result["total"] == 5
    shapes = {
        root["span_id"]: {child["span_id"]: len(child["children"]) for child in root["children"]}
        for root in result["data"]
    }
    assert shapes == {"a": {"b": 1, None: 0}, "d": {}}
    assert engine.run(TraceQuery(organisation_id="other", trace_id="t"), 20)["data"] == []


def test_spans_that_are_their_own_ancestors_lose_no_record():
    spans = [make_span("a", "b"), make_span("b", "a"), make_span("c", "c")]

    def count(nodes: list[dict[str, Any]]) -> int:
        return sum(1 + count(node["children"]) for node in nodes)

    assert count(build_tree(spans)) == 3


@pytest.mark.parametrize(
    ("options", "is_complete"),
    [
        ({"limit": 4}, True),
        ({"limit": 5}, False),
        ({"limit": 4, "order": "asc"}, False),
        ({"limit": 4, "with_total": True}, False),
        ({"limit": 1, "filters": {"workspace_ids": ["w2"]}}, False),
    ],
)
def test_search_with_too_many_hits_omits_none_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_complete: bool
):
    monkeypatch.setattr("penstock.logs.engines.duckdb_fragments.MAX_TEXT_HITS", 5)
    engine = open_duckdb(tmp_path / "store")
    records = [{**make_span(None, None), "workspace_id": "w2" if number < 3 else "w1"} for number in range(8)]
    lines = [json.dumps(record).encode() for record in records]
    texts = {uuid.UUID(record["id"]): "the common word" for record in records}
    engine.insert(RecordBatch("n", "edge-1", lines, texts=texts), {})
    filters = LogFilters(organisation_id="org", q="common", **options.pop("filters", {}))
    query = ListQuery(filters=filters, **options)
    if is_complete:
        assert len(engine.run(query, 10)["data"]) == options["limit"]
    else:
        with pytest.raises(QueryTooLargeError, match="more words"):
            engine.run(query, 10)
    engine.close()


def test_deep_traces_become_documents_that_decoders_accept():
    spans = [make_span(str(number), str(number - 1)) for number in range(MAX_TRACE_RECORDS)]
    (root,) = json.loads(json.dumps(build_tree(spans)))
    depth, count, level = 0, 0, [root]
    while level:
        depth, count = depth + 1, count + len(level)
        level = [child for record in level for child in record["children"]]
    assert (depth, count) == (MAX_TREE_DEPTH, MAX_TRACE_RECORDS)


def test_values_of_feedback_are_integers_unless_a_guardrail_chose_another_number(engine: LogEngine):
    record = Sample(1, days=1).records[0] | {"organisation_id": "org", "trace_id": "t"}
    batch = RecordBatch("n", "edge-1", [json.dumps(record).encode()])
    fields = {"organisation_id": "org", "workspace_id": record["workspace_id"], "trace_id": "t", "weight": 1}
    for number, value in enumerate((2.5, 3, -2.5, -0.2)):
        created_at = f"2026-11-02T00:00:0{number}Z"
        batch.feedback.append({"id": str(uuid.UUID(int=number)), **fields, "value": value, "created_at": created_at})
    engine.insert(batch, {"edge-1": Position(1, 1)})
    feedback = engine.run(FeedbackQuery(organisation_id="org", trace_ids=["t"]), 20)["data"]
    assert [repr(item["value"]) for item in feedback] == ["2.5", "3", "-2.5", "-0.2"]
    scores = engine.run(GraphQuery(filters=DAYS, graph="feedbacks/scores"), 20)
    assert scores["data_points"] == [
        {"score": -2, "total": 1},
        {"score": 0, "total": 1},
        {"score": 3, "total": 2},
    ]


def test_feedback_is_found_by_trace_and_by_identifier(sample_engine: LogEngine, sample: Sample):
    item = next(item for item in sample.feedback if item["organisation_id"] == "org")
    same_trace = {
        other["id"]
        for other in sample.feedback
        if (other["organisation_id"], other["trace_id"]) == ("org", item["trace_id"])
    }
    feedback = sample_engine.run(FeedbackQuery(organisation_id="org", trace_ids=[item["trace_id"]]), 20)
    assert {other["id"] for other in feedback["data"]} == same_trace
    assert sample_engine.run(FeedbackQuery(organisation_id="org", ids=[item["id"]]), 20)["total"] == 1
    assert sample_engine.run(FeedbackQuery(organisation_id="other", ids=[item["id"]]), 20)["total"] == 0
