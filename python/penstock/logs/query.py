"""Queries of the log store. The control process sends them as JSON to the log worker; every query is limited to one
organisation.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

import msgspec

Timestamp = Annotated[dt.datetime, msgspec.Meta(tz=True)]
# Range of times in filters. ClickHouse cannot store later times.
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
END_OF_TIME = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)

MAX_PAGE_SIZE = 1000
MAX_USAGE_ROWS = 10_000
MAX_FILTER_VALUES = 500
MAX_METADATA_KEYS = 20
MAX_METADATA_CHARS = 512
MAX_SEARCH_CHARS = 1000
MAX_RANGE_DAYS = 3660

# Values of the filter `rescued`: how a request succeeded whose first attempt failed.
RESCUES = ("retry", "fallback")

Values = Annotated[list[str], msgspec.Meta(max_length=MAX_FILTER_VALUES)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_SIZE)]
PageNumber = Annotated[int, msgspec.Meta(ge=0)]


class LogFilterError(ValueError):
    """A filter is not valid. The message names the field, its value and what is allowed."""


class Restriction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits a caller to records that belong to one of these users or API keys."""

    user_ids: Values = msgspec.field(default_factory=list[str])
    api_key_ids: Values = msgspec.field(default_factory=list[str])


class LogFilters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conditions on records, all of which must be true. A list is true if one of its items matches.

    The names are those of `AnalyticsFilters` of the API. Both ends of a range are included. Costs are in cents.
    """

    organisation_id: str
    workspace_ids: Values | None = None
    """`None` stands for all workspaces. An empty list matches nothing."""
    restricted_to: Restriction | None = None
    time_of_generation_min: Timestamp | None = None
    time_of_generation_max: Timestamp | None = None
    total_units_min: int | None = None
    total_units_max: int | None = None
    prompt_token_min: int | None = None
    prompt_token_max: int | None = None
    completion_token_min: int | None = None
    completion_token_max: int | None = None
    cost_min: float | None = None
    cost_max: float | None = None
    weighted_feedback_min: float | None = None
    """Minimum for the average of value × weight over all feedback on the record's trace."""
    weighted_feedback_max: float | None = None
    status_code: Annotated[list[int], msgspec.Meta(max_length=MAX_FILTER_VALUES)] | None = None
    virtual_keys: Values | None = None
    configs: Values | None = None
    api_key_ids: Values | None = None
    user_ids: Values | None = None
    ai_org_model: Values | None = None
    """Items are `provider__model`; `provider__` matches all models of a provider."""
    ai_model: Values | None = None
    trace_id: Values | None = None
    span_id: Values | None = None
    prompt_slug: Values | None = None
    cache_status: Values | None = None
    outcome: Values | None = None
    rescued: Values | None = None
    """Matches successful requests that needed one of these `RESCUES`."""
    guardrails: Values | None = None
    """Matches requests with a result of one of these guardrails. Their graphs contain no other results."""
    metadata: dict[str, Values] | None = None
    """See `parse_metadata_filter`."""
    q: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] | None = None
    """Words that the bodies of a record must contain: all of them, in any order."""


GraphName = Literal[
    "requests",
    "cost",
    "latency",
    "tokens",
    "users",
    "users/requests",
    "errors",
    "errors/rate",
    "errors/stacks",
    "errors/status-codes",
    "requests/rescued",
    "cache/hit-rate",
    "cache/latency",
    "feedbacks",
    "feedbacks/scores",
    "feedbacks/weighted",
    "feedbacks/ai-models",
    "guardrails",
    "guardrails/latency",
]

GroupName = Literal[
    "users", "ai-models", "metadata", "ai_service", "model", "status_code", "api_key", "config", "workspace", "provider",
    "prompt", "prompt-versions", "guardrail", "guardrail_check",
]  # fmt: skip

GroupColumn = Literal[
    "requests",
    "cost",
    "total_tokens",
    "avg_tokens",
    "avg_input_tokens",
    "avg_output_tokens",
    "avg_latency",
    "p95_latency",
    "p99_latency",
    "success_rate",
    "error_count",
    "cache_hit_rate",
    "last_seen",
    "first_seen",
    "unpriced_requests",
    "avg_weighted_feedback",
    "requests_with_feedback",
]


# Widths of time buckets.
Rollup = Literal["1m", "5m", "15m", "1h", "1d", "1w"]


class GraphQuery(msgspec.Struct, kw_only=True, tag="graph", forbid_unknown_fields=True):
    """One graph of analytics. The range of time is mandatory. Days and weeks begin at midnight in `time_zone`. Without
    `rollup`, the width of the time buckets follows from the range.
    """

    filters: LogFilters
    graph: GraphName
    time_zone: str = "UTC"
    rollup: Rollup | None = None


class SummaryQuery(msgspec.Struct, kw_only=True, tag="summary", forbid_unknown_fields=True):
    """Summary of the cache."""

    filters: LogFilters
    summary: Literal["cache"] = "cache"


class GroupQuery(msgspec.Struct, kw_only=True, tag="group", forbid_unknown_fields=True):
    """Records grouped by one property. `metadata_key` belongs to `group_by: "metadata"`."""

    filters: LogFilters
    group_by: GroupName
    metadata_key: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_METADATA_CHARS)] | None = None
    columns: list[GroupColumn] = msgspec.field(default_factory=list[GroupColumn])
    order_by: GroupColumn = "requests"
    order_by_type: Literal["asc", "desc"] = "desc"
    current_page: PageNumber = 0
    page_size: PageSize = 50


class ListQuery(msgspec.Struct, kw_only=True, tag="list", forbid_unknown_fields=True):
    """Records by time. `cursor` is the `next_cursor` of the previous page. `columns` are names from
    `columns.COLUMNS`.
    """

    filters: LogFilters
    columns: list[str] | None = None
    """`None` stands for all columns that are listed (`Column.is_listed`)."""
    order: Literal["desc", "asc"] = "desc"
    cursor: str | None = None
    limit: PageSize = 50
    with_total: bool = False


class GetQuery(msgspec.Struct, kw_only=True, tag="get", forbid_unknown_fields=True):
    """One record by its identifier, with all columns, its feedback and the location of its bodies."""

    organisation_id: str
    id: str
    workspace_ids: Values | None = None
    restricted_to: Restriction | None = None


class TraceQuery(msgspec.Struct, kw_only=True, tag="trace", forbid_unknown_fields=True):
    """Records of one trace as a tree of spans."""

    organisation_id: str
    trace_id: str
    workspace_ids: Values | None = None
    restricted_to: Restriction | None = None


class FeedbackQuery(msgspec.Struct, kw_only=True, tag="feedback", forbid_unknown_fields=True):
    """Feedback by identifiers or traces."""

    organisation_id: str
    workspace_ids: Values | None = None
    ids: Values | None = None
    trace_ids: Values | None = None


class UnpricedQuery(msgspec.Struct, kw_only=True, tag="unpriced", forbid_unknown_fields=True):
    """Models that used tokens for which no price was known."""

    filters: LogFilters


class UsageQuery(msgspec.Struct, kw_only=True, tag="usage", forbid_unknown_fields=True):
    """Fields of records on which their costs depend, the oldest records first. `cursor` is the `next_cursor` of the
    previous page.
    """

    filters: LogFilters
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_USAGE_ROWS)] = MAX_USAGE_ROWS


class DemandQuery(msgspec.Struct, kw_only=True, tag="demand", forbid_unknown_fields=True):
    """Fields on which limits depend, for requests that reached a provider or the cache, the oldest first. With
    `only_limited`, for requests that a limit refused or would have refused instead. `cursor` is as in `UsageQuery`.
    """

    filters: LogFilters
    metadata_keys: Annotated[list[str], msgspec.Meta(max_length=2 * MAX_METADATA_KEYS)] = msgspec.field(
        default_factory=list[str]
    )
    only_limited: bool = False
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_USAGE_ROWS)] = MAX_USAGE_ROWS


LogQuery = (
    GraphQuery
    | SummaryQuery
    | GroupQuery
    | ListQuery
    | GetQuery
    | TraceQuery
    | FeedbackQuery
    | UnpricedQuery
    | UsageQuery
    | DemandQuery
)


def parse_metadata_filter(text: str) -> dict[str, list[str]]:
    """Parses the filter `metadata` of a URL: a JSON object whose values are strings, or lists of strings to choose
    from.

    Numbers and booleans are compared by their JSON text. Raises `LogFilterError`.
    """
    try:
        decoded = msgspec.json.decode(text.encode(), type=dict[str, str | int | float | bool | list[str]])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        message = f"metadata must be a JSON object of strings or lists of strings: {error}"
        raise LogFilterError(message) from None
    if len(decoded) > MAX_METADATA_KEYS:
        message = f"metadata has {len(decoded)} keys; at most {MAX_METADATA_KEYS} are allowed"
        raise LogFilterError(message)
    filters: dict[str, list[str]] = {}
    for key, value in decoded.items():
        if isinstance(value, list):
            values = value
        else:
            values = [value if isinstance(value, str) else msgspec.json.encode(value).decode()]
        if len(values) > MAX_FILTER_VALUES or any(len(item) > MAX_METADATA_CHARS for item in (key, *values)):
            message = (
                f"metadata.{key[:64]} is too long; at most {MAX_FILTER_VALUES} values of {MAX_METADATA_CHARS} "
                "characters are allowed"
            )
            raise LogFilterError(message)
        filters[key] = values
    return filters
