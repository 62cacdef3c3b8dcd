"""Measures of graphs and groups: SQL aggregates that both engines understand, and conversions of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.logs.columns import NANODOLLARS_PER_CENT

if TYPE_CHECKING:
    from collections.abc import Sequence

Number = int | float

FAILED = 'NOT coalesce(r."is_success", false)'
SUCCEEDED = 'coalesce(r."is_success", false)'
# Condition on records for each value of the filter `rescued`: a retry or a fallback made the request succeed.
RESCUED_BY = {
    "retry": '(coalesce(r."retry_success_count", 0) > 0)',
    "fallback": '(coalesce(r."is_fallback", false))',
}
# Status of the response. 0 stands for no response: the worker was killed before the request ended.
STATUS = 'coalesce(r."response_status_code", 0)'
END_USER = "nullif(r.\"user\", '')"
SEMANTIC_HIT = "(r.\"cache_status\" = 'semantic_hit' OR (r.\"cache_status\" = 'hit' AND coalesce(r.\"cache_type\", '') = 'semantic'))"
HIT = "(r.\"cache_status\" IN ('hit', 'semantic_hit'))"
SIMPLE_HIT = "(r.\"cache_status\" = 'hit' AND coalesce(r.\"cache_type\", '') <> 'semantic')"
# Condition for records that used tokens or images without a known price, or may have. Their cost is null, and no sum
# includes it. Killed requests may have used tokens that nobody has counted.
UNPRICED = (
    'r."cost_nanodollars" IS NULL '
    'AND (r."total_units" > 0 OR r."usage" LIKE \'%"images":%\' OR (r."outcome" = \'killed\' AND r."ai_model" <> \'\')) '
    f"AND NOT coalesce({HIT}, false)"
)
CENTS_DIGITS = 7
# Percentiles in graphs of latency.
PERCENTILES = (0.5, 0.9, 0.99)


def count_if(condition: str) -> str:
    """Counts the records that meet a condition."""
    return f"count(*) FILTER (WHERE {condition})"


def average_if(expression: str, condition: str) -> str:
    """Averages an expression over the records that meet a condition."""
    return f"avg({expression}) FILTER (WHERE {condition})"


def to_cents(nanodollars: Number | None) -> Number:
    """Converts a sum of nano-dollars to cents."""
    return round((nanodollars or 0) / NANODOLLARS_PER_CENT, CENTS_DIGITS)


def divide(amount: Number | None, count: Number | None) -> Number:
    """Returns an average; 0 without values."""
    return (amount or 0) / count if count else 0


def to_percent(part: Number | None, whole: Number | None) -> Number:
    """Returns a share in percent; 0 without values."""
    return divide(100 * (part or 0), whole)


def shape_latency(row: Sequence[Any]) -> dict[str, Any]:
    """Returns average and percentiles; 0 without values. The row has the average, and the list of `PERCENTILES`."""
    p50, p90, p99 = row[1] or (0, 0, 0)
    return {"avg": row[0] or 0, "p50": p50 or 0, "p90": p90 or 0, "p99": p99 or 0}
