"""Shapes of the graphs of analytics: their names, paths, figures and units."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.logs.query import GraphName  # noqa: TC001 - msgspec reads the annotations at runtime

Number = int | float
Timestamp = Annotated[str, Meta(description="start of the time bucket, ISO 8601")]
Partial = Annotated[
    bool | UnsetType,
    Meta(description="true if the figures are of this node only, because each node has a log store of its own"),
]
Cents = Annotated[Number, Meta(description="cost in cents; may be fractional")]
AverageCents = Annotated[
    Number, Meta(description="average cost of a request in cents, of those whose cost is known; may be fractional")
]
Unpriced = Annotated[int, Meta(description="number of requests without a known price, whose cost is not included")]
Percent = Annotated[Number, Meta(description="share in percent")]


class Total(msgspec.Struct, frozen=True):
    """Sum of a count in the whole time range."""

    total: Annotated[Number, Meta(description="sum in the time range")]


class TotalPoint(msgspec.Struct, frozen=True):
    """Sum of a count in one time bucket."""

    timestamp: Timestamp
    total: Annotated[Number, Meta(description="sum in the time bucket")]


class CostSummary(msgspec.Struct, frozen=True):
    """Cost in the whole time range."""

    total: Cents
    avg: AverageCents
    unpriced: Unpriced


class CostPoint(msgspec.Struct, frozen=True):
    """Cost in one time bucket."""

    timestamp: Timestamp
    total: Cents
    avg: AverageCents
    unpriced: Unpriced


class TokenSummary(msgspec.Struct, frozen=True):
    """Tokens in the whole time range."""

    total: Annotated[Number, Meta(description="number of tokens")]
    avg: Annotated[Number, Meta(description="average number of tokens of a request")]


class TokenPoint(msgspec.Struct, frozen=True):
    """Tokens in one time bucket."""

    timestamp: Timestamp
    total: Annotated[Number, Meta(description="number of tokens")]
    avg: Annotated[Number, Meta(description="average number of tokens of a request")]


class LatencySummary(msgspec.Struct, frozen=True):
    """Response times in the whole time range."""

    avg: Annotated[Number, Meta(description="average response time in milliseconds")]
    p50: Annotated[Number, Meta(description="median response time in milliseconds")]
    p90: Annotated[Number, Meta(description="90th percentile of the response time in milliseconds")]
    p99: Annotated[Number, Meta(description="99th percentile of the response time in milliseconds")]


class LatencyPoint(msgspec.Struct, frozen=True):
    """Response times in one time bucket."""

    timestamp: Timestamp
    avg: Annotated[Number, Meta(description="average response time in milliseconds")]
    p50: Annotated[Number, Meta(description="median response time in milliseconds")]
    p90: Annotated[Number, Meta(description="90th percentile of the response time in milliseconds")]
    p99: Annotated[Number, Meta(description="99th percentile of the response time in milliseconds")]


class UserRequestsSummary(msgspec.Struct, frozen=True):
    """Requests and users in the whole time range. The user is the metadata field `_user`."""

    total: Annotated[Number, Meta(description="number of requests that name a user")]
    unique: Annotated[Number, Meta(description="number of different users")]
    avg: Annotated[Number, Meta(description="average number of requests of a user")]


class UserRequestsPoint(msgspec.Struct, frozen=True):
    """Requests per user in one time bucket."""

    timestamp: Timestamp
    avg: Annotated[Number, Meta(description="average number of requests of a user")]


class Rate(msgspec.Struct, frozen=True):
    """Share of the requests in the whole time range."""

    rate: Percent


class RatePoint(msgspec.Struct, frozen=True):
    """Share of the requests in one time bucket."""

    timestamp: Timestamp
    rate: Percent


class StatusCount(msgspec.Struct, frozen=True):
    """Number of responses with one status code."""

    response_status_code: Annotated[
        int, Meta(description="status code of the response; 0: no response, the worker was killed")
    ]
    count: Annotated[Number, Meta(description="number of responses with it")]


class StackPoint(msgspec.Struct, frozen=True):
    """Errors by status code in one time bucket."""

    timestamp: Timestamp
    stats: Annotated[list[StatusCount], Meta(description="number of errors by status code")]


class StatusCodesSummary(msgspec.Struct, frozen=True):
    """Errors in the whole time range."""

    total_errors: Annotated[Number, Meta(description="number of errors")]
    unique_error_codes: Annotated[Number, Meta(description="number of different status codes among them")]


class StatusCodePoint(msgspec.Struct, frozen=True):
    """Number of errors with one status code in the whole time range."""

    status_code: Annotated[int, Meta(description="status code of the response; 0: no response, the worker was killed")]
    count: Annotated[Number, Meta(description="number of errors with it")]


class RescuedSummary(msgspec.Struct, frozen=True):
    """Requests that succeeded only because of a retry or a fallback."""

    retry: Annotated[Number, Meta(description="number of requests that succeeded after a retry")]
    fallback: Annotated[Number, Meta(description="number of requests that succeeded at a fallback target")]


class RetryCount(msgspec.Struct, frozen=True):
    """Number of requests that succeeded with this retry."""

    retry_success_count: Annotated[int, Meta(description="number of the retry that succeeded, from 1")]
    count: Annotated[Number, Meta(description="number of requests")]


class RescuedPoint(msgspec.Struct, frozen=True):
    """Rescued requests in one time bucket."""

    timestamp: Timestamp
    retry: Annotated[list[RetryCount], Meta(description="requests that succeeded after a retry, by the retry's number")]
    fallback: Annotated[Number, Meta(description="number of requests that succeeded at a fallback target")]


class HitRateSummary(msgspec.Struct, frozen=True):
    """Cache hits in the whole time range."""

    total: Annotated[Number, Meta(description="number of cache hits")]
    rate: Percent


class HitRatePoint(msgspec.Struct, frozen=True):
    """Cache hits in one time bucket. Savings are the cost of the requests that were served from the cache."""

    timestamp: Timestamp
    simple_hits: Annotated[Number, Meta(description="number of hits with an identical request")]
    semantic_hits: Annotated[Number, Meta(description="number of hits with a similar request")]
    rate: Percent
    cumulative_simple_cache_savings: Annotated[
        Number, Meta(description="savings in cents by identical requests since the start of the time range")
    ]
    cumulative_semantic_cache_savings: Annotated[
        Number, Meta(description="savings in cents by similar requests since the start of the time range")
    ]


class Empty(msgspec.Struct, frozen=True):
    """No figure of the whole time range."""


class CacheLatencyPoint(msgspec.Struct, frozen=True):
    """Response time of cache hits in one time bucket."""

    timestamp: Timestamp
    avg: Annotated[Number, Meta(description="average response time of cache hits in milliseconds")]


class ScorePoint(msgspec.Struct, frozen=True):
    """Number of feedbacks with one value."""

    score: Annotated[int, Meta(description="value of the feedback, rounded, from -10 to 10")]
    total: Annotated[Number, Meta(description="number of feedbacks with it")]


class WeightedSummary(msgspec.Struct, frozen=True):
    """Feedback in the whole time range."""

    avg: Annotated[Number, Meta(description="average of value times weight")]


class WeightedPoint(msgspec.Struct, frozen=True):
    """Feedback in one time bucket."""

    timestamp: Timestamp
    avg: Annotated[Number, Meta(description="average of value times weight")]


class ModelFeedbackPoint(msgspec.Struct, frozen=True):
    """Feedback on one model."""

    ai_model: Annotated[str, Meta(description="model")]
    total: Annotated[Number, Meta(description="number of feedbacks")]
    avg_weighted_feedback: Annotated[Number, Meta(description="average of value times weight")]


class VerdictSummary(msgspec.Struct, frozen=True):
    """Results of guardrails in the whole time range."""

    total: Annotated[int, Meta(description="number of results; a request may have several")]
    passed: Annotated[int, Meta(description="results that passed")]
    failed: Annotated[int, Meta(description="results that failed without a denial")]
    denied: Annotated[int, Meta(description="results that denied a request or response")]
    would_deny: Annotated[int, Meta(description="results of dry runs that would have denied")]
    skipped: Annotated[int, Meta(description="results of guardrails that were skipped")]


class VerdictPoint(msgspec.Struct, frozen=True):
    """Results of guardrails in one time bucket."""

    timestamp: Timestamp
    total: Annotated[int, Meta(description="number of results; a request may have several")]
    passed: Annotated[int, Meta(description="results that passed")]
    failed: Annotated[int, Meta(description="results that failed without a denial")]
    denied: Annotated[int, Meta(description="results that denied a request or response")]
    would_deny: Annotated[int, Meta(description="results of dry runs that would have denied")]
    skipped: Annotated[int, Meta(description="results of guardrails that were skipped")]


class CacheSummary(msgspec.Struct, frozen=True):
    """Totals of the cache over the whole time range."""

    hits: Annotated[Number, Meta(description="number of cache hits")]
    avg_latency: Annotated[Number, Meta(description="average response time of cache hits in milliseconds")]
    total_requests: Annotated[Number, Meta(description="number of requests")]
    cache_speedup: Annotated[
        Number, Meta(description="by how much cache hits are faster than other requests, in percent")
    ]


class CacheSummaryResponse(msgspec.Struct, frozen=True):
    """Summary of the cache."""

    summary: Annotated[CacheSummary, Meta(description="figures of the whole time range")]
    object: Annotated[str, Meta(description="`analytics-summary`")] = "analytics-summary"
    partial: Partial = UNSET


class Graph(NamedTuple):
    """One graph: its name and path, what its figures are, and the paths by which other clients know it."""

    name: GraphName
    summary: type[msgspec.Struct]
    point: type[msgspec.Struct]
    title: str
    description: str
    aliases: tuple[str, ...] = ()


GRAPHS = (
    Graph("requests", Total, TotalPoint, "requests", "Number of requests."),
    Graph("cost", CostSummary, CostPoint, "cost", "Cost of the requests in cents, in total and on average."),
    Graph(
        "latency",
        LatencySummary,
        LatencyPoint,
        "latency",
        "Response time in milliseconds: average, median, 90th and 99th percentile. The figures are exact.",
    ),
    Graph("tokens", TokenSummary, TokenPoint, "tokens", "Number of tokens, in total and on average."),
    Graph("users", Total, TotalPoint, "users", "Number of different users: values of the metadata field `_user`."),
    Graph(
        "users/requests",
        UserRequestsSummary,
        UserRequestsPoint,
        "requests per user",
        "Number of requests per user. The user is the metadata field `_user`.",
        ("users-requests",),
    ),
    Graph("errors", Total, TotalPoint, "errors", "Number of failed requests."),
    Graph("errors/rate", Rate, RatePoint, "error rate", "Share of failed requests, in percent.", ("errors-rate",)),
    Graph(
        "errors/stacks",
        Total,
        StackPoint,
        "errors over time by status code",
        "Number of failed requests by status code.",
        ("errors-stack", "errors-stacks"),
    ),
    Graph(
        "errors/status-codes",
        StatusCodesSummary,
        StatusCodePoint,
        "errors by status code",
        "Number of failed requests by status code, in the whole time range.",
        ("errors-status-code", "errors-status-codes"),
    ),
    Graph(
        "requests/rescued",
        RescuedSummary,
        RescuedPoint,
        "rescued requests",
        "Number of requests that succeeded only because of a retry or a fallback.",
        ("requests-rescued",),
    ),
    Graph(
        "cache/hit-rate",
        HitRateSummary,
        HitRatePoint,
        "cache hit rate",
        "Cache hits, their share of the requests in percent, and what they saved in cents.",
        ("cache-hit-rate",),
    ),
    Graph(
        "cache/latency",
        Empty,
        CacheLatencyPoint,
        "cache latency",
        "Average response time of cache hits in milliseconds.",
        ("cache-latency",),
    ),
    Graph("feedbacks", Total, TotalPoint, "feedbacks", "Number of feedbacks."),
    Graph(
        "feedbacks/scores",
        Total,
        ScorePoint,
        "feedbacks by value",
        "Number of feedbacks by value, in the whole time range.",
        ("feedbacks/score",),
    ),
    Graph(
        "feedbacks/weighted",
        WeightedSummary,
        WeightedPoint,
        "weighted feedback",
        "Average feedback: value times weight.",
    ),
    Graph(
        "feedbacks/ai-models",
        Empty,
        ModelFeedbackPoint,
        "feedback by model",
        "Number of feedbacks and average feedback by model, in the whole time range.",
    ),
    Graph(
        "guardrails",
        VerdictSummary,
        VerdictPoint,
        "verdicts of guardrails",
        "Results of guardrails by verdict. The filter `guardrails` chooses some.",
    ),
    Graph(
        "guardrails/latency",
        LatencySummary,
        LatencyPoint,
        "latency of guardrails",
        "Time that a guardrail took with its checks, in milliseconds. The filter `guardrails` chooses some.",
    ),
)


def graph_response(graph: Graph) -> type[msgspec.Struct]:
    """Returns the response type of a graph."""
    words = "".join(part.capitalize() for part in graph.name.replace("/", "-").split("-"))
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("summary", Annotated[graph.summary, Meta(description="figures of the whole time range")]),
        ("data_points", Annotated[list[graph.point], Meta(description="figures in detail, in order")]),
        ("object", Annotated[str, Meta(description="`analytics-graph`")], "analytics-graph"),
        ("partial", Partial, UNSET),
    ]
    graph_type = msgspec.defstruct(f"{words}Graph", fields, frozen=True, module=__name__)
    graph_type.__doc__ = f"Graph of {graph.title}."
    return graph_type
