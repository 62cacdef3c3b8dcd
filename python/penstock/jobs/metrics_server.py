"""Server of `metrics.listen`: a port that serves only the metrics, so that only Prometheus needs to reach it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.metrics_report import PROMETHEUS_CONTENT_TYPE, TOKEN_MESSAGE, has_bearer_token

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from penstock.metrics_report import MetricsReport
    from penstock.settings.secret import Secret

SHUTDOWN_SECONDS = 0.5


class MetricsServer:
    """Serves the metrics on a socket of its own."""

    def __init__(
        self, listener: socket.socket, paths: Iterable[str], report: MetricsReport, token: Secret | None
    ) -> None:
        """Stores a listening socket. The socket stays open when the server ends."""
        self._listener = listener
        self._paths = tuple(paths)
        self._report = report
        self._token = token

    async def run(self) -> None:
        """Serves until it is cancelled."""
        app = web.Application()
        for path in self._paths:
            app.router.add_get(path, self._handle_metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, self._listener.dup()).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _handle_metrics(self, request: web.Request) -> web.Response:
        if self._token and not has_bearer_token(request.headers.get("authorization", ""), self._token):
            raise web.HTTPUnauthorized(text=f"{TOKEN_MESSAGE}\n", headers={"www-authenticate": "Bearer"})
        headers = {"content-type": f"{PROMETHEUS_CONTENT_TYPE}; charset=utf-8"}
        return web.Response(body=(await self._report.render()).encode(), headers=headers)
