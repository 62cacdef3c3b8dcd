"""Messages between the control process and the log worker."""

from __future__ import annotations

import msgspec

from penstock.logs.query import LogQuery

QUERY_PATH, TAIL_PATH, METRICS_PATH = "/query", "/tail", "/metrics"
REQUEST_METRICS_PATH = "/metrics/requests"
BODIES_PATH = "/logs/{id}/bodies"
# Name of the only body in a response about bodies that cannot be decoded, or that were deleted.
DAMAGED, EXPIRED = LOST_BODIES = ("damaged", "expired")
INVALID, NOT_FOUND, TOO_LARGE, UNAVAILABLE = 400, 404, 422, 503


class QueryRequest(msgspec.Struct):
    """A query with its time limit."""

    query: LogQuery
    timeout_seconds: float


class ErrorMessage(msgspec.Struct):
    """Response to a failed request, with the reason."""

    message: str
