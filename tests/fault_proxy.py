"""TCP proxy in front of a real server that cuts requests off, or forwards them slowly."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

READ_BYTES = 1024


class FaultProxy:
    """Forwards connections to one server. The faults apply to what clients send."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self.url = ""
        # Number of bytes after which both sides of a connection are closed; `None` for never.
        self.cut_after_bytes: int | None = None
        # Pause after each KiB.
        self.pause_seconds = 0.0
        self.cut_count = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(*self._address)
        try:
            await asyncio.gather(self._send(reader, back), _copy(onward, writer))
        finally:
            writer.close()
            back.close()

    async def _send(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        sent = 0
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                sent += len(data)
                server.write(data)
                await server.drain()
                if self.cut_after_bytes is not None and sent > self.cut_after_bytes:
                    self.cut_count += 1
                    # The server sees the end of the connection in the middle of the request.
                    break
                await asyncio.sleep(self.pause_seconds)
        server.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(READ_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def run_fault_proxy(url: str) -> AsyncGenerator[FaultProxy]:
    """Runs a proxy in front of the server at this URL."""
    proxy = FaultProxy(url)
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
