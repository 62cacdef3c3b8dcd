"""Server whose responses are faults: fixed bytes, or none at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

BUSY_RESPONSE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def run_faulty_server(response: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Accepts connections and answers each request with these bytes; none means that it never answers."""
    requests: list[bytes] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            if response:
                writer.write(response)
                await writer.drain()
            else:
                await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
