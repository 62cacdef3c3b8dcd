"""Groups of analytics: records grouped by one property, with the columns that a query chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.logs.columns import COMPARISON_SOURCE
from penstock.logs.engines.buckets import format_ms
from penstock.logs.engines.filters import build_tenant_scope, select_records
from penstock.logs.engines.guardrail_groups import (
    CHECK,
    GUARDRAIL,
    count_verdicts,
    list_verdict_columns,
    select_results,
)
from penstock.logs.engines.measures import (
    END_USER,
    FAILED,
    HIT,
    STATUS,
    SUCCEEDED,
    UNPRICED,
    Number,
    count_if,
    to_cents,
)
from penstock.logs.engines.sql import SqlFragments, Statement
from penstock.logs.query import GroupQuery, LogFilterError

# Requests that compare prompt versions are trials. They are excluded, because they would distort the figures of client
# requests.
_PROMPT = f'CASE WHEN r."source" = \'{COMPARISON_SOURCE}\' THEN NULL ELSE r."prompt_slug" END'
# SQL expression of each group's value, and the name of this value in a result.
GROUPS: dict[str, tuple[str, str]] = {
    "users": (END_USER, "user"),
    "ai-models": ('r."ai_model"', "ai_model"),
    "ai_service": ('r."ai_org"', "ai_service"),
    "model": ('r."ai_model"', "model"),
    "status_code": (STATUS, "status_code"),
    "api_key": ('r."api_key_id"', "api_key"),
    "config": ('r."config"', "config"),
    "workspace": ('nullif(coalesce(r."workspace_slug", r."workspace_id"), \'\')', "workspace"),
    "provider": ('r."virtual_key"', "provider"),
    "prompt": (_PROMPT, "prompt"),
    "prompt-versions": (f"({_PROMPT} || '@' || {{version}})", "prompt_version"),
    # Each result of a guardrail or check in a record becomes a separate row.
    **{name: ('r."hook_results"', name) for name in (GUARDRAIL, CHECK)},
}


class GroupMeasure(msgspec.Struct, frozen=True):
    """SQL aggregate for a column of groups, and the conversion of its result."""

    aggregate: str
    convert: Callable[[Any], Any] = lambda value: value or 0


def _share(condition: str) -> str:
    return f"100.0 * {count_if(condition)} / count(*)"


def _convert_cost(nanodollars: Number | None) -> Number:
    return to_cents(nanodollars)


# Level of each column that is a quantile of the response time.
QUANTILES = {"p95_latency": 0.95, "p99_latency": 0.99}
MEASURES = {
    "requests": GroupMeasure("count(*)"),
    "cost": GroupMeasure('sum(r."cost_nanodollars")', _convert_cost),
    "total_tokens": GroupMeasure('sum(r."total_units")'),
    "avg_tokens": GroupMeasure('sum(r."total_units") / count(*)'),
    "avg_input_tokens": GroupMeasure('sum(r."req_units") / count(*)'),
    "avg_output_tokens": GroupMeasure('sum(r."res_units") / count(*)'),
    "avg_latency": GroupMeasure('avg(r."response_time")'),
    **{column: GroupMeasure("") for column in QUANTILES},
    "success_rate": GroupMeasure(_share(SUCCEEDED)),
    "error_count": GroupMeasure(count_if(FAILED)),
    "cache_hit_rate": GroupMeasure(_share(HIT)),
    "last_seen": GroupMeasure("{last_ms}", format_ms),
    "first_seen": GroupMeasure("{first_ms}", format_ms),
    "unpriced_requests": GroupMeasure(count_if(UNPRICED)),
    "avg_weighted_feedback": GroupMeasure('avg(w."weighted")'),
    "requests_with_feedback": GroupMeasure('count(w."weighted")'),
}
FEEDBACK_COLUMNS = ("avg_weighted_feedback", "requests_with_feedback")
METADATA_COLUMNS = ("requests", "cost", "avg_tokens", "last_seen", *FEEDBACK_COLUMNS)


def run_group(fragments: SqlFragments, query: GroupQuery) -> dict[str, Any]:
    """Runs one page of a group. Records without the property are omitted; `total` counts the groups."""
    statement = Statement(fragments)
    key, name = _choose_key(statement, query)
    columns = list(dict.fromkeys((*_fixed_columns(query.group_by), *query.columns)))
    if "cost" in columns and "unpriced_requests" not in columns:
        # A cost does not include requests without a price. Without their number, it would look complete.
        columns.append("unpriced_requests")
    selected = list(dict.fromkeys((*columns, query.order_by)))
    measures = [f"{_render_measure(fragments, column)} AS m_{column}" for column in selected]
    verdicts = list_verdict_columns(query.group_by)
    measures += [f"{count_verdicts(fragments, query.group_by, verdict)} AS m_{verdict}" for verdict in verdicts]
    # Records without the property form one group, which is then removed. A condition would compute the property twice.
    records = select_records(fragments, query.filters, statement, f"{key} IS NOT NULL" if verdicts else "")
    if verdicts:
        records, key = select_results(fragments, query.group_by, records)
    if not set(FEEDBACK_COLUMNS).isdisjoint(selected):
        records = _join_weighted(statement, query, records)
    direction = "ASC" if query.order_by_type == "asc" else "DESC"
    rows = statement.fetch(
        f"SELECT {key} AS k, count(*) OVER () AS groups, {', '.join(measures)} FROM {records} GROUP BY k "
        f"HAVING k IS NOT NULL ORDER BY m_{query.order_by} {direction} NULLS LAST, k LIMIT {query.page_size} "
        f"OFFSET {query.current_page * query.page_size}"
    )
    total = rows[0][1] if rows else 0
    if not rows and query.current_page:
        total = statement.fetch(f"SELECT count(DISTINCT {key}) FROM {records}")[0][0]
    data = [
        _shape_group(query, name, [*columns, *verdicts], (*row[: 2 + len(columns)], *row[2 + len(selected) :]))
        for row in rows
    ]
    return {"object": "list", "total": total, "data": data}


def _choose_key(statement: Statement, query: GroupQuery) -> tuple[str, str]:
    if query.group_by != "metadata":
        expression, name = GROUPS[query.group_by]
        return expression.replace("{version}", statement.fragments.id_text('r."prompt_version"')), name
    if query.metadata_key is None:
        message = "metadata_key is missing; group_by metadata needs it"
        raise LogFilterError(message)
    return statement.fragments.map_value('r."metadata"', statement.bind(query.metadata_key)), "metadata_value"


def _fixed_columns(group_by: str) -> tuple[str, ...]:
    if group_by == "metadata":
        return METADATA_COLUMNS
    return ("requests", "cost") if group_by == "users" else ("requests",)


def _render_measure(fragments: SqlFragments, column: str) -> str:
    aggregate = MEASURES[column].aggregate
    if column in QUANTILES:
        # Both columns have the same aggregate, which is then computed once.
        quantiles = fragments.quantiles('r."response_time"', tuple(QUANTILES.values()))
        return f"{quantiles}[{[*QUANTILES].index(column) + 1}]"
    for name, function in (("{last_ms}", "max"), ("{first_ms}", "min")):
        aggregate = aggregate.replace(name, fragments.milliseconds(f'{function}(r."created_at")'))
    return aggregate


def _join_weighted(statement: Statement, query: GroupQuery, records: str) -> str:
    """Returns a FROM item: records joined to `w`, the average weighted feedback of each record's trace."""
    scope = build_tenant_scope(query.filters.organisation_id, query.filters.workspace_ids, statement)
    feedback = statement.fragments.feedback(" AND ".join(scope))
    averages = (
        f"(SELECT workspace_id, trace_id, avg(value * weight) AS weighted FROM {feedback} AS f "
        "GROUP BY workspace_id, trace_id) AS w"
    )
    return (
        f"(SELECT r.* FROM {records}) AS r LEFT JOIN {averages} "
        'ON w.workspace_id = r."workspace_id" AND w.trace_id = r."trace_id"'
    )


def _shape_group(query: GroupQuery, name: str, columns: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    key, _, *values = row
    group: dict[str, Any] = {name: key}
    group |= {
        column: MEASURES[column].convert(value) if column in MEASURES else int(value or 0)
        for column, value in zip(columns, values, strict=True)
    }
    if query.group_by in {"users", "ai-models"}:
        # The OpenAPI document defines these figures as strings.
        group |= {column: str(group[column]) for column in _fixed_columns(query.group_by)}
    return {**group, "object": "analytics-group"}
