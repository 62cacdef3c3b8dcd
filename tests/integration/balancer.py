"""Minimal TCP load balancer for tests. Distributes connections round-robin over gateways whose `/ready` returns 200."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

import uvloop

PROBE_INTERVAL_SECONDS = 0.05


class LoadBalancer:
    """Runs in its own thread; gateways can be added at any time."""

    def __init__(self) -> None:
        self.url = ""
        self.refused = 0
        self._ready: dict[int, bool] = {}
        self._turn = 0
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    def add_gateway(self, port: int) -> None:
        """Adds a gateway, which gets connections once it is ready."""
        self._loop.call_soon_threadsafe(self._ready.setdefault, port, False)

    def is_ready(self, port: int) -> bool:
        return self._ready.get(port, False)

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listens.set()
        while not self._ended.is_set():
            for port in list(self._ready):
                self._ready[port] = await self._probe(port)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), PROBE_INTERVAL_SECONDS)
        server.close()

    async def _probe(self, port: int) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /ready HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n")
            response = await asyncio.wait_for(reader.read(64), 2)
            writer.close()
        except (OSError, TimeoutError):
            return False
        return b" 200 " in response

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = [port for port, is_ready in self._ready.items() if is_ready]
        self._turn += 1
        try:
            port = ports[self._turn % len(ports)]
            onward, back = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, ZeroDivisionError):
            self.refused += 1
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(onward, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
