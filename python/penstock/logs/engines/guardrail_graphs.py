"""Graphs of guardrails over time: how often each verdict was reached, and how long the checks took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.logs.engines.filters import select_records
from penstock.logs.engines.guardrail_groups import GUARDRAIL, count_verdicts, list_verdict_columns, select_results
from penstock.logs.engines.measures import PERCENTILES, shape_latency
from penstock.logs.engines.sql import Row, SqlFragments, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.logs.engines.buckets import Buckets
    from penstock.logs.query import LogFilters

Graph = tuple[dict[str, Any], list[dict[str, Any]]]
CREATED_AT = 'r."created_at"'
ITEM = 'r."item"'
# Field with the time in milliseconds that a guardrail took, including its checks. Skipped guardrails do not have it.
DURATION = "execution_time"


def _select_filtered(statement: Statement, filters: LogFilters, condition: str = "") -> str:
    """Returns a FROM item `r` with one row for each result. The filter `guardrails` applies to each result, not only to
    records.
    """
    fragments = statement.fragments
    records = select_records(fragments, filters, statement, 'r."hook_results" IS NOT NULL')
    results, identifier = select_results(fragments, GUARDRAIL, records)
    conditions = [condition] if condition else []
    if filters.guardrails is not None:
        conditions.append(f"{identifier} IN {statement.bind_list(filters.guardrails)}")
    return f"{results} WHERE {' AND '.join(conditions)}" if conditions else results


def _fetch_buckets(
    fragments: SqlFragments, filters: LogFilters, buckets: Buckets, measures: Sequence[str], condition: str = ""
) -> dict[int, Row]:
    statement = Statement(fragments)
    index = buckets.render_index(fragments, CREATED_AT)
    results = _select_filtered(statement, filters, condition)
    rows = statement.fetch(f"SELECT {index} AS bucket, {', '.join(measures)} FROM {results} GROUP BY bucket")
    return {row[0]: row[1:] for row in rows}


def _run_verdicts(fragments: SqlFragments, filters: LogFilters, buckets: Buckets) -> Graph:
    verdicts = list_verdict_columns(GUARDRAIL)
    measures = ["count(*)", *(count_verdicts(fragments, GUARDRAIL, verdict) for verdict in verdicts)]
    names = ("total", *verdicts)
    by_bucket = _fetch_buckets(fragments, filters, buckets, measures)
    nothing = (0,) * len(names)
    points = [
        {"timestamp": start, **_name_counts(names, by_bucket.get(number, nothing))}
        for number, start in buckets.timestamps().items()
    ]
    totals = [sum(row[at] for row in by_bucket.values()) for at in range(len(names))]
    return _name_counts(names, totals), points


def _name_counts(names: Sequence[str], counts: Sequence[Any]) -> dict[str, int]:
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _run_latency(fragments: SqlFragments, filters: LogFilters, buckets: Buckets) -> Graph:
    duration, condition = fragments.json_number(ITEM, DURATION), fragments.json_has(ITEM, DURATION)
    measures = [f"avg({duration})", fragments.quantiles(duration, PERCENTILES)]
    by_bucket = _fetch_buckets(fragments, filters, buckets, measures, condition)
    points = [
        {"timestamp": start, **shape_latency(by_bucket.get(number, (None, None)))}
        for number, start in buckets.timestamps().items()
    ]
    statement = Statement(fragments)
    results = _select_filtered(statement, filters, condition)
    return shape_latency(statement.fetch(f"SELECT {', '.join(measures)} FROM {results}")[0]), points


GUARDRAIL_GRAPHS = {"guardrails": _run_verdicts, "guardrails/latency": _run_latency}
