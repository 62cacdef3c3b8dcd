"""Client of the log worker, for the control process."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.logs import messages
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from penstock.logs.messages import ErrorMessage, QueryRequest
from penstock.logs.query import LogFilterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from penstock.logs.query import LogFilters, LogQuery

# Time that the client waits for a response, in addition to the time limit of the query itself.
EXTRA_SECONDS = 2.0
BODIES_TIMEOUT_SECONDS, METRICS_TIMEOUT_SECONDS = 20.0, 1.0
# Shorter than the time that Prometheus waits for all metrics.
REQUEST_METRICS_TIMEOUT_SECONDS = 5.0
# Maximum time without an event of a live tail. The log worker sends heartbeats at shorter intervals.
TAIL_SILENCE_SECONDS = 30.0
MAX_LINE_BYTES = 1024 * 1024


class LogStoreUnavailableError(LogEngineError):
    """The log worker does not respond, or it cannot reach the log store."""


class LogClient:
    """Sends queries to the log worker over its Unix socket."""

    def __init__(self, socket_path: str) -> None:
        """Stores the path of the socket, which is empty without a log worker. A connection is opened with the first
        request.
        """
        self._path = socket_path
        self._client: httpx2.AsyncClient | None = None

    async def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query. Raises `LogFilterError`, `QueryTooLargeError` or `LogStoreUnavailableError`."""
        body = msgspec.json.encode(QueryRequest(query, timeout_seconds))
        return msgspec.json.decode(await self._send("POST", messages.QUERY_PATH, timeout_seconds + EXTRA_SECONDS, body))

    async def get_bodies(
        self, record_id: str, organisation_id: str, workspace_id: str | None = None
    ) -> dict[str, bytes]:
        """Returns the stored bodies of a record by name; empty if none are stored, or not in this workspace."""
        owner = {"organisation_id": organisation_id, **({"workspace_id": workspace_id} if workspace_id else {})}
        path = f"{messages.BODIES_PATH.format(id=quote(record_id, safe=''))}?{urlencode(owner)}"
        content = await self._send("GET", path, BODIES_TIMEOUT_SECONDS)
        bodies_by_log = msgspec.json.decode(content, type=dict[str, dict[str, str]])
        return {
            name: body["text"].encode() if "text" in body else base64.b64decode(body["base64"])
            for name, body in bodies_by_log.items()
        }

    async def tail(self, filters: LogFilters) -> AsyncIterator[dict[str, Any]]:
        """Yields events until the caller stops: `{"log": {…}}`, `{"dropped": 3}` or `{"heartbeat": true}`."""
        content = msgspec.json.encode(filters)
        try:
            async with self._open_client().stream("POST", messages.TAIL_PATH, content=content) as response:
                if response.status_code >= messages.INVALID:
                    raise _make_error(response.status_code, await response.aread())
                async for line in _iter_lines(response):
                    yield msgspec.json.decode(line)
        except _http_errors() as error:
            raise _make_unavailable(error) from None

    async def get_metrics(self) -> dict[str, float]:
        """Returns the metrics of the log worker. If it does not respond, returns only `log_worker_up` with the
        value 0.
        """
        if not self._path:
            return {}
        try:
            content = await self._send("GET", messages.METRICS_PATH, METRICS_TIMEOUT_SECONDS)
        except LogEngineError:
            return {"log_worker_up": 0}
        return msgspec.json.decode(content)

    async def get_request_metrics(self) -> str:
        """Returns the request metrics in the Prometheus text format; empty if the log worker does not respond."""
        if not self._path:
            return ""
        try:
            content = await self._send("GET", messages.REQUEST_METRICS_PATH, REQUEST_METRICS_TIMEOUT_SECONDS)
        except LogEngineError:
            return ""
        return content.decode()

    async def close(self) -> None:
        """Closes the connections."""
        if self._client:
            await self._client.aclose()
        self._client = None

    async def _send(self, method: str, path: str, seconds: float, body: bytes | None = None) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                response = await self._open_client().request(method, path, content=body, timeout=None)
        except _http_errors() as error:
            raise _make_unavailable(error) from None
        if response.status_code >= messages.INVALID:
            raise _make_error(response.status_code, response.content)
        return response.content

    def _open_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            import httpx2  # noqa: PLC0415 - imported late, as in `_http_errors`

            # At the gateway's own log level, httpx2 would log every query.
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                # A Unix socket has no certificate. Without `verify=False`, the client would load all certificate
                # authorities.
                transport=httpx2.AsyncHTTPTransport(
                    uds=self._path,
                    verify=False,
                    limits=httpx2.Limits(max_connections=None),
                ),
                base_url="http://logs",
                timeout=httpx2.Timeout(None, read=TAIL_SILENCE_SECONDS),
            )
        return self._client


async def _iter_lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yields the lines of a response. Lines end only at a line feed. The line iterator of httpx2 also splits at other
    characters, which JSON may contain.
    """
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise LogStoreUnavailableError(f"the log worker sent a line of more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            yield line


def _http_errors() -> tuple[type[Exception], ...]:
    import httpx2  # noqa: PLC0415 - it takes 0.1 s to load, and is needed only to read logs

    return (httpx2.HTTPError, TimeoutError, OSError)


def _make_unavailable(error: Exception) -> LogStoreUnavailableError:
    import httpx2  # noqa: PLC0415 - as above

    is_late = isinstance(error, TimeoutError | httpx2.TimeoutException)
    reason = "it did not answer in time" if is_late else str(error) or type(error).__name__
    return LogStoreUnavailableError(f"the log worker cannot be reached: {reason}")


def _make_error(status: int, content: bytes) -> Exception:
    try:
        message = msgspec.json.decode(content, type=ErrorMessage).message
    except msgspec.MsgspecError:
        message = f"the log worker answered with status {status}"
    kinds: dict[int, type[Exception]] = {messages.INVALID: LogFilterError, messages.TOO_LARGE: QueryTooLargeError}
    return kinds.get(status, LogStoreUnavailableError)(message)
