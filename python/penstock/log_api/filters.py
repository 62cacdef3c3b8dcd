"""Filters of logs and analytics: the query parameters that all of these routes share, and the same fields in the body of
a log export. Reports every problem at once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec
from litestar import Request
from litestar.di import NamedDependency  # noqa: TC002 - the framework reads the annotations at runtime
from litestar.params import QueryParameter
from msgspec import Meta

from penstock.errors import Problem
from penstock.kit.tenant_session import RequestContext  # noqa: TC001 - as above
from penstock.logs.query import (
    END_OF_TIME,
    EPOCH,
    MAX_FILTER_VALUES,
    RESCUES,
    LogFilterError,
    LogFilters,
    parse_metadata_filter,
)
from penstock.schemas import invalid_error, to_utc
from penstock.similar_names import NameSuggester

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar.handlers import BaseRouteHandler

    from penstock.log_api.visibility import LogAccess

DEFAULT_RANGE = timedelta(days=7)
# Filters with a lower and an upper bound.
RANGES = ("time_of_generation", "total_units", "cost", "prompt_token", "completion_token", "weighted_feedback")
# Filters with several values separated by commas.
LISTS = (
    *("status_code", "virtual_keys", "configs", "api_key_ids", "ai_org_model", "ai_model", "trace_id", "span_id"),
    *("prompt_slug", "cache_status", "outcome", "rescued", "guardrails"),
)
MODEL_SEPARATOR = "__"
OUTCOMES = ("complete", "refused", "failed", "aborted", "cut", "panicked", "killed")
# Allowed values of the list filters that accept only fixed values.
FIXED_VALUES = {"outcome": OUTCOMES, "rescued": RESCUES}
STATUS_DIGITS = 3
# Status of requests without a response, because their process was killed.
NO_STATUS = "0"
STATUS_CLASSES = {f"{first}xx": range(first * 100, first * 100 + 100) for first in range(1, 6)}
MAX_PARAMETER_PROBLEMS = 20
# Larger than all numbers in records, and exact in every number format.
MAX_NUMBER = 2**53
# Maximum number of rows that an export skips before its first row. It must read these rows, too.
MAX_SKIPPED_ROWS = 1_000_000
SKIPPED_MESSAGE = (
    f"{{}} skips {{:,}} logs: at most {MAX_SKIPPED_ROWS:,} are allowed; use time_of_generation_max to begin later"
)
# Cache of the names of query parameters, by route. `_check_parameters` fills it.
ROUTE_PARAMETERS: dict[BaseRouteHandler, frozenset[str]] = {}
AnyRequest = Request[Any, Any, Any]

WORKSPACE_WORDS = (
    "id or slug of the workspace; ignored with a key of a workspace; `*`: all workspaces that are open to the caller"
)
_Units = Annotated[int, Meta(ge=0)] | None
_Cents = Annotated[float, Meta(ge=0)] | None
_Score = Annotated[float, Meta(ge=-10, le=10)] | None
DESCRIPTIONS = {
    "time_of_generation_min": "only requests from this time on, ISO 8601",
    "time_of_generation_max": "only requests up to this time, ISO 8601; default: now",
    "total_units_min": "only requests with at least this many tokens",
    "total_units_max": "only requests with at most this many tokens",
    "cost_min": "only requests that cost at least this much, in cents; may be fractional",
    "cost_max": "only requests that cost at most this much, in cents; may be fractional",
    "prompt_token_min": "only requests with at least this many input tokens",
    "prompt_token_max": "only requests with at most this many input tokens",
    "completion_token_min": "only requests with at least this many output tokens",
    "completion_token_max": "only requests with at most this many output tokens",
    "status_code": "only these response status codes, separated by commas; `5xx` means all from 500 to 599, `0` no response",
    "weighted_feedback_min": "only requests with at least this average feedback: value times weight",
    "weighted_feedback_max": "only requests with at most this average feedback: value times weight",
    "virtual_keys": "only these saved providers: slugs separated by commas",
    "configs": "only these configs: slugs or ids separated by commas",
    "api_key_ids": "only these API keys: ids separated by commas",
    "metadata": "only requests with this metadata: a JSON object of strings; a list of strings means any of them",
    "ai_org_model": "only these models: `provider__model` separated by commas",
    "ai_model": "only these models: names separated by commas",
    "trace_id": "only these trace ids, separated by commas",
    "span_id": "only these span ids, separated by commas",
    "prompt_slug": "only these prompts: slugs separated by commas",
    "cache_status": "only these cache statuses, separated by commas: `hit`, `semantic_hit`, `miss`, `refresh`, `disabled`",
    "rescued": "only successful requests that needed one of these, separated by commas: `retry`, `fallback`",
    "guardrails": "only requests with a result of these guardrails: slugs, or ids in a config, separated by commas",
    "outcome": f"only requests that ended like this, separated by commas: {', '.join(f'`{name}`' for name in OUTCOMES)}",
}


def _query(name: str, **bounds: float) -> QueryParameter:
    return QueryParameter(description=DESCRIPTIONS[name], **cast("Any", bounds))


class RequestedFilters(NamedTuple):
    """Validated filters of a request, and the workspace as the client named it."""

    workspace: str | None
    values: dict[str, Any]

    def within(self, access: LogAccess) -> LogFilters:
        """Returns the filters limited to what a caller may see."""
        return LogFilters(
            organisation_id=access.organisation_id,
            workspace_ids=access.workspace_ids,
            restricted_to=access.restriction,
            **self.values,
        )

    def with_default_range(self) -> RequestedFilters:
        """Returns the filters with a complete time range, as analytics need it. By default it ends now, and starts
        seven days before its end.
        """
        end = self.values.get("time_of_generation_max") or datetime.now(UTC)
        start = self.values.get("time_of_generation_min") or max(end - DEFAULT_RANGE, EPOCH)
        return self._replace(values={**self.values, "time_of_generation_min": start, "time_of_generation_max": end})


def parse_filters(sent: Mapping[str, Any], path: str = "", known_problems: Sequence[Problem] = ()) -> RequestedFilters:
    """Validates filters. `path` precedes the names in error messages. Raises InvalidError with all problems,
    `known_problems` first.
    """
    problems = list(known_problems)
    sent = {name: value for name, value in sent.items() if value is not None}
    workspace = sent.pop("workspace_slug", None)
    values: dict[str, Any] = {name: _clamp(value) for name, value in sent.items() if name not in LISTS}
    values |= {name: _parse_list(path + name, sent[name], problems) for name in LISTS if name in sent}
    if "status_code" in values:
        values["status_code"] = _parse_status_codes(f"{path}status_code", values["status_code"], problems)
    problems += [
        Problem(f"{path}{name}", f"{value[:80]!r} is not allowed: expected one of {', '.join(allowed)}")
        for name, allowed in FIXED_VALUES.items()
        for value in values.get(name, ())
        if value not in allowed
    ]
    problems += [
        Problem(f"{path}ai_org_model", f"{pair!r} is not allowed: expected provider__model")
        for pair in values.get("ai_org_model", ())
        if not pair.partition(MODEL_SEPARATOR)[0] or MODEL_SEPARATOR not in pair
    ]
    problems += [
        Problem(f"{path}{name}", "is not a number; expected one such as 1.5")
        for name, value in values.items()
        if isinstance(value, float) and isnan(value)
    ]
    for name in RANGES:
        low, high = values.get(f"{name}_min"), values.get(f"{name}_max")
        if low is not None and high is not None and low > high:
            problems.append(Problem(f"{path}{name}_min", f"must not exceed {name}_max"))
    if "metadata" in values:
        values["metadata"] = _parse_metadata(f"{path}metadata", values["metadata"], problems)
    if problems:
        raise invalid_error(problems)
    return RequestedFilters(workspace, values)


def _clamp(value: object) -> object:
    """Converts a time to UTC, and limits times and numbers to those that can be stored. The log worker would read an
    infinite number as if the filter were missing. NaN stays as it is, so that it is rejected.
    """
    if isinstance(value, datetime):
        return min(max(to_utc(value), EPOCH), END_OF_TIME)
    if not isinstance(value, int | float) or (isinstance(value, float) and isnan(value)):
        return value
    return max(-MAX_NUMBER, min(value, MAX_NUMBER))


def _parse_list(path: str, text: str, problems: list[Problem]) -> list[str]:
    values = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not values:
        problems.append(Problem(path, f"{text[:80]!r} is not allowed: expected values separated by commas"))
    if len(values) > MAX_FILTER_VALUES:
        problems.append(Problem(path, f"has {len(values)} values: at most {MAX_FILTER_VALUES} are allowed"))
    return values


def _parse_status_codes(path: str, listed: list[str], problems: list[Problem]) -> list[int]:
    codes: list[int] = []
    for text in listed:
        if text == NO_STATUS or (text.isascii() and text.isdecimal() and len(text) == STATUS_DIGITS):
            codes.append(int(text))
        elif text.lower() in STATUS_CLASSES:
            codes += STATUS_CLASSES[text.lower()]
        else:
            problems.append(
                Problem(path, f"{text[:80]!r} is not allowed: expected codes such as 429, 4xx or 5xx, or 0")
            )
    return list(dict.fromkeys(codes))


def _parse_metadata(path: str, value: object, problems: list[Problem]) -> dict[str, list[str]]:
    """Reads metadata from the JSON text of a query string, or from the object of a body."""
    try:
        return parse_metadata_filter(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    except LogFilterError as error:
        problems.append(Problem(path, str(error).removeprefix("metadata").lstrip(".: ")))
        return {}


def _check_parameters(request: AnyRequest) -> list[Problem]:
    """Returns a problem for each query parameter that the route does not have, and for each single value that is sent
    more than once. If a misspelt filter were ignored, the response would contain too much.
    """
    handler = request.route_handler
    names = ROUTE_PARAMETERS.get(handler)
    if names is None:
        path_names = cast("dict[str, Any]", dict.fromkeys(request.path_params))
        parameters = handler.create_kwargs_model(path_names).expected_query_params
        names = ROUTE_PARAMETERS[handler] = frozenset(parameter.field_alias for parameter in parameters)
    suggester, problems = NameSuggester(), list[Problem]()
    for name in request.query_params:
        if name in names:
            if name not in LISTS and len(request.query_params.getall(name)) > 1:
                problems.append(Problem(name, "is given more than once; expected one value"))
            continue
        near = suggester.find(name, names)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(names))}"
        problems.append(Problem(name[:80], f"is not a parameter of this route; {hint}"))
        if len(problems) >= MAX_PARAMETER_PROBLEMS:
            break
    return problems


def read_log_filters(  # noqa: PLR0913, PLR0917 - one parameter for each filter
    request: AnyRequest,
    context: NamedDependency[RequestContext],
    workspace_slug: Annotated[str | None, QueryParameter(description=WORKSPACE_WORDS)] = None,
    time_of_generation_min: Annotated[datetime | None, _query("time_of_generation_min")] = None,
    time_of_generation_max: Annotated[datetime | None, _query("time_of_generation_max")] = None,
    total_units_min: Annotated[int | None, _query("total_units_min", ge=0)] = None,
    total_units_max: Annotated[int | None, _query("total_units_max", ge=0)] = None,
    cost_min: Annotated[float | None, _query("cost_min", ge=0)] = None,
    cost_max: Annotated[float | None, _query("cost_max", ge=0)] = None,
    prompt_token_min: Annotated[int | None, _query("prompt_token_min", ge=0)] = None,
    prompt_token_max: Annotated[int | None, _query("prompt_token_max", ge=0)] = None,
    completion_token_min: Annotated[int | None, _query("completion_token_min", ge=0)] = None,
    completion_token_max: Annotated[int | None, _query("completion_token_max", ge=0)] = None,
    status_code: Annotated[str | None, _query("status_code")] = None,
    weighted_feedback_min: Annotated[float | None, _query("weighted_feedback_min", ge=-10, le=10)] = None,
    weighted_feedback_max: Annotated[float | None, _query("weighted_feedback_max", ge=-10, le=10)] = None,
    virtual_keys: Annotated[str | None, _query("virtual_keys")] = None,
    configs: Annotated[str | None, _query("configs")] = None,
    api_key_ids: Annotated[str | None, _query("api_key_ids")] = None,
    metadata: Annotated[str | None, _query("metadata")] = None,
    ai_org_model: Annotated[str | None, _query("ai_org_model")] = None,
    ai_model: Annotated[str | None, _query("ai_model")] = None,
    trace_id: Annotated[str | None, _query("trace_id")] = None,
    span_id: Annotated[str | None, _query("span_id")] = None,
    prompt_slug: Annotated[str | None, _query("prompt_slug")] = None,
    cache_status: Annotated[str | None, _query("cache_status")] = None,
    outcome: Annotated[str | None, _query("outcome")] = None,
    rescued: Annotated[str | None, _query("rescued")] = None,
    guardrails: Annotated[str | None, _query("guardrails")] = None,
) -> RequestedFilters:
    """Reads the filters that all routes of logs and analytics accept. A list parameter may be sent several times; its
    values are joined.
    """
    sent = dict(locals())
    del sent["context"], sent["request"]
    for name in LISTS:
        if sent[name] is not None:
            sent[name] = ",".join(request.query_params.getall(name))
    return parse_filters(sent, known_problems=_check_parameters(request))


class ExportFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Filters of a log export. All are optional; lists are separated by commas."""

    time_of_generation_min: Annotated[datetime | None, Meta(description=DESCRIPTIONS["time_of_generation_min"])] = None
    time_of_generation_max: Annotated[datetime | None, Meta(description=DESCRIPTIONS["time_of_generation_max"])] = None
    total_units_min: Annotated[_Units, Meta(description=DESCRIPTIONS["total_units_min"])] = None
    total_units_max: Annotated[_Units, Meta(description=DESCRIPTIONS["total_units_max"])] = None
    cost_min: Annotated[_Cents, Meta(description=DESCRIPTIONS["cost_min"])] = None
    cost_max: Annotated[_Cents, Meta(description=DESCRIPTIONS["cost_max"])] = None
    ai_model: Annotated[str | None, Meta(description=DESCRIPTIONS["ai_model"])] = None
    prompt_token_min: Annotated[_Units, Meta(description=DESCRIPTIONS["prompt_token_min"])] = None
    prompt_token_max: Annotated[_Units, Meta(description=DESCRIPTIONS["prompt_token_max"])] = None
    completion_token_min: Annotated[_Units, Meta(description=DESCRIPTIONS["completion_token_min"])] = None
    completion_token_max: Annotated[_Units, Meta(description=DESCRIPTIONS["completion_token_max"])] = None
    status_code: Annotated[str | None, Meta(description=DESCRIPTIONS["status_code"])] = None
    metadata: Annotated[
        dict[str, Any] | str | None, Meta(description=f"{DESCRIPTIONS['metadata']}; or the same as a string")
    ] = None
    ai_org_model: Annotated[str | None, Meta(description=DESCRIPTIONS["ai_org_model"])] = None
    weighted_feedback_min: Annotated[_Score, Meta(description=DESCRIPTIONS["weighted_feedback_min"])] = None
    weighted_feedback_max: Annotated[_Score, Meta(description=DESCRIPTIONS["weighted_feedback_max"])] = None
    virtual_keys: Annotated[str | None, Meta(description=DESCRIPTIONS["virtual_keys"])] = None
    trace_id: Annotated[str | None, Meta(description=DESCRIPTIONS["trace_id"])] = None
    span_id: Annotated[str | None, Meta(description=DESCRIPTIONS["span_id"])] = None
    configs: Annotated[str | None, Meta(description=DESCRIPTIONS["configs"])] = None
    api_key_ids: Annotated[str | None, Meta(description=DESCRIPTIONS["api_key_ids"])] = None
    cache_status: Annotated[str | None, Meta(description=DESCRIPTIONS["cache_status"])] = None
    outcome: Annotated[str | None, Meta(description=DESCRIPTIONS["outcome"])] = None
    rescued: Annotated[str | None, Meta(description=DESCRIPTIONS["rescued"])] = None
    guardrails: Annotated[str | None, Meta(description=DESCRIPTIONS["guardrails"])] = None
    prompt_slug: Annotated[str | None, Meta(description=DESCRIPTIONS["prompt_slug"])] = None
    workspace_slug: Annotated[
        str | None, Meta(description="id or slug of the workspace, if `workspace_id` does not name it")
    ] = None
    page_size: Annotated[
        Annotated[int, Meta(ge=1, le=50_000)] | None,
        Meta(description="export only a page of this many rows; default: all rows, at most 50,000"),
    ] = None
    current_page: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None, Meta(description="number of that page, from 0")
    ] = None

    def parse(self) -> RequestedFilters:
        """Validates the filters. Raises InvalidError with all problems."""
        filters = msgspec.structs.asdict(self)
        size, number = filters.pop("page_size"), filters.pop("current_page")
        problems: list[Problem] = []
        if size and number and size * number > MAX_SKIPPED_ROWS:
            problems.append(Problem("filters.current_page", SKIPPED_MESSAGE.format(number, size * number)))
        return parse_filters(filters, "filters.", problems)
