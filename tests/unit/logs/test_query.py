"""Queries as JSON, and the metadata filter of a URL."""

from __future__ import annotations

import datetime as dt
import json

import msgspec
import pytest

from penstock.logs.query import (
    FeedbackQuery,
    GetQuery,
    GraphQuery,
    GroupQuery,
    ListQuery,
    LogFilterError,
    LogFilters,
    LogQuery,
    Restriction,
    SummaryQuery,
    TraceQuery,
    UnpricedQuery,
    parse_metadata_filter,
)

FILTERS = LogFilters(
    organisation_id="o",
    restricted_to=Restriction(user_ids=["u"]),
    time_of_generation_min=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    metadata={"a": ["b"]},
)


@pytest.mark.parametrize(
    "query",
    [
        GraphQuery(filters=FILTERS, graph="users/requests"),
        SummaryQuery(filters=FILTERS),
        GroupQuery(filters=FILTERS, group_by="model", columns=["cost"]),
        ListQuery(filters=FILTERS, cursor="x"),
        GetQuery(organisation_id="o", id="i"),
        TraceQuery(organisation_id="o", trace_id="t"),
        FeedbackQuery(organisation_id="o", ids=["i"]),
        UnpricedQuery(filters=FILTERS),
    ],
)
def test_query_survives_json(query: LogQuery):
    assert msgspec.json.decode(msgspec.json.encode(query), type=LogQuery) == query


@pytest.mark.parametrize(
    "changes",
    [
        {"organisation_id": None},
        {"unknown": 1},
        {"status_code": ["200; DROP TABLE"]},
        {"configs": ["c"] * 501},
        {"time_of_generation_min": "2026-01-01T00:00:00"},
    ],
)
def test_rejects_invalid_filters(changes: dict[str, object]):
    document = {"type": "list", "filters": {"organisation_id": "o", **changes}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(document), type=LogQuery)


def test_organisation_is_mandatory():
    with pytest.raises(msgspec.ValidationError, match="organisation_id"):
        msgspec.json.decode(b'{"type":"list","filters":{}}', type=LogQuery)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ('{"env":"prod"}', {"env": ["prod"]}),
        ('{"env":["a","b"],"n":5,"x":1.5,"y":true}', {"env": ["a", "b"], "n": ["5"], "x": ["1.5"], "y": ["true"]}),
        ('{"%":"_\\\\"}', {"%": ["_\\"]}),
    ],
)
def test_metadata_filter_is_parsed(text: str, expected: dict[str, list[str]]):
    assert parse_metadata_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ('{"a":null}', "must be a JSON object"),
        ('{"a":{"b":1}}', "must be a JSON object"),
        ('{"a":"\\ud800"}', "must be a JSON object"),
        (json.dumps({f"k{at}": "v" for at in range(21)}), "has 21 keys; at most 20"),
        (json.dumps({"k" * 600: "v"}), "is too long"),
        (json.dumps({"k": "v" * 600}), "metadata.k is too long"),
        (json.dumps({"k": ["v"] * 501}), "at most 500 values"),
    ],
)
def test_rejects_invalid_metadata_filters(text: str, message: str):
    with pytest.raises(LogFilterError, match=message):
        parse_metadata_filter(text)
