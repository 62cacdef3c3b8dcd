"""Filters against plain Python over random combinations, tenant isolation, and texts that try to change the SQL."""

from __future__ import annotations

import datetime as dt
import string
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.logs.engines.filters import LIST_COLUMNS
from penstock.logs.query import GraphQuery, GroupQuery, ListQuery, LogFilterError, LogFilters, Restriction
from tests.unit.logs.engines.test_graphs import allow_rounding
from tests.unit.logs.samples import MODELS, START, TEAMS, WORDS, Sample

if TYPE_CHECKING:
    from penstock.logs.engines.clickhouse import ClickHouseEngine
    from penstock.logs.engines.duckdb import DuckDbEngine
    from penstock.logs.engines.protocol import LogEngine


def choose(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(st.sampled_from(values), max_size=3, unique=True)


def at_least(low: float, high: float) -> st.SearchStrategy[Any]:
    return st.none() | st.none() | st.integers(int(low), int(high))


MOMENTS = st.integers(0, 20 * 86_400_000).map(lambda ms: START + dt.timedelta(milliseconds=ms))
FILTERS = st.builds(
    lambda ends, **fields: LogFilters(time_of_generation_min=min(ends), time_of_generation_max=max(ends), **fields),
    ends=st.tuples(MOMENTS, MOMENTS),
    organisation_id=st.sampled_from(["org", "org", "other", "missing"]),
    workspace_ids=choose("w1", "w2", "w3", "w9"),
    restricted_to=st.none() | st.builds(Restriction, user_ids=choose("u1", "u9").map(lambda v: v or []), api_key_ids=st.just(["k1"])),
    total_units_min=at_least(0, 3000),
    total_units_max=at_least(0, 5000),
    prompt_token_min=at_least(0, 3000),
    prompt_token_max=at_least(0, 4000),
    completion_token_min=at_least(0, 700),
    completion_token_max=at_least(0, 1000),
    cost_min=st.none() | st.floats(0, 10),
    cost_max=st.none() | st.floats(0, 10),
    weighted_feedback_min=at_least(-10, 10),
    weighted_feedback_max=at_least(-10, 10),
    status_code=choose(200, 429, 500, 503, 0),
    virtual_keys=choose("vk-1", "vk-2"),
    configs=choose("c1", "c2"),
    api_key_ids=choose("k1", "k2"),
    user_ids=choose("u1", "u2"),
    ai_org_model=choose(*(f"{provider}__{model}" for provider, model in MODELS), "openai__"),
    ai_model=choose(*(model for _, model in MODELS)),
    trace_id=choose("t1", "t2", "t3"),
    prompt_slug=choose("p1"),
    cache_status=choose("hit", "miss", "semantic_hit"),
    outcome=choose("complete", "killed"),
    rescued=choose("retry", "fallback"),
    guardrails=choose("pg-words", "it's", "pg-none"),
    metadata=st.none() | st.dictionaries(st.sampled_from(["team", "_user", "k'\"\\"]), st.lists(st.sampled_from([*filter(None, TEAMS), "ann", "v"]), max_size=3), max_size=2),
    q=st.none() | st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(" ".join),
)  # fmt: skip


# Most filters are dropped, so that some records are left.
@st.composite
def sparse_filters(draw: st.DrawFn) -> LogFilters:
    filters = draw(FILTERS)
    optional = [
        name
        for name in LogFilters.__struct_fields__
        if name not in {"organisation_id", "time_of_generation_min", "time_of_generation_max"}
    ]
    remaining = draw(st.sets(st.sampled_from(optional), max_size=3))
    for name in set(optional) - remaining:
        setattr(filters, name, None)
    return filters


@pytest.mark.slow(15)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters=sparse_filters())
def test_both_engines_find_what_plain_python_finds(
    loaded_duckdb: DuckDbEngine, loaded_clickhouse: ClickHouseEngine, sample: Sample, filters: LogFilters
):
    query = ListQuery(filters=filters, columns=["id"], limit=1000, with_total=True)
    expected = {record["id"] for record in sample.select(filters)}
    for engine in (loaded_duckdb, loaded_clickhouse):
        result = engine.run(query, 20)
        assert result["total"] == len(expected)
        ids = {record["id"] for record in result["data"]}
        assert ids <= expected
        assert len(ids) == min(1000, len(expected))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    filters=sparse_filters(),
    query=st.sampled_from([
        *[("graph", name) for name in ("cost", "latency", "users/requests", "cache/hit-rate", "feedbacks/weighted", "requests/rescued", "guardrails", "guardrails/latency")],
        *[("group", name) for name in ("users", "status_code", "workspace", "metadata")],
    ]),
    zone=st.sampled_from(["UTC", "Asia/Kolkata", "America/New_York"]),
)  # fmt: skip
def test_both_engines_give_equal_analytics(
    loaded_duckdb: DuckDbEngine, loaded_clickhouse: ClickHouseEngine, filters: LogFilters, query: Any, zone: str
):
    kind, name = query
    requested = (
        GraphQuery(filters=filters, graph=name, time_zone=zone)
        if kind == "graph"
        else GroupQuery(
            filters=filters, group_by=name, metadata_key="team", columns=["cost", "avg_tokens", "first_seen"]
        )
    )
    first, second = (engine.run(requested, 20) for engine in (loaded_duckdb, loaded_clickhouse))
    assert first == allow_rounding(second)


INJECTIONS = [
    "' OR 1=1 --", '" OR "1"="1', "\\' OR 1=1 --", "'); DROP TABLE records; --", "x' UNION SELECT 1 --", "%", "_", "\\",
    "$p0", "{p0:String}", "?", "\0", "\n", "日本", "a" * 500, "NULL", "\\N", "*", "org' AND '1'='1",
]  # fmt: skip


@pytest.mark.parametrize("text", INJECTIONS)
def test_no_text_of_a_filter_becomes_sql(sample_engine: LogEngine, text: str):
    fields = [*LIST_COLUMNS, "configs", "workspace_ids"]
    tried = [LogFilters(organisation_id=text)]
    tried += [LogFilters(organisation_id="org", **{field: [text]}) for field in fields]
    tried += [
        LogFilters(organisation_id="org", ai_org_model=[f"{text}__{text}"]),
        LogFilters(organisation_id="org", metadata={"team": [f"{text}z"]}),
        LogFilters(organisation_id="org", metadata={text: ["v"]}),
        LogFilters(organisation_id="org", restricted_to=Restriction(user_ids=[text])),
    ]
    for filters in tried:
        assert sample_engine.run(ListQuery(filters=filters, columns=["id"], limit=1), 20)["data"] == [], filters
    group = GroupQuery(filters=LogFilters(organisation_id="org"), group_by="metadata", metadata_key=text)
    assert sample_engine.run(group, 20)["data"] == []
    assert sample_engine.run(ListQuery(filters=LogFilters(organisation_id="org"), with_total=True), 20)["total"] > 1000


@pytest.mark.parametrize(
    "text", ['apple" OR "banana', "apple* OR x", "NOT apple", "words:apple", "tenant apple", "a'b"]
)
def test_operators_of_a_search_are_plain_words(sample_engine: LogEngine, text: str):
    filters = LogFilters(organisation_id="org", q=text)
    assert sample_engine.run(ListQuery(filters=filters, with_total=True), 20)["total"] == 0


def test_search_finds_no_text_of_another_organisation(sample_engine: LogEngine, sample: Sample):
    filters = LogFilters(organisation_id="org", q="apple")
    page = sample_engine.run(ListQuery(filters=filters, columns=["id"], limit=1000, with_total=True), 20)
    expected = [record["id"] for record in sample.select(filters)]
    assert page["total"] == len(expected) > 100
    assert {record["organisation_id"] for record in sample.records if record["id"] in expected} == {"org"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"organisation_id": ""}, "organisation_id is empty"),
        ({"ai_org_model": ["gpt"]}, "items must be provider__model"),
        ({"metadata": {f"k{at}": ["v"] for at in range(21)}}, "at most 20"),
        ({"q": "! ?"}, "between 1 and 20"),
        ({"q": " ".join(string.ascii_lowercase)}, "q has 26 different words"),
    ],
)
def test_rejects_invalid_filters(sample_engine: LogEngine, fields: dict[str, Any], message: str):
    with pytest.raises(LogFilterError, match=message):
        sample_engine.run(ListQuery(filters=LogFilters(**{"organisation_id": "org", **fields})), 20)


def test_huge_numbers_are_compared(sample_engine: LogEngine, sample: Sample):
    filters = LogFilters(organisation_id="org", total_units_min=-(10**30), cost_max=1e300)
    expected = sample.select(filters)
    assert sample_engine.run(ListQuery(filters=filters, with_total=True), 20)["total"] == len(expected) > 100
