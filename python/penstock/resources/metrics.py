"""Prometheus metrics of this node: those of the edge workers, of the control process and of the log worker."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency

from penstock.authorization import allow_anyone
from penstock.errors import ForbiddenError, NotFoundError, UnauthorisedError
from penstock.kit.client_ip import is_local_client
from penstock.metrics_report import PROMETHEUS_CONTENT_TYPE, TOKEN_MESSAGE, MetricsReport, has_bearer_token
from penstock.settings import Settings


@get(
    "/",
    guards=[allow_anyone],
    media_type=PROMETHEUS_CONTENT_TYPE,
    summary="Metrics",
    tags=["Service"],
)
async def get_metrics(
    request: Request[Any, Any, Any],
    settings: NamedDependency[Settings],
    metrics_report: NamedDependency[MetricsReport],
) -> str:
    """Returns all metrics in the Prometheus text format; 404 unless `metrics.enabled` is set. If `metrics.token` is set,
    requests must send it as bearer token. Otherwise only clients on the same machine get them; others get 403.
    """
    if not settings.metrics.enabled:
        message = "metrics are off; hint: set ENABLE_PROMETHEUS=true"
        raise NotFoundError(message)
    if settings.metrics.token:
        if not has_bearer_token(request.headers.get("authorization", ""), settings.metrics.token):
            raise UnauthorisedError(TOKEN_MESSAGE)
    elif not is_local_client(request):
        message = "metrics are for clients on this machine; hint: set metrics.token, or metrics.listen"
        raise ForbiddenError(message)
    return await metrics_report.render()


routes = [get_metrics]
