"""ASGI test client. Sends requests to an application without a server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    App = Callable[..., Awaitable[None]]

# Limit for startup and for shutdown, in seconds; an application that takes longer hangs.
LIFESPAN_TIMEOUT_SECONDS = 30


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def send_request(
    app: App, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, query: str = ""
) -> Response:
    """Sends one request and collects the response."""
    sent: list[dict[str, Any]] = []
    request_body = [{"type": "http.request", "body": body, "more_body": False}]
    is_complete = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if request_body:
            return request_body.pop()
        # A client stays connected until it has the whole response.
        await is_complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            is_complete.set()

    await app(build_scope(method, path, body, headers, query), receive, send)
    responded = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Response(sent[0]["status"], responded, b"".join(part.get("body", b"") for part in sent[1:]))


def build_scope(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, query: str = ""
) -> dict[str, Any]:
    """Builds the scope of a request."""
    fields = {"host": "control", "content-length": str(len(body)), **(headers or {})}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        "client": ("", 0),
        "server": ("", 0),
        "state": {},
        "extensions": {},
    }


async def stream_request(
    app: App, path: str, headers: dict[str, str] | None = None, query: str = ""
) -> AsyncGenerator[bytes]:
    """Sends a GET request and yields the chunks of the response. The client disconnects when the caller stops."""
    remaining = asyncio.Event()
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive() -> dict[str, Any]:
        await remaining.wait()
        return {"type": "http.disconnect"}

    task = asyncio.ensure_future(app(build_scope("GET", path, b"", headers, query), receive, messages.put))
    try:
        head = await messages.get()
        assert head["status"] == 200, (head, await messages.get())
        while (part := await messages.get()).get("more_body"):
            yield part["body"]
        yield part.get("body", b"")
    finally:
        remaining.set()
        await asyncio.wait_for(task, LIFESPAN_TIMEOUT_SECONDS)


@asynccontextmanager
async def run_lifespan(app: App) -> AsyncIterator[None]:
    """Runs the application's lifespan around the body of the `with` block."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    reported: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    request = app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, events.get, reported.put)
    task = asyncio.ensure_future(request)
    try:
        await events.put({"type": "lifespan.startup"})
        await expect_lifespan_event(task, reported, "lifespan.startup.complete")
        yield
        await events.put({"type": "lifespan.shutdown"})
        await expect_lifespan_event(task, reported, "lifespan.shutdown.complete")
        await asyncio.wait_for(task, LIFESPAN_TIMEOUT_SECONDS)
    finally:
        task.cancel()


async def expect_lifespan_event(
    task: asyncio.Future[None], reported: asyncio.Queue[dict[str, Any]], expected: str
) -> None:
    """Waits until the application sends the wanted event. Raises the application's own error if it fails instead."""
    word = asyncio.ensure_future(reported.get())
    done, _ = await asyncio.wait({task, word}, timeout=LIFESPAN_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if word not in done:
        word.cancel()
        if task in done:
            task.result()
        raise AssertionError(f"the application {'ended' if task in done else 'waits'} without saying {expected}")
    if word.result()["type"] != expected:
        # The application is about to raise the cause.
        await asyncio.wait({task}, timeout=LIFESPAN_TIMEOUT_SECONDS)
        if task.done():
            task.result()
        raise AssertionError(word.result())
