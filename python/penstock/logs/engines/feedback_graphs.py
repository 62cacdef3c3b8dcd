"""Graphs of feedback. The time of feedback is that of the first request in its trace that meets the filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.logs.engines.filters import build_tenant_scope, select_records
from penstock.logs.engines.measures import divide
from penstock.logs.engines.sql import SqlFragments, Statement

if TYPE_CHECKING:
    from penstock.logs.engines.buckets import Buckets
    from penstock.logs.query import LogFilters

Graph = tuple[dict[str, Any], list[dict[str, Any]]]
TRACE = 'r."workspace_id", r."trace_id"'


def join_feedback(
    statement: Statement, filters: LogFilters, selection: str, grouping: str, condition: str = "true"
) -> str:
    """Returns a FROM item: feedback `f`, joined to the traces `t` of the records that meet the filters.

    `selection` and `grouping` add columns to the traces, and `condition` excludes records. Clients choose the names of traces, so feedback belongs to
    records of the same workspace only.
    """
    scope = build_tenant_scope(filters.organisation_id, filters.workspace_ids, statement)
    feedback = statement.fragments.feedback(" AND ".join(scope))
    has_feedback = f"({TRACE}) IN (SELECT workspace_id, trace_id FROM {feedback} AS g)"
    records = select_records(statement.fragments, filters, statement, f"{has_feedback} AND {condition}")
    traces = f'SELECT r."workspace_id" AS workspace_id, r."trace_id" AS trace_id, {selection} FROM {records} GROUP BY {grouping}'
    return f"({traces}) AS t JOIN {feedback} AS f ON f.workspace_id = t.workspace_id AND f.trace_id = t.trace_id"


def _join_by_time(statement: Statement, filters: LogFilters) -> str:
    return join_feedback(statement, filters, 'min(r."created_at") AS started_at', TRACE)


def _fetch_by_bucket(fragments: SqlFragments, filters: LogFilters, buckets: Buckets) -> dict[int, tuple[int, float]]:
    """Returns the number of feedback entries and the sum of their weighted values, by bucket."""
    statement = Statement(fragments)
    index = buckets.render_index(fragments, "t.started_at")
    joined = _join_by_time(statement, filters)
    rows = statement.fetch(f"SELECT {index} AS bucket, count(*), sum(f.value * f.weight) FROM {joined} GROUP BY bucket")
    return {bucket: (count, weighted or 0) for bucket, count, weighted in rows}


def _run_feedbacks(fragments: SqlFragments, filters: LogFilters, buckets: Buckets) -> Graph:
    sums = _fetch_by_bucket(fragments, filters, buckets)
    points = [{"timestamp": start, "total": sums.get(at, (0, 0))[0]} for at, start in buckets.timestamps().items()]
    return {"total": sum(count for count, _ in sums.values())}, points


def _run_weighted(fragments: SqlFragments, filters: LogFilters, buckets: Buckets) -> Graph:
    sums = _fetch_by_bucket(fragments, filters, buckets)
    points: list[dict[str, Any]] = []
    for at, start in buckets.timestamps().items():
        count, weighted = sums.get(at, (0, 0))
        points.append({"timestamp": start, "avg": divide(weighted, count)})
    total = sum(count for count, _ in sums.values())
    return {"avg": divide(sum(weighted for _, weighted in sums.values()), total)}, points


def _run_scores(fragments: SqlFragments, filters: LogFilters, _: Buckets) -> Graph:
    statement = Statement(fragments)
    joined = _join_by_time(statement, filters)
    rows = statement.fetch(f"SELECT round(f.value) AS score, count(*) FROM {joined} GROUP BY score ORDER BY score")
    # The column `value` is a floating-point number.
    return {"total": sum(row[1] for row in rows)}, [{"score": int(score), "total": count} for score, count in rows]


def _run_models(fragments: SqlFragments, filters: LogFilters, _: Buckets) -> Graph:
    """Feedback counts once for each model that responded in its trace, and not for requests without a model."""
    statement = Statement(fragments)
    grouping, has_model = f'{TRACE}, r."ai_model"', "r.\"ai_model\" <> ''"
    joined = join_feedback(statement, filters, 'r."ai_model" AS ai_model', grouping, has_model)
    rows = statement.fetch(
        "SELECT t.ai_model AS model, count(*) AS n, avg(f.value * f.weight) "
        f"FROM {joined} GROUP BY model ORDER BY n DESC, model"
    )
    return {}, [{"ai_model": model, "total": count, "avg_weighted_feedback": average} for model, count, average in rows]


FEEDBACK_GRAPHS = {
    "feedbacks": _run_feedbacks,
    "feedbacks/scores": _run_scores,
    "feedbacks/weighted": _run_weighted,
    "feedbacks/ai-models": _run_models,
}
