"""The way in by which batches call: the edge of this node, like any client, so that nothing of a request is done otherwise."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING

import httpx2

from penstock.batches.edge_messages import EdgeRequest, EdgeResponse
from penstock.batches.redaction import SecretRedactor
from penstock.errors import EdgeUnavailableError, IncompleteResponseError, ResultsNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from penstock.settings import Settings

CONNECT_TIMEOUT_SECONDS = 5.0
# What a config does beyond one attempt takes longer than one may.
TIMEOUT_FACTOR = 3
GOOD, ABSENT, UNAVAILABLE = 200, 404, 503
MAX_ERROR_BODY_BYTES = 64 * 1024
LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


class EdgeClient:
    """Asks the edge; opens nothing before the first question."""

    def __init__(self, settings: Settings) -> None:
        """Know the address."""
        self.hidden = SecretRedactor()
        # It would say each line of a batch at the level at which the gateway speaks of itself.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        host = LOOPBACK_ADDRESSES.get(settings.bind_address, settings.bind_address)
        name = f"[{host}]" if ":" in host else host
        seconds = settings.upstream.request_timeout_ms / 1000 * TIMEOUT_FACTOR
        self._client = httpx2.AsyncClient(
            base_url=f"http://{name}:{settings.server.port}",
            timeout=httpx2.Timeout(seconds, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=settings.batches.requests),
            trust_env=False,
            # It is no further than this machine, and speaks plain HTTP.
            verify=False,
        )

    def with_redactor(self, hidden: SecretRedactor) -> EdgeClient:
        """Give the same way in for who asks with these credentials: answers are without them."""
        own = copy(self)
        own.hidden = hidden
        return own

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()

    async def send_request(self, call: EdgeRequest, most: int) -> EdgeResponse:
        """Send a request, and give the whole answer, up to a length."""
        async with self._open_stream(call) as answer:
            body = await self._read_body(answer, most)
        headers = answer.headers
        reply = EdgeResponse(answer.status_code, headers.get("x-request-id", ""), headers.get("retry-after", ""), body)
        if reply.status == UNAVAILABLE and _parse_error(reply.body).get("code") == "draining":
            message = "the edge is about to end"
            raise EdgeUnavailableError(message)
        return reply

    async def stream_body(self, call: EdgeRequest) -> AsyncIterator[bytes]:
        """Send a request, and give a good answer piece by piece."""
        async with self._open_stream(call) as answer:
            if answer.status_code != GOOD:
                said = _parse_error(await self._read_body(answer, MAX_ERROR_BODY_BYTES)).get("message", "")
                message = f"{call.path} was answered with {answer.status_code} {said}".rstrip()
                raise (ResultsNotFoundError if answer.status_code == ABSENT else IncompleteResponseError)(message)
            async for piece in answer.aiter_bytes():
                yield piece

    async def _read_body(self, answer: httpx2.Response, most: int) -> bytes:
        read = bytearray()
        async for piece in answer.aiter_bytes():
            read += piece
            if len(read) > most:
                message = f"the answer is longer than {most} bytes"
                raise IncompleteResponseError(message)
        return self.hidden.redact(bytes(read))

    @asynccontextmanager
    async def _open_stream(self, call: EdgeRequest) -> AsyncGenerator[httpx2.Response]:
        headers = {**call.headers, "content-type": call.content_type} if call.content_type else call.headers
        try:
            async with self._client.stream(call.method, call.path, headers=headers, content=call.body) as answer:
                yield answer
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            message = "the edge is not there"
            raise EdgeUnavailableError(message) from None
        except httpx2.HTTPError as error:
            message = f"no answer came: {type(error).__name__}"
            raise IncompleteResponseError(message) from None


def _parse_error(body: bytes) -> dict[str, object]:
    try:
        return dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return {}
