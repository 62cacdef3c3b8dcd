"""Pages of usage for re-rating, corrections of costs, and models without a price, on both engines."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logs.batch import RecordBatch
from penstock.logs.query import GetQuery, GraphQuery, LogFilterError, LogFilters, UnpricedQuery, UsageQuery
from tests.unit.logs.engines.test_graphs import DAYS, allow_rounding
from tests.unit.logs.samples import Sample, is_hit, is_unpriced

if TYPE_CHECKING:
    from penstock.logs.engines.protocol import LogEngine

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)


def read_pages(engine: LogEngine, filters: LogFilters, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = engine.run(UsageQuery(filters=filters, cursor=cursor, limit=limit), 20)
        assert len(page["data"]) <= limit
        rows += page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return rows


def make_line(number: int, **fields: Any) -> bytes:
    return json.dumps({
        "id": f"0199aaaa-0000-7000-8000-{number:012}",
        "created_at": (NOW + dt.timedelta(seconds=number)).isoformat(),
        "organisation_id": "org",
        "workspace_id": "w1",
        "ai_org": "openai",
        "ai_model": "m",
        "total_units": 15,
        "req_units": 10,
        "res_units": 5,
        "cost_nanodollars": 100,
        "price_version": "v1",
        **fields,
    }).encode()  # fmt: skip


def test_pages_have_every_record_with_usage_once(sample_engine: LogEngine, sample: Sample):
    expected = sorted(
        (record for record in sample.select(DAYS) if record["usage"] and not is_hit(record)),
        key=lambda record: (record["created_at"], record["id"]),
    )
    rows = read_pages(sample_engine, DAYS, 250)
    assert [row["id"] for row in rows] == [record["id"] for record in expected]
    first, same = expected[0], rows[0]
    assert same["at"] == int(dt.datetime.fromisoformat(first["created_at"]).timestamp() * 1000)
    assert (same["ai_org"], same["ai_model"], same["virtual_key"]) == (
        first["ai_org"],
        first["ai_model"],
        first["virtual_key"],
    )
    assert json.loads(bytes(same["usage"])) == first["usage"]
    with pytest.raises(LogFilterError, match="cursor"):
        sample_engine.run(UsageQuery(filters=DAYS, cursor="x"), 20)


def test_correction_replaces_the_cost_and_names_the_one_before(engine: LogEngine):
    engine.insert(
        RecordBatch("n1", "edge-1", [make_line(1), make_line(2, cost_nanodollars=None, price_version=None)]), {}
    )
    corrections = [
        {
            "id": f"0199aaaa-0000-7000-8000-{number:012}",
            "cost_nanodollars": 300,
            "cost_currency": "USD",
            "price_version": "v2",
            "previous_cost_nanodollars": before,
            "previous_price_version": before and "v1",
        }
        for number, before in ((1, 100), (2, None))
    ]
    for _ in range(2):
        engine.insert(RecordBatch("n1", "control", amendments=corrections), {})
    filters = LogFilters(
        organisation_id="org", time_of_generation_min=NOW, time_of_generation_max=NOW + dt.timedelta(minutes=1)
    )
    rows = read_pages(engine, filters, 10)
    assert [(row["cost_nanodollars"], row["price_version"]) for row in rows] == [(300, "v2"), (300, "v2")]
    cost = engine.run(GraphQuery(filters=filters, graph="cost"), 20)["summary"]
    assert (cost["total"], cost["unpriced"]) == (pytest.approx(600 / 1e7), 0)
    record = engine.run(GetQuery(organisation_id="org", id=rows[0]["id"]), 20)["record"]
    assert (record["previous_cost_nanodollars"], record["previous_price_version"]) == (100, "v1")
    assert record["cost_currency"] == "USD"


def test_models_without_a_price_are_listed(sample_engine: LogEngine, sample: Sample):
    unpriced = [record for record in sample.select(DAYS) if is_unpriced(record)]
    counts = Counter((record["ai_org"], record["ai_model"]) for record in unpriced)
    result = sample_engine.run(UnpricedQuery(filters=DAYS), 20)
    assert {(item["ai_org"], item["ai_model"]): item["requests"] for item in result["data"]} == counts
    assert result["requests"] == counts.total()
    first = result["data"][0]
    part = [record for record in unpriced if record["ai_model"] == first["ai_model"]]
    assert first["total_units"] == sum(record.get("total_units") or 0 for record in part)
    assert allow_rounding(first["last_seen"]) == max(record["created_at"] for record in part)


def test_images_without_a_price_are_listed(engine: LogEngine):
    drawn = {"usage": {"images": 2}, "total_units": None, "cost_nanodollars": None}
    failed = {"total_units": None, "cost_nanodollars": None}
    engine.insert(RecordBatch("n1", "edge-1", [make_line(1, **drawn), make_line(2, **failed), make_line(3)]), {})
    filters = LogFilters(organisation_id="org", time_of_generation_min=NOW)
    result = engine.run(UnpricedQuery(filters=filters), 20)
    assert [(row["requests"], row["total_units"]) for row in result["data"]] == [(1, 0)]
