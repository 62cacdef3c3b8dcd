"""Graphs of analytics over records, in the shapes of the API. Rates are in percent, costs in cents, times in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.engines.buckets import choose_buckets
from penstock.logs.engines.feedback_graphs import FEEDBACK_GRAPHS
from penstock.logs.engines.filters import select_records
from penstock.logs.engines.guardrail_graphs import GUARDRAIL_GRAPHS
from penstock.logs.engines.measures import (
    END_USER,
    FAILED,
    HIT,
    PERCENTILES,
    RESCUED_BY,
    SEMANTIC_HIT,
    SIMPLE_HIT,
    STATUS,
    SUCCEEDED,
    UNPRICED,
    Number,
    average_if,
    count_if,
    divide,
    shape_latency,
    to_cents,
    to_percent,
)
from penstock.logs.engines.sql import Row, SqlFragments, Statement

if TYPE_CHECKING:
    from penstock.logs.engines.buckets import Buckets
    from penstock.logs.query import GraphQuery, LogFilters, SummaryQuery

CREATED_AT = 'r."created_at"'
QUANTILES = "{quantiles}"


class Series(msgspec.Struct, frozen=True):
    """A graph with one value or object per bucket. The summary is aggregated from all records, not from buckets."""

    measures: tuple[str, ...]
    shape_point: Callable[[Sequence[Any]], dict[str, Any]]
    shape_summary: Callable[[Sequence[Any]], dict[str, Any]] | None = None
    """`None`: the summary has the same shape as a point."""
    is_additive: bool = True
    """True if the values of all buckets add up to those of the summary."""
    has_summary: bool = True


def _shape_total(row: Sequence[Any]) -> dict[str, Any]:
    return {"total": row[0] or 0}


def _shape_cost(row: Sequence[Any]) -> dict[str, Any]:
    count, cost, unpriced = row
    # The average is only over requests with a known cost.
    priced = (count or 0) - (unpriced or 0)
    return {"total": to_cents(cost), "avg": to_cents(divide(cost, priced)), "unpriced": unpriced or 0}


def _shape_tokens(row: Sequence[Any]) -> dict[str, Any]:
    return {"total": row[1] or 0, "avg": divide(row[1], row[0])}


def _shape_user_requests(row: Sequence[Any]) -> dict[str, Any]:
    return {"avg": divide(row[0], row[1])}


def _summarise_user_requests(row: Sequence[Any]) -> dict[str, Any]:
    return {"total": row[0] or 0, "unique": row[1] or 0, "avg": divide(row[0], row[1])}


def _shape_rate(row: Sequence[Any]) -> dict[str, Any]:
    return {"rate": to_percent(row[1], row[0])}


def _shape_average(row: Sequence[Any]) -> dict[str, Any]:
    return {"avg": row[0] or 0}


SERIES = {
    "requests": Series(("count(*)",), _shape_total),
    "cost": Series(("count(*)", 'sum(r."cost_nanodollars")', count_if(UNPRICED)), _shape_cost),
    "latency": Series(('avg(r."response_time")', QUANTILES), shape_latency, is_additive=False),
    "tokens": Series(("count(*)", 'sum(r."total_units")'), _shape_tokens),
    "users": Series((f"count(DISTINCT {END_USER})",), _shape_total, is_additive=False),
    "users/requests": Series(
        (f"count({END_USER})", f"count(DISTINCT {END_USER})"),
        _shape_user_requests,
        _summarise_user_requests,
        is_additive=False,
    ),
    "errors": Series((count_if(FAILED),), _shape_total),
    "errors/rate": Series(("count(*)", count_if(FAILED)), _shape_rate),
    "cache/latency": Series((average_if('r."response_time"', HIT),), _shape_average, has_summary=False),
}


def run_graph(fragments: SqlFragments, query: GraphQuery) -> dict[str, Any]:
    """Runs one graph."""
    buckets = choose_buckets(query.filters, query.time_zone, query.rollup)
    if series := SERIES.get(query.graph):
        summary, points = _run_series(fragments, query.filters, buckets, series)
    else:
        run = (OTHER_GRAPHS | GUARDRAIL_GRAPHS | FEEDBACK_GRAPHS)[query.graph]
        summary, points = run(fragments, query.filters, buckets)
    return {"summary": summary, "data_points": points, "object": "analytics-graph"}


def _run_series(
    fragments: SqlFragments, filters: LogFilters, buckets: Buckets, series: Series
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    quantiles = fragments.quantiles('r."response_time"', PERCENTILES)
    measures = ", ".join(measure.replace(QUANTILES, quantiles) for measure in series.measures)
    statement = Statement(fragments)
    index = buckets.render_index(fragments, CREATED_AT)
    rows = statement.fetch(
        f"SELECT {index} AS bucket, {measures} FROM {select_records(fragments, filters, statement)} GROUP BY bucket"
    )
    by_bucket = {row[0]: row[1:] for row in rows}
    nothing = (None,) * len(series.measures)
    points = [
        {"timestamp": start, **series.shape_point(by_bucket.get(number, nothing))}
        for number, start in buckets.timestamps().items()
    ]
    if not series.has_summary:
        return {}, points
    if series.is_additive:
        totals: Sequence[Any] = [sum(row[at] or 0 for row in by_bucket.values()) for at in range(len(series.measures))]
    else:
        statement = Statement(fragments)
        totals = statement.fetch(f"SELECT {measures} FROM {select_records(fragments, filters, statement)}")[0]
    return (series.shape_summary or series.shape_point)(totals), points


def _fetch_buckets(
    statement: Statement, buckets: Buckets, records: str, keys: Sequence[str], measures: Sequence[str]
) -> list[Row]:
    """Groups records by bucket and keys. Rows hold the bucket, the keys and the measures."""
    fragments = statement.fragments
    names = ["bucket", *(f"k{at}" for at, _ in enumerate(keys))]
    expressions = [buckets.render_index(fragments, CREATED_AT), *keys]
    columns = [f"{expression} AS {name}" for expression, name in zip(expressions, names, strict=True)]
    order = ", ".join(names)
    return statement.fetch(
        f"SELECT {', '.join([*columns, *measures])} FROM {records} GROUP BY {order} ORDER BY {order}"
    )


def _run_error_stacks(
    fragments: SqlFragments, filters: LogFilters, buckets: Buckets
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    statement = Statement(fragments)
    records = select_records(fragments, filters, statement, FAILED)
    rows = _fetch_buckets(statement, buckets, records, [STATUS], ["count(*)"])
    stats: dict[int, list[dict[str, Any]]] = {}
    for bucket, status, count in rows:
        stats.setdefault(bucket, []).append({"response_status_code": status, "count": count})
    points = [{"timestamp": start, "stats": stats.get(number, [])} for number, start in buckets.timestamps().items()]
    return {"total": sum(row[2] for row in rows)}, points


def _run_status_codes(
    fragments: SqlFragments, filters: LogFilters, _: Buckets
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    statement = Statement(fragments)
    records = select_records(fragments, filters, statement, FAILED)
    rows = statement.fetch(
        f"SELECT {STATUS} AS status, count(*) AS n FROM {records} GROUP BY status ORDER BY n DESC, status"
    )
    points = [{"status_code": status, "count": count} for status, count in rows]
    return {"total_errors": sum(row[1] for row in rows), "unique_error_codes": len(rows)}, points


def _run_rescued(
    fragments: SqlFragments, filters: LogFilters, buckets: Buckets
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Successful requests that needed a retry or a fallback. A request that needed both counts in both."""
    rescued = f"{SUCCEEDED} AND ({' OR '.join(RESCUED_BY.values())})"
    statement = Statement(fragments)
    records = select_records(fragments, filters, statement, rescued)
    keys = ['coalesce(r."retry_success_count", 0)']
    rows = _fetch_buckets(statement, buckets, records, keys, ["count(*)", count_if(RESCUED_BY["fallback"])])
    retries: dict[int, list[dict[str, Any]]] = {}
    fallbacks: dict[int, int] = {}
    total_retries = 0
    for bucket, retry, count, fallback in rows:
        fallbacks[bucket] = fallbacks.get(bucket, 0) + fallback
        if retry > 0:
            retries.setdefault(bucket, []).append({"retry_success_count": retry, "count": count})
            total_retries += count
    points = [
        {"timestamp": start, "retry": retries.get(number, []), "fallback": fallbacks.get(number, 0)}
        for number, start in buckets.timestamps().items()
    ]
    return {"retry": total_retries, "fallback": sum(fallbacks.values())}, points


def _run_cache_hit_rate(
    fragments: SqlFragments, filters: LogFilters, buckets: Buckets
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Counts cache hits, and estimates their savings. A hit saves the average cost of requests to the same model
    without a hit.
    """
    statement = Statement(fragments)
    records = select_records(fragments, filters, statement)
    costs = [f'{aggregate}(r."cost_nanodollars") FILTER (WHERE NOT {HIT})' for aggregate in ("sum", "count")]
    measures = ["count(*)", count_if(SIMPLE_HIT), count_if(SEMANTIC_HIT), *costs]
    rows = _fetch_buckets(statement, buckets, records, ['r."ai_org"', 'r."ai_model"'], measures)
    paid: dict[tuple[str, str], tuple[Number, Number]] = {}
    for _, provider, model, *_, cost, priced in rows:
        before = paid.get((provider, model), (0, 0))
        paid[provider, model] = (before[0] + (cost or 0), before[1] + (priced or 0))
    sums: dict[int, list[Number]] = {number: [0, 0, 0, 0, 0] for number in buckets.timestamps()}
    for bucket, provider, model, total, simple, semantic, *_ in rows:
        saved = divide(*paid[provider, model])
        changes = (total, simple, semantic, simple * saved, semantic * saved)
        sums[bucket] = [value + change for value, change in zip(sums[bucket], changes, strict=True)]
    points: list[dict[str, Any]] = []
    all_simple = all_semantic = 0.0
    for number, start in buckets.timestamps().items():
        total, simple, semantic, saved_simple, saved_semantic = sums[number]
        all_simple += saved_simple
        all_semantic += saved_semantic
        points.append({
            "timestamp": start,
            "simple_hits": simple,
            "semantic_hits": semantic,
            "rate": to_percent(simple + semantic, total),
            "cumulative_simple_cache_savings": to_cents(all_simple),
            "cumulative_semantic_cache_savings": to_cents(all_semantic),
        })  # fmt: skip
    hits = sum(values[1] + values[2] for values in sums.values())
    return {"total": hits, "rate": to_percent(hits, sum(values[0] for values in sums.values()))}, points


OTHER_GRAPHS = {
    "errors/stacks": _run_error_stacks,
    "errors/status-codes": _run_status_codes,
    "requests/rescued": _run_rescued,
    "cache/hit-rate": _run_cache_hit_rate,
}


def run_summary(fragments: SqlFragments, query: SummaryQuery) -> dict[str, Any]:
    """Summarises the cache. The speed-up is the average time without a hit, divided by the average time with a hit."""
    statement = Statement(fragments)
    records = select_records(fragments, query.filters, statement)
    time = 'r."response_time"'
    total, hits, hit_time, other_time = statement.fetch(
        f"SELECT count(*), {count_if(HIT)}, {average_if(time, HIT)}, {average_if(time, f'NOT {HIT}')} FROM {records}"
    )[0]
    summary = {
        "hits": hits,
        "avg_latency": hit_time or 0,
        "total_requests": total,
        "cache_speedup": divide(other_time, hit_time),
    }
    return {"summary": summary, "object": "analytics-summary"}
