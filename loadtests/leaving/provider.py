"""Provider that keeps each request in the phase that its tag names, and records when its connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TAG = "x-leaving"
"""The header by which a caller says in which phase it will leave, and its number."""

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"water"}}],' + USAGE + b"}\n\n"
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
PART = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
FLOW_SECONDS = 0.2
# Values of a real network. With the segment size of loopback, the kernel would buffer megabytes for each flood.
SEGMENT, SEND_BUFFER = 1400, 16 * 1024
LONG_EVENT = EVENT.replace(b"water", b"water " * 2000)
FLOOD = b"%x\r\n%s\r\n" % (len(LONG_EVENT), LONG_EVENT)

BEGINNINGS = {
    "uploading": b"",
    "waiting": b"",
    "begun": EVENTS,
    "flowing": EVENTS + CHUNK,
    "paused": EVENTS + CHUNK,
    "pushed back": EVENTS + CHUNK,
    "whole": PART,
}
PHASES = tuple(BEGINNINGS)


class Provider:
    """Provider that records arrivals and disconnects by the tag of the request."""

    def __init__(self) -> None:
        self.url = ""
        self.arrived: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.poured = 0
        """How often something was added to a flood."""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = await asyncio.get_running_loop().create_server(lambda: Line(self), sock=listener)
        try:
            yield
        finally:
            server.close()


class Line(asyncio.Protocol):
    """One connection from the gateway."""

    transport: asyncio.Transport

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._read = bytearray()
        self._tag = ""
        self._is_writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._tag:
            return
        self._read += data
        head, found, body = bytes(self._read).partition(b"\r\n\r\n")
        if not found:
            return
        tagged = re.search(rb"(?i)\r\n" + TAG.encode() + rb": ([\w ]+)-(\w+)", head)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if not tagged:
            if len(body) >= int(length[1] if length else 0):
                self._read.clear()
                self.transport.write(WHOLE)
            return
        phase, number = (part.decode() for part in tagged.groups())
        self._tag = f"{phase}-{number}"
        self._provider.arrived[self._tag] = time.perf_counter()
        self.transport.write(BEGINNINGS[phase])
        if phase == "flowing":
            self._flow()
        elif phase == "pushed back":
            self._flood()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._flood()

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        self._leave()

    def _leave(self) -> None:
        if self._tag:
            self._provider.left.setdefault(self._tag, time.perf_counter())

    def _flow(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(CHUNK)
            asyncio.get_running_loop().call_later(FLOW_SECONDS, self._flow)

    def _flood(self) -> None:
        while self._is_writable and not self.transport.is_closing():
            self.transport.write(FLOOD)
            self._provider.poured += 1
