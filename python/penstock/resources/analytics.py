"""Analytics of the request logs: graphs over time, a summary of the cache, and groups. Costs are in cents."""

# Annotations are not postponed: each graph has a route whose response type is a local variable, which the framework
# must evaluate.
# pyright: reportInvalidTypeForm=false, reportUnknownParameterType=false
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from msgspec import UNSET, Meta

from penstock.authorization import require_scopes
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.filters import RequestedFilters, read_log_filters
from penstock.log_api.service import LogService
from penstock.log_api.visibility import open_log_access
from penstock.logs.query import GraphQuery, Rollup, SummaryQuery, UnpricedQuery
from penstock.resources._analytics_graphs import GRAPHS, CacheSummaryResponse, Graph, Partial, graph_response
from penstock.resources._log_groups import GROUP_PATHS, group_route

TAGS = ["Analytics"]
SCOPE_GUARD = require_scopes("analytics.view")
TimeZoneParam = Annotated[
    str,
    QueryParameter(
        max_length=64,
        description="time zone in which days and weeks begin, such as `Europe/Berlin`; default UTC",
    ),
]
RollupParam = Annotated[
    Rollup | None,
    QueryParameter(
        description="width of the time buckets, from a minute to a week; default: the narrowest one with at most 200 buckets; at most 1,500 are allowed"
    ),
]
FILTERS = {"filters": Provide(read_log_filters, sync_to_thread=False)}


def _graph_route(graph: Graph, path: str) -> Any:  # noqa: ANN401 - a route handler of the framework
    response_type = graph_response(graph)

    @get(
        f"/graphs/{path}",
        guards=[SCOPE_GUARD],
        summary=f"Graph: {graph.title}",
        description=graph.description,
        tags=TAGS,
        dependencies=FILTERS,
        # Alternative paths are for single clients, so the OpenAPI document omits them.
        include_in_schema=path == graph.name,
    )
    async def show_graph(
        context: NamedDependency[RequestContext],
        filters: NamedDependency[RequestedFilters],
        log_service: NamedDependency[LogService],
        time_zone: TimeZoneParam = "UTC",
        rollup: RollupParam = None,
    ) -> response_type:
        """Returns one graph."""
        access = await open_log_access(context, filters.workspace, "figures", only_default=True)
        within = filters.with_default_range().within(access)
        query = GraphQuery(filters=within, graph=graph.name, time_zone=time_zone, rollup=rollup)
        return msgspec.convert(await log_service.run(query), response_type)

    return show_graph


@get(
    "/summary/cache",
    guards=[SCOPE_GUARD],
    summary="Summary of the cache",
    tags=TAGS,
    dependencies=FILTERS,
)
async def show_cache_summary(
    context: NamedDependency[RequestContext],
    filters: NamedDependency[RequestedFilters],
    log_service: NamedDependency[LogService],
) -> CacheSummaryResponse:
    """Returns the number of cache hits, and how much faster they were than other requests."""
    access = await open_log_access(context, filters.workspace, "figures", only_default=True)
    query = SummaryQuery(filters=filters.with_default_range().within(access))
    return msgspec.convert(await log_service.run(query), CacheSummaryResponse)


class UnpricedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model that was used, and for which no price is known."""

    ai_org: Annotated[str | None, Meta(description="provider, such as `openai`")]
    ai_model: Annotated[str | None, Meta(description="model")]
    requests: Annotated[int, Meta(description="number of requests without a price")]
    total_units: Annotated[int, Meta(description="their tokens")]
    first_seen: Annotated[str, Meta(description="time of the first of them, ISO 8601")]
    last_seen: Annotated[str, Meta(description="time of the last of them, ISO 8601")]


class UnpricedModels(msgspec.Struct, frozen=True, kw_only=True):
    """Models without a price."""

    total: Annotated[int, Meta(description="number of models; at most 1,000")]
    requests: Annotated[int, Meta(description="number of requests without a price")]
    data: Annotated[list[UnpricedModel], Meta(description="models, the most used first")]
    object: Annotated[str, Meta(description="`list`")] = "list"
    partial: Partial = UNSET


@get("/unpriced", guards=[SCOPE_GUARD], summary="List models without a price", tags=TAGS, dependencies=FILTERS)
async def list_unpriced_models(
    context: NamedDependency[RequestContext],
    filters: NamedDependency[RequestedFilters],
    log_service: NamedDependency[LogService],
) -> UnpricedModels:
    """Lists the models that used tokens or images without a known price. Their cost is null, and no sum includes it.
    After a price was added, re-rating computes their costs.
    """
    access = await open_log_access(context, filters.workspace, "figures", only_default=True)
    query = UnpricedQuery(filters=filters.with_default_range().within(access))
    return msgspec.convert(await log_service.run(query), UnpricedModels)


routes: list[Any] = [
    *(_graph_route(graph, path) for graph in GRAPHS for path in (graph.name, *graph.aliases)),
    show_cache_summary,
    list_unpriced_models,
    *(group_route(path, SCOPE_GUARD, TAGS) for path in GROUP_PATHS),
]
