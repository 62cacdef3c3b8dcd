"""All metrics of this node in the Prometheus text format, and the check of the token that clients need to read them."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.logs.client import LogClient
    from penstock.metrics import MetricsStore
    from penstock.settings.secret import Secret

# Content type with the version of the text format. The charset is added to the response.
PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4"
TOKEN_MESSAGE = "metrics need the token of the setting metrics.token; send it as `Authorization: Bearer …`"  # noqa: S105 - a message


class MetricsReport:
    """Collects the metrics of the edge workers, of the control process and of the log worker."""

    def __init__(
        self, workers: MetricsStore, log_client: LogClient, *sources: Callable[[], Mapping[str, float]]
    ) -> None:
        """Stores the metrics that the edge workers push, the client of the log worker, and the control process's
        metrics by name.
        """
        self._workers = workers
        self._log_client = log_client
        self._sources = sources

    async def render(self) -> str:
        """Renders all metrics. Omits those of the log worker if it does not respond."""
        values = {name: value for source in self._sources for name, value in source().items()}
        values |= await self._log_client.get_metrics()
        requests = await self._log_client.get_request_metrics() if values.get("log_worker_up") else ""
        return self._workers.render(values) + requests


def has_bearer_token(authorization: str, token: Secret) -> bool:
    """Returns true if an `Authorization` header has this token."""
    scheme, _, sent = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), token.reveal().encode())
