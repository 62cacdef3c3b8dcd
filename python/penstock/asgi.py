"""What Granian calls at the edge: hands every request to the engine and decides nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import process
from penstock.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.engine import WebSocketHandle
    from penstock.settings import Settings

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


# Seconds in which the last messages leave.
CLOSE_GRACE_SECONDS = 0.3
# After these nothing more is for the caller of a WebSocket.
FINAL_MESSAGE_TYPES = ("websocket.close", "websocket.http.response.body")


class TrafficCounters(msgspec.Struct):
    """What the door reads of the engine's counters: how much was passed on."""

    durations: list[int]
    """How many requests ended, by how long they took."""
    pieces: int


class EdgeApp:
    """An ASGI application whose requests are answered by the engine's own threads."""

    def __init__(self, engine: Engine, *, intercept: bool = True) -> None:
        """Take an engine that was not started; without `intercept` every request comes through a task."""
        self._engine = engine
        self._intercept = intercept
        self._talks = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer what was not intercepted: the lifespan, and requests if Granian hands them over in another way."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._handle_http(scope, receive)
        elif scope["type"] == "websocket":
            await self._handle_websocket(scope, receive, send)

    async def _handle_http(self, scope: dict[str, Any], receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        self._engine.handle_request(scope, receive, lambda: loop.call_soon_threadsafe(answered.set))
        await answered.wait()

    async def _handle_websocket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Carry messages between the server and the engine, which says what becomes of them."""
        loop = asyncio.get_running_loop()
        there, room = asyncio.Event(), asyncio.Event()
        talk = self._engine.open_websocket(
            scope, lambda: loop.call_soon_threadsafe(there.set), lambda: loop.call_soon_threadsafe(room.set)
        )
        # It only says that somebody asks.
        await receive()
        self._talks += 1
        telling = loop.create_task(_send_messages(talk, send, there))
        hearing = loop.create_task(_receive_messages(talk, receive, room))
        try:
            await asyncio.wait([telling, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._talks -= 1
            talk.close()
            # Before the last word: the server closes nothing while somebody listens.
            hearing.cancel()
            telling.cancel()
            ended = await asyncio.gather(telling, hearing, return_exceptions=True)
        if isinstance(last := ended[0], dict):
            await send(last)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._start_engine(asyncio.get_running_loop())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _start_engine(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engine.start(loop, process.lower_priority)
        process.SchedPolicySwitcher(self._count_traffic).run_periodically(loop)
        if self._intercept:
            # Granian hands a request to the loop by this call and no other; see docs/architecture.md.
            loop.call_soon_threadsafe = self._engine.intercept_call

    def _count_traffic(self) -> int:
        work = msgspec.json.decode(self._engine.metrics(), type=TrafficCounters)
        return sum(work.durations) + work.pieces

    def drain(self, seconds: float) -> float:
        """Say no on `/ready` from now on, and end what still streams after so many seconds.

        Give the time that it takes to say goodbye to those with a WebSocket: the server, told to end, would not wait for them.
        """
        self._engine.drain(seconds)
        return CLOSE_GRACE_SECONDS if self._talks else 0.0


async def _send_messages(talk: WebSocketHandle, send: Send, there: asyncio.Event) -> dict[str, Any]:
    """Pass on what is for the caller, and give back the last of it."""
    while True:
        await there.wait()
        there.clear()
        for message in talk.receive() or ():
            if message["type"] in FINAL_MESSAGE_TYPES:
                return message
            await send(message)


async def _receive_messages(talk: WebSocketHandle, receive: Receive, room: asyncio.Event) -> None:
    """Pass on what the caller says, no faster than it is taken."""
    while (message := await receive())["type"] == "websocket.receive":
        said = message.get("text")
        said = message.get("bytes", b"") if said is None else said
        while not talk.send(said):
            await room.wait()
            room.clear()
    talk.close(message.get("code"), message.get("reason"))


def create_edge_app(settings: Settings, worker: int, snapshot: bytes) -> EdgeApp:
    """Build the door of one edge worker, with what was published so far."""
    engine = Engine(settings.engine_settings_json(worker))
    engine.apply(snapshot)
    return EdgeApp(engine)
