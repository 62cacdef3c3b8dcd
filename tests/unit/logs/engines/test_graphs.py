"""All graphs of analytics against numbers computed in plain Python, on both engines."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from penstock.logs.query import GraphName, GraphQuery, LogFilters, SummaryQuery
from tests.unit.logs.samples import START, Expectation, Sample, is_hit, mean

if TYPE_CHECKING:
    from penstock.logs.engines.protocol import LogEngine


def allow_rounding(value: Any) -> Any:
    """Allows for rounding errors, because the order in which floats are added differs."""
    if isinstance(value, dict):
        return {key: allow_rounding(item) for key, item in value.items()}
    if isinstance(value, list):
        return [allow_rounding(item) for item in value]
    return pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, (int, float)) else value


def list_starts(start: dt.datetime, end: dt.datetime, width: dt.timedelta) -> list[str]:
    starts = []
    while start <= end:
        starts.append(start.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        start += width
    return starts


DAYS = LogFilters(
    organisation_id="org",
    time_of_generation_min=START,
    time_of_generation_max=START + dt.timedelta(days=21, milliseconds=-1),
)
HOURS = LogFilters(
    organisation_id="org",
    workspace_ids=["w1", "w2"],
    time_of_generation_min=START + dt.timedelta(days=2, minutes=30),
    time_of_generation_max=START + dt.timedelta(days=7, minutes=30),
)


@pytest.mark.parametrize("graph", get_args(GraphName))
def test_graph_over_days_equals_the_reference(sample_engine: LogEngine, sample: Sample, graph: Any):
    starts = list_starts(START, START + dt.timedelta(days=20), dt.timedelta(days=1))
    expected = Expectation(sample, DAYS, lambda moment: moment[:10] + "T00:00:00.000Z", starts).graph(graph)
    assert len(sample.select(DAYS)) > 1500
    assert sample_engine.run(GraphQuery(filters=DAYS, graph=graph), 20) == allow_rounding(expected)


@pytest.mark.parametrize("graph", get_args(GraphName))
def test_graph_over_hours_equals_the_reference(sample_engine: LogEngine, sample: Sample, graph: Any):
    first = START + dt.timedelta(days=2)
    starts = list_starts(first, first + dt.timedelta(days=5), dt.timedelta(hours=1))
    expected = Expectation(sample, HOURS, lambda moment: moment[:13] + ":00:00.000Z", starts).graph(graph)
    assert sample_engine.run(GraphQuery(filters=HOURS, graph=graph), 20) == allow_rounding(expected)


@pytest.mark.parametrize("graph", ["guardrails", "guardrails/latency"])
def test_graph_of_one_guardrail_has_only_its_results(sample_engine: LogEngine, sample: Sample, graph: Any):
    filters = msgspec.structs.replace(DAYS, guardrails=["it's"])
    starts = list_starts(START, START + dt.timedelta(days=20), dt.timedelta(days=1))
    expected = Expectation(sample, filters, lambda moment: moment[:10] + "T00:00:00.000Z", starts).graph(graph)
    assert all(expected["summary"].values())
    assert sample_engine.run(GraphQuery(filters=filters, graph=graph), 20) == allow_rounding(expected)


@pytest.mark.parametrize("graph", get_args(GraphName))
def test_graph_without_records_has_zeros(sample_engine: LogEngine, graph: Any):
    filters = LogFilters(
        organisation_id="org",
        time_of_generation_min=START - dt.timedelta(hours=3),
        time_of_generation_max=START - dt.timedelta(hours=1, milliseconds=1),
    )
    result = sample_engine.run(GraphQuery(filters=filters, graph=graph), 20)
    numbers = [value for value in result["summary"].values() if not isinstance(value, list)]
    assert not any(numbers)
    if "timestamp" not in str(result["data_points"]):
        assert result["data_points"] == []
    else:
        assert len(result["data_points"]) == 120
        assert not any(value for point in result["data_points"] for key, value in point.items() if key != "timestamp")


def test_days_begin_at_midnight_of_the_time_zone(sample_engine: LogEngine, sample: Sample):
    starts = list_starts(START - dt.timedelta(hours=1), START + dt.timedelta(days=20, hours=23), dt.timedelta(days=1))

    def split(moment: str) -> str:
        local = dt.datetime.fromisoformat(moment) + dt.timedelta(hours=1)
        day = dt.datetime.combine(local.date(), dt.time(), dt.UTC) - dt.timedelta(hours=1)
        return day.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    expected = Expectation(sample, DAYS, split, starts).graph("requests")
    result = sample_engine.run(GraphQuery(filters=DAYS, graph="requests", time_zone="Europe/Berlin"), 20)
    assert result == allow_rounding(expected)


def test_summary_of_the_cache_equals_the_reference(sample_engine: LogEngine, sample: Sample):
    records = sample.select(DAYS)
    hit_time = mean(record["response_time"] for record in records if is_hit(record))
    other_time = mean(record["response_time"] for record in records if not is_hit(record))
    expected = {
        "summary": {
            "hits": sum(map(is_hit, records)),
            "avg_latency": hit_time,
            "total_requests": len(records),
            "cache_speedup": other_time / hit_time,
        },
        "object": "analytics-summary",
    }
    assert sample_engine.run(SummaryQuery(filters=DAYS), 20) == allow_rounding(expected)
