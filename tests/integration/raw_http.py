"""Raw HTTP/1.1 client over one socket. It exposes every byte and repairs nothing."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
JSON_HEADERS = {"content-type": "application/json"}
# Headers of a request for the mock provider.
MOCK_HEADERS = {"x-gateway-provider": "mock", "authorization": "Bearer sk-provider", **JSON_HEADERS}
BODILESS_STATUSES = {204, 304}
VOLATILE_PATTERN = re.compile(rb'req_\d{16}|"created":\d+')


def strip_volatile_fields(body: bytes) -> bytes:
    """Removes the fields that the mock provider changes each time: the timestamp, and the request id in some errors."""
    return VOLATILE_PATTERN.sub(b"", body)


def chat_body(model: str = "mock", *, stream: bool = False, **more: object) -> bytes:
    """Returns a request body for chat or messages; `model` controls how the mock provider behaves."""
    words = [{"role": "user", "content": "tell me about water and gates"}]
    return json.dumps({"model": model, "max_tokens": 64, "messages": words, "stream": stream, **more}).encode()


def encode_request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Returns the bytes of a request. Adds a content-length if there is a body without framing of its own."""
    fields = {"host": "gateway.test", **(headers or {})}
    if body is not None and "transfer-encoding" not in fields:
        fields.setdefault("content-length", str(len(body)))
    head = "".join(
        [f"{method} {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"]
    )
    return head.encode("latin-1") + (body or b"")


def encode_chunks(*chunks: bytes) -> bytes:
    """Encodes the parts as a complete chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@dataclass
class Response:
    """A response and how its body ended: by `length`, by the last `chunk`, by `close`, or `broken` before its end."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    end_reason: str = ""

    def get_header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def stable_body(self) -> bytes:
        """The body without the fields that the mock provider changes each time."""
        return strip_volatile_fields(self.body)

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each without its blank line."""
        return [event for event in self.body.split(b"\n\n") if event.strip()]


@dataclass
class RawConnection:
    """One HTTP/1.1 connection over a plain socket."""

    url: str
    timeout: float = 60.0
    receive_buffer: int | None = None
    _buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        at = urllib.parse.urlsplit(self.url)
        self.socket = socket.socket()
        if self.receive_buffer:
            # Set before connecting, because the handshake fixes the receive window.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.socket.settimeout(self.timeout)
        try:
            self.socket.connect((at.hostname, at.port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes the connection with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = MOCK_HEADERS,
        *,
        method: str | None = None,
    ) -> Response:
        """Sends a request and reads its response."""
        method = method or ("GET" if body is None else "POST")
        self.send(encode_request(method, path, headers, body))
        return self.read_response(bodiless=method == "HEAD")

    def read_head(self) -> Response:
        """Reads the status line and headers of a response; skips interim 1xx responses except 101."""
        while True:
            lines = self._read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            fields = [line.split(": ", 1) for line in lines[1:] if line]
            response = Response(int(lines[0].split(" ")[1]), [(name.lower(), value) for name, value in fields])
            if response.status >= 200 or response.status == 101:
                return response

    def read_response(self, *, bodiless: bool = False) -> Response:
        """Reads a response, or as much of it as arrives; the status is 0 if nothing arrives."""
        try:
            response = self.read_head()
        except ConnectionError:
            return Response(0, [], end_reason="broken")
        if bodiless or response.status in BODILESS_STATUSES:
            response.end_reason = "length"
            return response
        response.body = b"".join(self.iter_body(response))
        return response

    def iter_body(self, response: Response) -> Iterator[bytes]:
        """Yields the body of a response as it arrives, after `read_head`."""
        response.end_reason = "broken"
        try:
            if response.get_header("transfer-encoding"):
                yield from self._iter_chunks()
                response.end_reason = "chunk"
            elif length := response.get_header("content-length"):
                yield from self._iter_exactly(int(length))
                response.end_reason = "length"
            else:
                while self._buffer or self._receive():
                    yield self._pop_buffer()
                response.end_reason = "close"
        except ConnectionError:
            return

    def read_events(self, response: Response, count: int) -> bytes:
        """Reads the body until `count` events have arrived."""
        received = b""
        for chunk in self.iter_body(response):
            received += chunk
            if received.count(b"\n\n") >= count:
                return received
        raise ConnectionError(f"only {received!r}")

    def is_closed(self) -> bool:
        """Returns true once the peer closes the connection; discards bytes that still arrive."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def _iter_chunks(self) -> Iterator[bytes]:
        while size := int(self._read_until(b"\r\n").split(b";")[0], 16):
            yield from self._iter_exactly(size)
            self._read_until(b"\r\n")
        while self._read_until(b"\r\n") != b"\r\n":
            pass

    def _iter_exactly(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._buffer and not self._receive():
                raise ConnectionError("the connection closed before the end of the response of the response")
            chunk = self._pop_buffer(count)
            count -= len(chunk)
            yield chunk

    def _read_until(self, mark: bytes) -> bytes:
        start = 0
        while (at := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark))
            if not self._receive():
                raise ConnectionError(f"the connection closed after {bytes(self._buffer[-200:])!r}")
        return self._pop_buffer(at + len(mark))

    def _pop_buffer(self, maximum: int | None = None) -> bytes:
        used = bytes(self._buffer[:maximum])
        del self._buffer[:maximum]
        return used

    def _receive(self) -> bytes:
        chunk = self.socket.recv(65536)
        self._buffer += chunk
        return chunk


def send_raw_request(
    url: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = MOCK_HEADERS,
    *,
    method: str | None = None,
) -> Response:
    """Sends one request over a new connection and returns its response."""
    with RawConnection(url) as connection:
        return connection.request(path, body, headers, method=method)
