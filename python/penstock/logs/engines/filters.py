"""Filters as SQL conditions. Every query is limited to an organisation, to workspaces, and by the caller's
restriction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs.body_text import MAX_SEARCH_WORDS, split_words
from penstock.logs.columns import NANODOLLARS_PER_CENT
from penstock.logs.engines.guardrail_groups import GUARDRAIL_PATHS
from penstock.logs.engines.measures import RESCUED_BY, STATUS, SUCCEEDED
from penstock.logs.engines.sql import Statement, ValueType
from penstock.logs.query import END_OF_TIME, EPOCH, MAX_METADATA_KEYS, LogFilterError, LogFilters, Restriction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.logs.engines.sql import SqlFragments

# Column of each list filter that does not have the name of its column.
LIST_COLUMNS = {
    "virtual_keys": "virtual_key",
    "api_key_ids": "api_key_id",
    "user_ids": "user_id",
    "ai_model": "ai_model",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "prompt_slug": "prompt_slug",
    "cache_status": "cache_status",
    "outcome": "outcome",
}
INTEGER_RANGES = {"total_units": "total_units", "prompt_token": "req_units", "completion_token": "res_units"}
OPERATORS = {"min": ">=", "max": "<="}
MAX_INTEGER = 2**63 - 1
MAX_CENTS = 1e11


def select_records(fragments: SqlFragments, filters: LogFilters, statement: Statement, extra: str = "") -> str:
    """Returns a FROM item `r` and its WHERE clause: the records that meet all filters and the condition `extra`."""
    relation = fragments.records(" AND ".join(build_scope(filters, statement)), filters)
    conditions = [*build_conditions(filters, statement), *([extra] if extra else [])]
    return f"{relation} AS r" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")


def build_scope(filters: LogFilters, statement: Statement) -> list[str]:
    """Returns the conditions of a query's scope: the records that the caller may read, and the time range."""
    conditions = build_tenant_scope(filters.organisation_id, filters.workspace_ids, statement)
    if filters.restricted_to is not None:
        conditions.append(_build_restriction(filters.restricted_to, statement))
    for moment, operator in ((filters.time_of_generation_min, ">="), (filters.time_of_generation_max, "<=")):
        if moment is not None:
            placeholder = statement.bind(max(EPOCH, min(moment, END_OF_TIME)), ValueType.TIMESTAMP)
            conditions.append(f'"created_at" {operator} {placeholder}')
    return conditions


def build_tenant_scope(organisation_id: str, workspace_ids: Sequence[str] | None, statement: Statement) -> list[str]:
    """Returns the conditions on organisation and workspaces."""
    if not organisation_id:
        message = "organisation_id is empty; every query needs an organisation"
        raise LogFilterError(message)
    conditions = [f'"organisation_id" = {statement.bind(organisation_id)}']
    if workspace_ids is not None:
        conditions.append(f'"workspace_id" IN {statement.bind_list(workspace_ids)}')
    return conditions


def _build_restriction(restriction: Restriction, statement: Statement) -> str:
    users, keys = statement.bind_list(restriction.user_ids), statement.bind_list(restriction.api_key_ids)
    return f'(coalesce("user_id" IN {users}, false) OR coalesce("api_key_id" IN {keys}, false))'


def build_conditions(filters: LogFilters, statement: Statement) -> list[str]:
    """Returns the conditions of the filters that are not in `build_scope`."""
    conditions = [
        f'r."{column}" IN {statement.bind_list(values)}'
        for field, column in LIST_COLUMNS.items()
        if (values := getattr(filters, field)) is not None
    ]
    if filters.configs is not None:
        values = statement.bind_list(filters.configs)
        # A config may be named by its slug or its id.
        conditions.append(f'(coalesce(r."config" IN {values}, false) OR coalesce(r."config_id" IN {values}, false))')
    if filters.status_code is not None:
        conditions.append(f"{STATUS} IN {statement.bind_list(filters.status_code, ValueType.INTEGER)}")
    if filters.rescued is not None:
        rescue_conditions = [condition for name, condition in RESCUED_BY.items() if name in filters.rescued]
        conditions.append(f"{SUCCEEDED} AND ({' OR '.join(rescue_conditions) or 'false'})")
    if filters.guardrails is not None:
        names = [statement.bind(name) for name in filters.guardrails]
        conditions.append(statement.fragments.json_has_id('r."hook_results"', GUARDRAIL_PATHS, names))
    conditions += _build_ranges(filters, statement)
    if filters.ai_org_model is not None:
        conditions.append(_build_models(filters.ai_org_model, statement))
    if filters.metadata is not None:
        conditions += _build_metadata(filters.metadata, statement)
    if filters.weighted_feedback_min is not None or filters.weighted_feedback_max is not None:
        conditions.append(_build_weighted_feedback(filters, statement))
    if filters.q is not None and filters.q.strip():
        words = split_words(filters.q)
        if not 0 < len(words) <= MAX_SEARCH_WORDS:
            message = f"q has {len(words)} different words; between 1 and {MAX_SEARCH_WORDS} are allowed"
            raise LogFilterError(message)
        conditions.append(statement.fragments.text_condition(statement, filters, words))
    return conditions


def _build_ranges(filters: LogFilters, statement: Statement) -> Iterator[str]:
    for field, column in INTEGER_RANGES.items():
        for end, operator in OPERATORS.items():
            bound = getattr(filters, f"{field}_{end}")
            if bound is not None:
                yield f'r."{column}" {operator} {_bind_integer(bound, statement)}'
    for end, operator in OPERATORS.items():
        cents = getattr(filters, f"cost_{end}")
        if cents is not None:
            nanodollars = round(max(-MAX_CENTS, min(cents, MAX_CENTS)) * NANODOLLARS_PER_CENT)
            yield f'r."cost_nanodollars" {operator} {_bind_integer(nanodollars, statement)}'


def _bind_integer(value: int, statement: Statement) -> str:
    return statement.bind(max(-MAX_INTEGER, min(value, MAX_INTEGER)), ValueType.INTEGER)


def _build_models(pairs: list[str], statement: Statement) -> str:
    alternatives = ["false"]
    for pair in pairs:
        provider, separator, model = pair.partition("__")
        if not separator:
            message = f"ai_org_model has {pair[:64]!r}; items must be provider__model"
            raise LogFilterError(message)
        condition = f'r."ai_org" = {statement.bind(provider)}'
        if model:
            condition += f' AND r."ai_model" = {statement.bind(model)}'
        alternatives.append(f"({condition})")
    return f"({' OR '.join(alternatives)})"


def _build_metadata(metadata: dict[str, list[str]], statement: Statement) -> list[str]:
    if len(metadata) > MAX_METADATA_KEYS:
        message = f"metadata has {len(metadata)} keys; at most {MAX_METADATA_KEYS} are allowed"
        raise LogFilterError(message)
    return [_build_pair(key, values, statement) for key, values in metadata.items()]


def _build_pair(key: str, values: list[str], statement: Statement) -> str:
    value = statement.fragments.map_value('r."metadata"', statement.bind(key))
    return f"{value} IN {statement.bind_list(values)}"


def _build_weighted_feedback(filters: LogFilters, statement: Statement) -> str:
    having = [
        f"avg(value * weight) {operator} {statement.bind(float(bound), ValueType.FLOAT)}"
        for bound, operator in ((filters.weighted_feedback_min, ">="), (filters.weighted_feedback_max, "<="))
        if bound is not None
    ]
    feedback = statement.fragments.feedback(" AND ".join(build_tenant_scope(filters.organisation_id, None, statement)))
    traces = f"SELECT workspace_id, trace_id FROM {feedback} AS f GROUP BY workspace_id, trace_id"
    return f'(r."workspace_id", r."trace_id") IN ({traces} HAVING {" AND ".join(having)})'
