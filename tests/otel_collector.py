"""OpenTelemetry collector for tests: a real HTTP server on loopback that stores what it accepts."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from aiohttp import web

from tests.processes import free_port, wait_for

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping


class CollectorReply(NamedTuple):
    """How the collector answers one request."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = {}
    pause_seconds: float = 0.0


class OtelCollector:
    """Collector in a thread. It uses the prepared replies first, then accepts everything."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port = port or free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._tls = tls
        # Headers, paths and bodies of all requests in order. `accepted` has the parsed bodies of accepted requests
        # only.
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.received: list[bytes] = []
        self.accepted: list[dict[str, Any]] = []
        self.replies: list[CollectorReply] = []
        # Decides about each request once the prepared `replies` are used up.
        self.decide: Callable[[dict[str, Any]], CollectorReply] = lambda _payload: CollectorReply()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.open()

    def open(self) -> None:
        """Listens."""
        self._call(self._open())

    def close_port(self) -> None:
        """Closes the port and all connections."""
        self._call(self._shut())

    def stop(self) -> None:
        self.close_port()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All accepted spans in order."""
        return [span for payload in list(self.accepted) for span in spans_of(payload)]

    @property
    def record_ids(self) -> list[str]:
        """Ids of the records of the accepted spans in order."""
        return [values["penstock.id"] for span in self.spans if "penstock.id" in (values := attributes_of(span))]

    def wait_for_spans(self, count: int, seconds: float = 10) -> list[dict[str, Any]]:
        return wait_for(f"{count} spans", lambda: self.spans if len(self.spans) >= count else None, seconds)

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self._collect)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self._tls).start()

    async def _shut(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        self._runner = None
        # Cancels requests that still wait for a response.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self, request: web.Request) -> web.Response:
        # The server has decompressed the body.
        body = await request.read()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        self.received.append(body)
        payload = json.loads(body)
        reply = self.replies.pop(0) if self.replies else self.decide(payload)
        await asyncio.sleep(reply.pause_seconds)
        if reply.status < 300:
            self.accepted.append(payload)
        headers = {"content-type": "application/json", **reply.headers}
        return web.Response(status=reply.status, body=reply.body, headers=headers)


def spans_of(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the spans of an export request."""
    scopes = [scope for resource in payload["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


def attributes_of(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a span or a resource as plain values."""
    return {item["key"]: plain_value(item["value"]) for item in holder["attributes"]}


def plain_value(value: Mapping[str, Any]) -> Any:
    ((kind, body),) = value.items()
    if kind == "arrayValue":
        return [plain_value(item) for item in body["values"]]
    return int(body) if kind == "intValue" else body
