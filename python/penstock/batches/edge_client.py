"""HTTP client for the edge of this node. Batches send their requests like any other client, so every request is handled
the same way.
"""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from copy import copy
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2

from penstock.batches.edge_messages import EdgeRequest, EdgeResponse
from penstock.batches.redaction import SecretRedactor
from penstock.errors import EdgeUnavailableError, IncompleteResponseError, ResultsNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from penstock.settings import Settings

CONNECT_TIMEOUT_SECONDS = 5.0
# Timeout of a request, as a multiple of `upstream.request_timeout_ms`: retries and fallbacks take longer than one
# attempt.
TIMEOUT_FACTOR = 3
MAX_ERROR_BODY_BYTES = 64 * 1024
LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound, only replaced


class EdgeClient:
    """Sends requests to the edge. The first request opens the connection."""

    def __init__(self, settings: Settings) -> None:
        """Creates the HTTP client; connects with the first request."""
        self.hidden = SecretRedactor()
        # At the gateway's own log level, httpx2 would log the request of every batch line.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        host = LOOPBACK_ADDRESSES.get(settings.bind_address, settings.bind_address)
        name = f"[{host}]" if ":" in host else host
        seconds = settings.upstream.request_timeout_ms / 1000 * TIMEOUT_FACTOR
        self._client = httpx2.AsyncClient(
            base_url=f"{'https' if settings.server.has_tls else 'http'}://{name}:{settings.server.port}",
            timeout=httpx2.Timeout(seconds, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=settings.batches.concurrency),
            trust_env=False,
            # The edge runs on this machine. Its certificate is for another name, and may be replaced at any time.
            verify=False,
        )

    def with_redactor(self, hidden: SecretRedactor) -> EdgeClient:
        """Returns a client that uses the same connections, and removes the credentials of `hidden` from responses."""
        client = copy(self)
        client.hidden = hidden
        return client

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def send_request(self, call: EdgeRequest, maximum: int) -> EdgeResponse:
        """Sends a request and returns the complete response, whose body may have up to `maximum` bytes. Raises an
        `EdgeUnavailableError` if the edge is unreachable or shutting down.
        """
        async with self._open_stream(call) as response:
            body = await self._read_body(response, maximum)
        headers = response.headers
        reply = EdgeResponse(
            response.status_code, headers.get("x-request-id", ""), headers.get("retry-after", ""), body
        )
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE and _parse_error(reply.body).get("code") == "draining":
            message = "the edge is shutting down"
            raise EdgeUnavailableError(message)
        return reply

    async def stream_body(self, call: EdgeRequest) -> AsyncIterator[bytes]:
        """Sends a request and yields the body of a successful response in chunks. Raises an `IncompleteResponseError`
        for any status but 200.
        """
        async with self._open_stream(call) as response:
            if response.status_code != HTTPStatus.OK:
                detail = _parse_error(await self._read_body(response, MAX_ERROR_BODY_BYTES)).get("message", "")
                message = f"{call.path} returned status {response.status_code} {detail}".rstrip()
                raise (
                    ResultsNotFoundError if response.status_code == HTTPStatus.NOT_FOUND else IncompleteResponseError
                )(message)
            async for chunk in response.aiter_bytes():
                yield chunk

    async def _read_body(self, response: httpx2.Response, maximum: int) -> bytes:
        read = bytearray()
        async for chunk in response.aiter_bytes():
            read += chunk
            if len(read) > maximum:
                message = f"the response is longer than {maximum} bytes"
                raise IncompleteResponseError(message)
        return self.hidden.redact(bytes(read))

    @asynccontextmanager
    async def _open_stream(self, call: EdgeRequest) -> AsyncGenerator[httpx2.Response]:
        headers = {**call.headers, "content-type": call.content_type} if call.content_type else call.headers
        try:
            async with self._client.stream(call.method, call.path, headers=headers, content=call.body) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            message = "cannot connect to the edge"
            raise EdgeUnavailableError(message) from None
        except httpx2.HTTPError as error:
            message = f"no complete response: {type(error).__name__}"
            raise IncompleteResponseError(message) from None


def _parse_error(body: bytes) -> dict[str, object]:
    try:
        return dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return {}
