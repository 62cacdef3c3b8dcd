"""The way in by which batches call: the edge of this node, like any client, so that nothing of a request is done otherwise."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING

import httpx2

from penstock.batches.edge_messages import Call, Reply
from penstock.batches.redaction import Hidden
from penstock.errors import AbsentError, AwayError, LostError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from penstock.settings import Settings

CONNECT_SECONDS = 5.0
# What a config does beyond one attempt takes longer than one may.
PATIENCE = 3
GOOD, ABSENT, UNAVAILABLE = 200, 404, 503
MOST_OF_REFUSAL = 64 * 1024
HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


class Edge:
    """Asks the edge; opens nothing before the first question."""

    def __init__(self, settings: Settings) -> None:
        """Know the address."""
        self.hidden = Hidden()
        # It would say each line of a batch at the level at which the gateway speaks of itself.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        host = HERE.get(settings.address, settings.address)
        name = f"[{host}]" if ":" in host else host
        seconds = settings.upstream.request_timeout_ms / 1000 * PATIENCE
        self._client = httpx2.AsyncClient(
            base_url=f"http://{name}:{settings.server.port}",
            timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=settings.batches.requests),
            trust_env=False,
            # It is no further than this machine, and speaks plain HTTP.
            verify=False,
        )

    def hiding(self, hidden: Hidden) -> Edge:
        """Give the same way in for who asks with these credentials: answers are without them."""
        own = copy(self)
        own.hidden = hidden
        return own

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()

    async def ask(self, call: Call, most: int) -> Reply:
        """Send a request, and give the whole answer, up to a length."""
        async with self._asked(call) as answer:
            body = await self._body(answer, most)
        headers = answer.headers
        reply = Reply(answer.status_code, headers.get("x-request-id", ""), headers.get("retry-after", ""), body)
        if reply.status == UNAVAILABLE and _error(reply.body).get("code") == "draining":
            message = "the edge is about to end"
            raise AwayError(message)
        return reply

    async def pieces(self, call: Call) -> AsyncIterator[bytes]:
        """Send a request, and give a good answer piece by piece."""
        async with self._asked(call) as answer:
            if answer.status_code != GOOD:
                said = _error(await self._body(answer, MOST_OF_REFUSAL)).get("message", "")
                message = f"{call.path} was answered with {answer.status_code} {said}".rstrip()
                raise (AbsentError if answer.status_code == ABSENT else LostError)(message)
            async for piece in answer.aiter_bytes():
                yield piece

    async def _body(self, answer: httpx2.Response, most: int) -> bytes:
        read = bytearray()
        async for piece in answer.aiter_bytes():
            read += piece
            if len(read) > most:
                message = f"the answer is longer than {most} bytes"
                raise LostError(message)
        return self.hidden.without(bytes(read))

    @asynccontextmanager
    async def _asked(self, call: Call) -> AsyncGenerator[httpx2.Response]:
        headers = {**call.headers, "content-type": call.kind} if call.kind else call.headers
        try:
            async with self._client.stream(call.method, call.path, headers=headers, content=call.body) as answer:
                yield answer
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            message = "the edge is not there"
            raise AwayError(message) from None
        except httpx2.HTTPError as error:
            message = f"no answer came: {type(error).__name__}"
            raise LostError(message) from None


def _error(body: bytes) -> dict[str, object]:
    try:
        return dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return {}
