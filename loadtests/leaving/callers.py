"""Clients that disconnect: by FIN or RST of their connection, or by RST_STREAM of one stream among others."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import urllib.parse
from typing import TYPE_CHECKING, Protocol, cast

from loadtests.leaving.provider import SEGMENT, TAG
from tests.frames import ACK, PREFACE, SETTINGS, WINDOW_UPDATE, frame, request, reset

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAT = "/v1/chat/completions"
UPLOAD_BYTES = 3_000_000
SENT_BYTES = 50_000
"""A body that is announced to be large is forwarded from its first piece on."""
STREAMS = 100
"""What the gateway allows on one connection."""


class Caller(Protocol):
    """One request in progress."""

    def leave(self) -> None: ...

    def close(self) -> None: ...


class Way(Protocol):
    """Client that sends requests over one kind of connection and cancels them in one way."""

    async def call(self, phase: str, tag: str) -> Caller: ...


def question(phase: str) -> tuple[str, dict[str, str], bytes]:
    """Returns the path, the headers, and the part of the body that is sent."""
    if phase == "uploading":
        fields = {"content-type": "application/octet-stream", "content-length": str(UPLOAD_BYTES)}
        return "/v1/files", fields, b"x" * SENT_BYTES
    words = [{"role": "user", "content": "tell me about water and gates"}]
    body = json.dumps({"model": phase, "stream": phase != "whole", "messages": words}).encode()
    return CHAT, {"content-type": "application/json", "content-length": str(len(body))}, body


class OverHttp1:
    """Opens one connection for each request and ends it with FIN or RST."""

    def __init__(self, url: str, headers: Mapping[str, str], *, reset: bool) -> None:
        at = urllib.parse.urlsplit(url)
        self._address = (at.hostname or "", at.port or 80)
        self._headers, self._reset = headers, reset

    async def call(self, phase: str, tag: str) -> Caller:
        path, fields, body = question(phase)
        head = [f"POST {path} HTTP/1.1", "host: gateway.test"]
        head += [f"{name}: {value}" for name, value in {**self._headers, **fields, TAG: tag}.items()]
        end = socket.socket()
        end.setblocking(False)
        # Set before connecting, because the window size is negotiated during the handshake.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if phase == "pushed back" else 65536)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        await asyncio.get_running_loop().sock_connect(end, self._address)
        line = Line(end, reset=self._reset)
        await asyncio.get_running_loop().create_connection(lambda: line, sock=end)
        if phase == "pushed back":
            line.transport.pause_reading()
        line.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        return line


class Line(asyncio.Protocol):
    """A connection that discards its response."""

    transport: asyncio.Transport

    def __init__(self, end: socket.socket, *, reset: bool) -> None:
        self._end, self._reset = end, reset

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def leave(self) -> None:
        if self._reset:
            self._end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.transport.abort()


class OverHttp2:
    """Opens as many streams on a connection as are allowed. Each request is cancelled by RST_STREAM while the other
    streams continue.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        at = urllib.parse.urlsplit(url)
        self._address = (at.hostname or "", at.port or 80)
        self._headers = headers
        self._bundle: Bundle | None = None

    async def call(self, phase: str, tag: str) -> Caller:
        if self._bundle is None or self._bundle.is_full(phase):
            _, self._bundle = await asyncio.get_running_loop().create_connection(lambda: Bundle(phase), *self._address)
            await self._bundle.settled
        path, fields, body = question(phase)
        return self._bundle.open(path, {**self._headers, **fields, TAG: tag}, body, ends=phase != "uploading")


class Bundle(asyncio.Protocol):
    """A minimal HTTP/2 connection: it compresses no header fields and handles only SETTINGS frames."""

    transport: asyncio.Transport

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._read = bytearray()
        self._last = -1
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_full(self, phase: str) -> bool:
        # The first data of all streams must fit into the connection's initial window.
        most = 1 if phase == "uploading" else STREAMS
        return phase != self._phase or self._last + 2 >= 2 * most or self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Opens a large window for the connection, so that only the stream under backpressure runs out of window.
        window = struct.pack(">I", 1 << 30)
        self.transport.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, window))

    def data_received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 9:
            length = int.from_bytes(self._read[:3], "big")
            kind, flags = self._read[3], self._read[4]
            if len(self._read) < 9 + length:
                return
            del self._read[: 9 + length]
            if kind == SETTINGS and not flags & ACK:
                self.transport.write(frame(SETTINGS, ACK, 0))
                if not self.settled.done():
                    self.settled.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        if not self.settled.done():
            self.settled.set_exception(ConnectionError("connection closed before the SETTINGS frame arrived"))

    def open(self, path: str, headers: Mapping[str, str], body: bytes, *, ends: bool) -> Caller:
        self._last += 2
        self.transport.write(request(self._last, "POST", path, headers, body, ends=ends))
        return Stream(self, self._last)


class Stream:
    """One stream of a connection that has others."""

    def __init__(self, bundle: Bundle, number: int) -> None:
        self._bundle, self._number = bundle, number

    def leave(self) -> None:
        self._bundle.transport.write(reset(self._number))

    def close(self) -> None:
        self._bundle.transport.abort()
