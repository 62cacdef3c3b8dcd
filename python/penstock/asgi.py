"""ASGI application of the edge. Granian calls it; it passes every request to the engine without processing it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import process
from penstock.engine import Engine
from penstock.settings.engine_json import encode_engine_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.engine import WebSocketHandle
    from penstock.settings import Settings

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


# Time that open WebSockets have at shutdown to send their last messages.
CLOSE_GRACE_SECONDS = 0.3
STARTED_AFTER_SECONDS = 0.05
# Message types that end a WebSocket: no message follows them.
FINAL_MESSAGE_TYPES = ("websocket.close", "websocket.http.response.body")


class TrafficCounters(msgspec.Struct):
    """Engine counters that show how many requests and stream chunks were forwarded."""

    durations: list[int]
    """Number of completed requests in each bucket of durations."""
    stream_chunks: int


class EdgeApp:
    """ASGI application whose requests are handled by the engine's own threads."""

    def __init__(self, engine: Engine, *, intercept: bool = True) -> None:
        """Takes an engine that is not started yet. Without `intercept`, an asyncio task passes each request to the
        engine.
        """
        self._engine = engine
        self._intercept = intercept
        self._open_websockets = 0
        self._on_started: Callable[[], object] | None = None

    def call_when_started(self, report: Callable[[], object]) -> None:
        """Calls a function once the server accepts connections."""
        self._on_started = report

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handles what the engine does not intercept: the lifespan, WebSockets, and requests that do not reach
        `Engine.intercept_call`.
        """
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._handle_http(scope, receive)
        elif scope["type"] == "websocket":
            await self._handle_websocket(scope, receive, send)

    async def _handle_http(self, scope: dict[str, Any], receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        response_ready = asyncio.Event()
        self._engine.handle_request(scope, receive, lambda: loop.call_soon_threadsafe(response_ready.set))
        await response_ready.wait()

    async def _handle_websocket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Relays WebSocket messages between the server and the engine, which processes them."""
        loop = asyncio.get_running_loop()
        message_ready, buffer_ready = asyncio.Event(), asyncio.Event()
        websocket = self._engine.open_websocket(
            scope,
            lambda: loop.call_soon_threadsafe(message_ready.set),
            lambda: loop.call_soon_threadsafe(buffer_ready.set),
        )
        # The first message is `websocket.connect`, which carries no data.
        await receive()
        self._open_websockets += 1
        sender_task = loop.create_task(_send_messages(websocket, send, message_ready))
        receiver_task = loop.create_task(_receive_messages(websocket, receive, buffer_ready))
        try:
            await asyncio.wait([sender_task, receiver_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open_websockets -= 1
            websocket.close()
            # Both tasks end before the final message is sent. The server does not close the connection while a task
            # still waits for messages.
            receiver_task.cancel()
            sender_task.cancel()
            ended = await asyncio.gather(sender_task, receiver_task, return_exceptions=True)
        if isinstance(last := ended[0], dict):
            await send(last)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._start_engine(asyncio.get_running_loop())
        await send({"type": "lifespan.startup.complete"})
        if self._on_started:
            # The server begins to accept connections shortly after this message, without reporting it.
            asyncio.get_running_loop().call_later(STARTED_AFTER_SECONDS, self._on_started)
        await receive()
        self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _start_engine(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engine.start(loop, process.lower_priority)
        process.SchedPolicySwitcher(self._count_traffic).run_periodically(loop)
        if self._intercept:
            # Granian passes a request to the event loop only through this method; see docs/architecture.md.
            loop.call_soon_threadsafe = self._engine.intercept_call

    def _count_traffic(self) -> int:
        counters = msgspec.json.decode(self._engine.metrics(), type=TrafficCounters)
        return sum(counters.durations) + counters.stream_chunks

    def drain(self, seconds: float) -> float:
        """Makes `/ready` report that the gateway stops, and ends open streams after this many seconds.

        Returns the seconds needed to send the close messages of open WebSockets, because the server would not wait
        for them.
        """
        self._engine.drain(seconds)
        return CLOSE_GRACE_SECONDS if self._open_websockets else 0.0


async def _send_messages(websocket: WebSocketHandle, send: Send, message_ready: asyncio.Event) -> dict[str, Any]:
    """Sends the engine's messages to the WebSocket client; returns the final message unsent."""
    while True:
        await message_ready.wait()
        message_ready.clear()
        for message in websocket.receive() or ():
            if message["type"] in FINAL_MESSAGE_TYPES:
                return message
            await send(message)


async def _receive_messages(websocket: WebSocketHandle, receive: Receive, buffer_ready: asyncio.Event) -> None:
    """Passes the client's messages to the engine; waits while the engine's buffer is full."""
    while (message := await receive())["type"] == "websocket.receive":
        payload = message.get("text")
        payload = message.get("bytes", b"") if payload is None else payload
        while not websocket.send(payload):
            await buffer_ready.wait()
            buffer_ready.clear()
    websocket.close(message.get("code"), message.get("reason"))


def create_edge_app(settings: Settings, worker: int, snapshot: bytes) -> EdgeApp:
    """Builds the ASGI application of one edge worker and applies the latest published snapshot."""
    engine = Engine(encode_engine_settings(settings, worker))
    engine.apply(snapshot)
    return EdgeApp(engine)
