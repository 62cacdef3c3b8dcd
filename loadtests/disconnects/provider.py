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

TAG_HEADER = "x-leaving"
"""Header of a request with the phase in which its client disconnects, and its number."""

EVENT_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE_FIELD = b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}'
TEXT_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"water"}}],' + USAGE_FIELD + b"}\n\n"
TEXT_CHUNK = b"%x\r\n%s\r\n" % (len(TEXT_EVENT), TEXT_EVENT)
PARTIAL_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
COMPLETE_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
SEND_INTERVAL_SECONDS = 0.2
# Values of a real network. With the segment size of loopback, the kernel would buffer megabytes for each flood.
SEGMENT, SEND_BUFFER = 1400, 16 * 1024
LONG_EVENT = TEXT_EVENT.replace(b"water", b"water " * 2000)
LONG_CHUNK = b"%x\r\n%s\r\n" % (len(LONG_EVENT), LONG_EVENT)

PHASE_RESPONSES = {
    "uploading": b"",
    "waiting": b"",
    "begun": EVENT_STREAM_HEAD,
    "flowing": EVENT_STREAM_HEAD + TEXT_CHUNK,
    "paused": EVENT_STREAM_HEAD + TEXT_CHUNK,
    "pushed back": EVENT_STREAM_HEAD + TEXT_CHUNK,
    "whole": PARTIAL_RESPONSE,
}
PHASES = tuple(PHASE_RESPONSES)


class Provider:
    """Provider that records arrivals and disconnects by the tag of the request."""

    def __init__(self) -> None:
        self.url = ""
        self.arrived: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.flooded_chunks = 0
        """Number of times that chunks were added to a flood."""

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[None]:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = await asyncio.get_running_loop().create_server(lambda: GatewayConnection(self), sock=listener)
        try:
            yield
        finally:
            server.close()


class GatewayConnection(asyncio.Protocol):
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
        head, actual, body = bytes(self._read).partition(b"\r\n\r\n")
        if not actual:
            return
        tagged = re.search(rb"(?i)\r\n" + TAG_HEADER.encode() + rb": ([\w ]+)-(\w+)", head)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if not tagged:
            if len(body) >= int(length[1] if length else 0):
                self._read.clear()
                self.transport.write(COMPLETE_RESPONSE)
            return
        phase, number = (part.decode() for part in tagged.groups())
        self._tag = f"{phase}-{number}"
        self._provider.arrived[self._tag] = time.perf_counter()
        self.transport.write(PHASE_RESPONSES[phase])
        if phase == "flowing":
            self._send_periodically()
        elif phase == "pushed back":
            self._send_until_blocked()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._send_until_blocked()

    def eof_received(self) -> None:
        self._record_disconnect()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - parameter of asyncio
        self._record_disconnect()

    def _record_disconnect(self) -> None:
        if self._tag:
            self._provider.left.setdefault(self._tag, time.perf_counter())

    def _send_periodically(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TEXT_CHUNK)
            asyncio.get_running_loop().call_later(SEND_INTERVAL_SECONDS, self._send_periodically)

    def _send_until_blocked(self) -> None:
        while self._is_writable and not self.transport.is_closing():
            self.transport.write(LONG_CHUNK)
            self._provider.flooded_chunks += 1
