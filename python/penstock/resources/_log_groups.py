"""Groups of requests: one row per user, model, key or another property, with the chosen figures. Costs are in cents."""

# Annotations are not postponed, for the same reason as in `analytics.py`.
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.authorization import RequireScopes
from penstock.errors import NotFoundError
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.filters import RequestedFilters, read_log_filters
from penstock.log_api.service import LogService
from penstock.log_api.visibility import ALL_WORKSPACES, open_log_access
from penstock.logs.query import MAX_METADATA_CHARS, MAX_PAGE_SIZE, GroupColumn, GroupName, GroupQuery
from penstock.resources._analytics_graphs import Number, Partial
from penstock.schemas import field_error

COLUMNS: tuple[str, ...] = get_args(GroupColumn)
DEFAULT_PAGE_SIZE = 50
METADATA = "metadata"
# Groups by their names in paths. Some clients use the plural for a name.
GROUPS: dict[str, GroupName] = {
    **{name: name for name in get_args(GroupName) if name != METADATA},
    "workspaces": "workspace",
}
GROUP_PATHS = ("/groups/{group_by:str}", "/groups/metadata/{metadata_key:str}")

_Text = str | UnsetType
_Verdicts = int | UnsetType
_Figure = Number | str | UnsetType | None


class LogGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group. It has the property that the requests are grouped by, and the requested figures."""

    user: Annotated[_Text, Meta(description="user: value of the metadata field `_user`")] = UNSET
    ai_model: Annotated[_Text, Meta(description="model, for `ai-models`")] = UNSET
    metadata_value: Annotated[_Text, Meta(description="value of the metadata key")] = UNSET
    ai_service: Annotated[_Text, Meta(description="provider, such as `openai`")] = UNSET
    model: Annotated[_Text, Meta(description="model")] = UNSET
    status_code: Annotated[
        int | _Text, Meta(description="status code of the response; 0: no response, the worker was killed")
    ] = UNSET
    api_key: Annotated[_Text, Meta(description="id of the API key")] = UNSET
    config: Annotated[_Text, Meta(description="slug of the config")] = UNSET
    workspace: Annotated[_Text, Meta(description="slug of the workspace")] = UNSET
    provider: Annotated[_Text, Meta(description="slug of the saved provider")] = UNSET
    prompt: Annotated[_Text, Meta(description="slug of the prompt")] = UNSET
    prompt_version: Annotated[_Text, Meta(description="slug and version of the prompt, such as `greeting@3`")] = UNSET
    guardrail: Annotated[_Text, Meta(description="slug or id of the guardrail")] = UNSET
    guardrail_check: Annotated[_Text, Meta(description="id of the check, such as `gateway.pii`")] = UNSET
    passed: Annotated[_Verdicts, Meta(description="results that passed, for `guardrail` and `guardrail_check`")] = UNSET
    failed: Annotated[_Verdicts, Meta(description="results that failed without a denial")] = UNSET
    denied: Annotated[_Verdicts, Meta(description="results that denied a request or response")] = UNSET
    would_deny: Annotated[_Verdicts, Meta(description="results of dry runs that would have denied")] = UNSET
    skipped: Annotated[_Verdicts, Meta(description="results of guardrails that were skipped")] = UNSET
    errors: Annotated[_Verdicts, Meta(description="results of checks that could not decide")] = UNSET
    requests: Annotated[
        _Figure, Meta(description="number of requests; for guardrails and checks, number of results")
    ] = UNSET
    cost: Annotated[_Figure, Meta(description="cost in cents; may be fractional")] = UNSET
    unpriced_requests: Annotated[
        _Figure, Meta(description="number of requests without a known price, whose cost is not included; beside `cost`")
    ] = UNSET
    total_tokens: Annotated[_Figure, Meta(description="number of tokens")] = UNSET
    avg_tokens: Annotated[_Figure, Meta(description="average number of tokens of a request")] = UNSET
    avg_input_tokens: Annotated[_Figure, Meta(description="average number of input tokens of a request")] = UNSET
    avg_output_tokens: Annotated[_Figure, Meta(description="average number of output tokens of a request")] = UNSET
    avg_latency: Annotated[_Figure, Meta(description="average response time in milliseconds")] = UNSET
    p95_latency: Annotated[_Figure, Meta(description="95th percentile of the response time in milliseconds")] = UNSET
    p99_latency: Annotated[_Figure, Meta(description="99th percentile of the response time in milliseconds")] = UNSET
    success_rate: Annotated[_Figure, Meta(description="share of successful requests, in percent")] = UNSET
    error_count: Annotated[_Figure, Meta(description="number of failed requests")] = UNSET
    cache_hit_rate: Annotated[_Figure, Meta(description="share of cache hits, in percent")] = UNSET
    avg_weighted_feedback: Annotated[_Figure, Meta(description="average feedback: value times weight")] = UNSET
    requests_with_feedback: Annotated[_Figure, Meta(description="number of requests with feedback")] = UNSET
    last_seen: Annotated[str | UnsetType | None, Meta(description="time of the last request, ISO 8601")] = UNSET
    first_seen: Annotated[str | UnsetType | None, Meta(description="time of the first request, ISO 8601")] = UNSET
    object: Annotated[str, Meta(description="`analytics-group`")] = "analytics-group"


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of groups."""

    total: Annotated[int, Meta(description="number of groups on all pages")]
    data: Annotated[list[LogGroup], Meta(description="groups of this page")]
    object: Annotated[str, Meta(description="`list`")] = "list"
    partial: Partial = UNSET


class GroupRequest(NamedTuple):
    """Parameters of a request for groups: the filters, the figures, the order and the page."""

    filters: RequestedFilters
    columns: list[GroupColumn]
    order_by: GroupColumn
    order: Literal["asc", "desc"]
    number: int
    size: int


def read_group_request(  # noqa: PLR0913, PLR0917 - one parameter for each option
    filters: NamedDependency[RequestedFilters],
    columns: Annotated[
        str | None,
        QueryParameter(
            description=f"figures, separated by commas: {', '.join(f'`{name}`' for name in COLUMNS)}; default: the number of requests"
        ),
    ] = None,
    order_by: Annotated[
        str | None, QueryParameter(description="figure that the groups are sorted by; default: the number of requests")
    ] = None,
    order_by_type: Annotated[
        Literal["asc", "desc"], QueryParameter(description="sort direction; default: largest first")
    ] = "desc",
    current_page: Annotated[int, QueryParameter(ge=0, le=1_000_000, description="page number, from 0")] = 0,
    page_size: Annotated[
        int, QueryParameter(ge=0, le=MAX_PAGE_SIZE, description="groups on a page; 0 stands for the default of 50")
    ] = DEFAULT_PAGE_SIZE,
    include_total: Annotated[
        bool | None, QueryParameter(description="accepted for clients that send it; `total` is always returned")
    ] = None,
) -> GroupRequest:
    """Reads the parameters of groups."""
    del include_total
    chosen: list[GroupColumn] = [
        _check_column("columns", part.strip()) for part in (columns or "").split(",") if part.strip()
    ]
    sorted_by = _check_column("order_by", order_by) if order_by else "requests"
    return GroupRequest(filters, chosen, sorted_by, order_by_type, current_page, page_size or DEFAULT_PAGE_SIZE)


def _check_column(path: str, name: str) -> GroupColumn:
    if name not in COLUMNS:
        raise field_error(path, f"{name[:80]!r} is not allowed: expected {', '.join(COLUMNS)}")
    return cast("GroupColumn", name)


DEPENDENCIES = {
    "filters": Provide(read_log_filters, sync_to_thread=False),
    "group_request": Provide(read_group_request, sync_to_thread=False),
}
GroupBy = Annotated[str, PathParameter(description=f"property: {', '.join(f'`{name}`' for name in sorted(GROUPS))}")]
MetadataKey = Annotated[str, PathParameter(max_length=MAX_METADATA_CHARS, description="metadata key")]


def group_route(path: str, guard: RequireScopes, tags: list[str]) -> Any:  # noqa: ANN401 - a route handler of the framework
    """Builds the route of one path that groups requests."""
    if "metadata_key" in path:

        @get(path, guards=[guard], summary="Group requests by metadata", tags=tags, dependencies=DEPENDENCIES)
        async def group_by_metadata(
            metadata_key: MetadataKey,
            context: NamedDependency[RequestContext],
            group_request: NamedDependency[GroupRequest],
            log_service: NamedDependency[LogService],
        ) -> GroupList:
            """Groups requests by the values of a metadata key, with their cost, tokens and feedback."""
            return await _list_groups(context, group_request, log_service, METADATA, metadata_key)

        return group_by_metadata

    @get(path, guards=[guard], summary="Group requests", tags=tags, dependencies=DEPENDENCIES)
    async def group_by_property(
        group_by: GroupBy,
        context: NamedDependency[RequestContext],
        group_request: NamedDependency[GroupRequest],
        log_service: NamedDependency[LogService],
    ) -> GroupList:
        """Groups requests by a property. Without `columns`, each group has only its number of requests; users have
        their cost, too.
        """
        if group_by not in GROUPS:
            raise NotFoundError(f"{group_by[:80]!r} is no property to group by; use {', '.join(sorted(GROUPS))}")
        return await _list_groups(context, group_request, log_service, GROUPS[group_by])

    return group_by_property


async def _list_groups(
    context: RequestContext,
    requested: GroupRequest,
    log_service: LogService,
    group_by: GroupName,
    metadata_key: str | None = None,
) -> GroupList:
    workspace = requested.filters.workspace
    if group_by == "workspace" and workspace is None:
        # Without a workspace in the request, groups are over all workspaces. A single workspace would be only one
        # group.
        workspace = ALL_WORKSPACES
    access = await open_log_access(context, workspace, "figures", only_default=True)
    query = GroupQuery(
        filters=requested.filters.with_default_range().within(access),
        group_by=group_by,
        metadata_key=metadata_key,
        columns=requested.columns,
        order_by=requested.order_by,
        order_by_type=requested.order,
        current_page=requested.number,
        page_size=requested.size,
    )
    return msgspec.convert(await log_service.run(query), GroupList)
