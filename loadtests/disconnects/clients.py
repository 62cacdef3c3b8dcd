"""Clients that disconnect: by FIN or RST of their connection, or by RST_STREAM of one stream among others."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import urllib.parse
from typing import TYPE_CHECKING, Protocol, cast

from loadtests.disconnects.provider import SEGMENT, TAG_HEADER
from tests.frames import ACK, PREFACE, SETTINGS, WINDOW_UPDATE, encode_frame, request_frames, reset_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAT_PATH = "/v1/chat/completions"
UPLOAD_BYTES = 3_000_000
SENT_UPLOAD_BYTES = 50_000
"""Part of the upload that is sent. The gateway forwards a body of this announced length from its first chunk on."""
MAX_STREAMS_PER_CONNECTION = 100
"""Maximum number of concurrent streams that the gateway allows on one connection."""


class ActiveRequest(Protocol):
    """One request in progress."""

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class DisconnectingClient(Protocol):
    """Client that sends requests over one kind of connection and cancels them in one way."""

    async def start_request(self, phase: str, tag: str) -> ActiveRequest: ...


def build_request(phase: str) -> tuple[str, dict[str, str], bytes]:
    """Returns the path, the headers, and the part of the body that is sent."""
    if phase == "uploading":
        fields = {"content-type": "application/octet-stream", "content-length": str(UPLOAD_BYTES)}
        return "/v1/files", fields, b"x" * SENT_UPLOAD_BYTES
    messages = [{"role": "user", "content": "tell me about water and gates"}]
    body = json.dumps({"model": phase, "stream": phase != "whole", "messages": messages}).encode()
    return CHAT_PATH, {"content-type": "application/json", "content-length": str(len(body))}, body


class Http1Client:
    """Opens one connection for each request and ends it with FIN or RST."""

    def __init__(self, url: str, headers: Mapping[str, str], *, reset: bool) -> None:
        at = urllib.parse.urlsplit(url)
        self._address = (at.hostname or "", at.port or 80)
        self._headers, self._reset = headers, reset

    async def start_request(self, phase: str, tag: str) -> ActiveRequest:
        path, fields, body = build_request(phase)
        head = [f"POST {path} HTTP/1.1", "host: gateway.test"]
        head += [f"{name}: {value}" for name, value in {**self._headers, **fields, TAG_HEADER: tag}.items()]
        end = socket.socket()
        end.setblocking(False)
        # Set before connecting, because the window size is negotiated during the handshake.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if phase == "pushed back" else 65536)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        await asyncio.get_running_loop().sock_connect(end, self._address)
        line = Http1Connection(end, reset=self._reset)
        await asyncio.get_running_loop().create_connection(lambda: line, sock=end)
        if phase == "pushed back":
            line.transport.pause_reading()
        line.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        return line


class Http1Connection(asyncio.Protocol):
    """A connection that discards its response."""

    transport: asyncio.Transport

    def __init__(self, end: socket.socket, *, reset: bool) -> None:
        self._end, self._reset = end, reset

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def cancel(self) -> None:
        if self._reset:
            self._end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.transport.abort()


class Http2Client:
    """Opens as many streams on a connection as are allowed. Each request is cancelled by RST_STREAM while the other
    streams continue.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        at = urllib.parse.urlsplit(url)
        self._address = (at.hostname or "", at.port or 80)
        self._headers = headers
        self._bundle: Http2Connection | None = None

    async def start_request(self, phase: str, tag: str) -> ActiveRequest:
        if self._bundle is None or self._bundle.is_full(phase):
            _, self._bundle = await asyncio.get_running_loop().create_connection(
                lambda: Http2Connection(phase), *self._address
            )
            await self._bundle.settled
        path, fields, body = build_request(phase)
        return self._bundle.open_stream(
            path, {**self._headers, **fields, TAG_HEADER: tag}, body, ends=phase != "uploading"
        )


class Http2Connection(asyncio.Protocol):
    """A minimal HTTP/2 connection: it compresses no header fields and handles only SETTINGS frames."""

    transport: asyncio.Transport

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._read = bytearray()
        self._last = -1
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_full(self, phase: str) -> bool:
        # The first data of all streams must fit into the connection's initial window.
        maximum = 1 if phase == "uploading" else MAX_STREAMS_PER_CONNECTION
        return phase != self._phase or self._last + 2 >= 2 * maximum or self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Opens a large window for the connection, so that only the stream under backpressure runs out of window.
        window = struct.pack(">I", 1 << 30)
        self.transport.write(PREFACE + encode_frame(SETTINGS, 0, 0) + encode_frame(WINDOW_UPDATE, 0, 0, window))

    def data_received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 9:
            length = int.from_bytes(self._read[:3], "big")
            kind, flags = self._read[3], self._read[4]
            if len(self._read) < 9 + length:
                return
            del self._read[: 9 + length]
            if kind == SETTINGS and not flags & ACK:
                self.transport.write(encode_frame(SETTINGS, ACK, 0))
                if not self.settled.done():
                    self.settled.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - parameter of asyncio
        if not self.settled.done():
            self.settled.set_exception(ConnectionError("connection closed before the SETTINGS frame arrived"))

    def open_stream(self, path: str, headers: Mapping[str, str], body: bytes, *, ends: bool) -> ActiveRequest:
        self._last += 2
        self.transport.write(request_frames(self._last, "POST", path, headers, body, ends=ends))
        return Http2Stream(self, self._last)


class Http2Stream:
    """One stream of a connection that has others."""

    def __init__(self, bundle: Http2Connection, number: int) -> None:
        self._bundle, self._number = bundle, number

    def cancel(self) -> None:
        self._bundle.transport.write(reset_frame(self._number))

    def close(self) -> None:
        self._bundle.transport.abort()
