"""What Granian calls at the edge: hands every request to the engine and decides nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import process
from penstock.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.settings import Settings

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


class Work(msgspec.Struct):
    """What the door reads of the engine's counters: how much was passed on."""

    durations: list[int]
    """How many requests ended, by how long they took."""
    pieces: int


class Door:
    """An ASGI application whose requests are answered by the engine's own threads."""

    def __init__(self, engine: Engine, *, intercept: bool = True) -> None:
        """Take an engine that was not started; without `intercept` every request comes through a task."""
        self._engine = engine
        self._intercept = intercept

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer what was not intercepted: the lifespan, and requests if Granian hands them over in another way."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._exchange(scope, receive)

    async def _exchange(self, scope: dict[str, Any], receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        self._engine.exchange(scope, receive, lambda: loop.call_soon_threadsafe(answered.set))
        await answered.wait()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._start(asyncio.get_running_loop())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engine.start(loop)
        process.Pace(self._work).keep(loop)
        if self._intercept:
            # Granian hands a request to the loop by this call and no other; see docs/architecture.md.
            loop.call_soon_threadsafe = self._engine.intercept

    def _work(self) -> int:
        work = msgspec.json.decode(self._engine.metrics(), type=Work)
        return sum(work.durations) + work.pieces

    def drain(self, seconds: float) -> None:
        """Say no on `/ready` from now on, and end what still streams after so many seconds."""
        self._engine.drain(seconds)


def create(settings: Settings, worker: int, snapshot: bytes) -> Door:
    """Build the door of one edge worker, with what was published so far."""
    engine = Engine(settings.engine_json(worker))
    engine.apply(snapshot)
    return Door(engine)
