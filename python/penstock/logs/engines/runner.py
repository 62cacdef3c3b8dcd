"""Runs a query with the fragments of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.logs.engines import demand, graphs, groups, lists, usage
from penstock.logs.query import (
    DemandQuery,
    FeedbackQuery,
    GetQuery,
    GraphQuery,
    GroupQuery,
    ListQuery,
    SummaryQuery,
    TraceQuery,
    UsageQuery,
)

if TYPE_CHECKING:
    from penstock.logs.engines.sql import SqlFragments
    from penstock.logs.query import LogQuery


def run_query(fragments: SqlFragments, query: LogQuery) -> dict[str, Any]:  # noqa: PLR0911 - one line per kind of query
    """Runs a query, and returns its result in the shape of the API."""
    match query:
        case GraphQuery():
            return graphs.run_graph(fragments, query)
        case SummaryQuery():
            return graphs.run_summary(fragments, query)
        case GroupQuery():
            return groups.run_group(fragments, query)
        case ListQuery():
            return lists.fetch_record_page(fragments, query)
        case GetQuery():
            return lists.run_get(fragments, query)
        case TraceQuery():
            return lists.run_trace(fragments, query)
        case FeedbackQuery():
            return lists.run_feedback(fragments, query)
        case UsageQuery():
            return usage.run_usage(fragments, query)
        case DemandQuery():
            return demand.run_demand(fragments, query)
        case _:
            return usage.run_unpriced(fragments, query)
