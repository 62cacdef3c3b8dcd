"""A client that shows every byte: raw HTTP/1.1 over one socket, with nothing repaired on the way."""

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

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
JSON = {"content-type": "application/json"}
# What a caller sends to reach the pretend provider.
MOCK = {"x-gateway-provider": "mock", "authorization": "Bearer sk-provider", **JSON}
BODILESS = {204, 304}
VOLATILE = re.compile(rb'req_\d{16}|"created":\d+')


def lasting(body: bytes) -> bytes:
    """Leave out what the pretend provider may say anew each time: the moment, and in some errors the request's id."""
    return VOLATILE.sub(b"", body)


def asked(model: str = "mock", *, stream: bool = False, **more: object) -> bytes:
    """A body for chat or messages; `model` says how the pretend provider behaves."""
    words = [{"role": "user", "content": "tell me about water and gates"}]
    return json.dumps({"model": model, "max_tokens": 64, "messages": words, "stream": stream, **more}).encode()


def request(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> bytes:
    """The bytes of a request; with a body and no framing of its own it gets a content-length."""
    fields = {"host": "gateway.test", **(headers or {})}
    if body is not None and "transfer-encoding" not in fields:
        fields.setdefault("content-length", str(len(body)))
    head = "".join(
        [f"{method} {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"]
    )
    return head.encode("latin-1") + (body or b"")


def chunked(*pieces: bytes) -> bytes:
    """Pieces as a complete chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@dataclass
class Answer:
    """An answer, and how it ended: by `length`, by the last `chunk`, by `close`, or `broken` before its end."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes = b""
    end: str = ""

    def get(self, name: str) -> str | None:
        return next((value for known, value in self.fields if known == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lasting(self) -> bytes:
        """The body without what the pretend provider may say anew each time."""
        return lasting(self.body)

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each without its blank line."""
        return [event for event in self.body.split(b"\n\n") if event.strip()]


@dataclass
class Wire:
    """One connection."""

    url: str
    timeout: float = 20.0
    receive_buffer: int | None = None
    _bytes: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        at = urllib.parse.urlsplit(self.url)
        self.socket = socket.socket()
        if self.receive_buffer:
            # Before connecting: the window is agreed on then.
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
        """Leave with RST in the place of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] = MOCK, *, method: str | None = None
    ) -> Answer:
        """Send a request and read its answer."""
        method = method or ("GET" if body is None else "POST")
        self.send(request(method, path, headers, body))
        return self.answer(bodiless=method == "HEAD")

    def head(self) -> Answer:
        """Read the head of an answer; what comes before it (1xx, but for 101, the last) is left out."""
        while True:
            lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            fields = [line.split(": ", 1) for line in lines[1:] if line]
            answer = Answer(int(lines[0].split(" ")[1]), [(name.lower(), value) for name, value in fields])
            if answer.status >= 200 or answer.status == 101:
                return answer

    def answer(self, *, bodiless: bool = False) -> Answer:
        """Read a whole answer, or as much of it as comes; where nothing comes its status is 0."""
        try:
            answer = self.head()
        except ConnectionError:
            return Answer(0, [], end="broken")
        if bodiless or answer.status in BODILESS:
            answer.end = "length"
            return answer
        answer.body = b"".join(self.pieces(answer))
        return answer

    def pieces(self, answer: Answer) -> Iterator[bytes]:
        """The body of an answer whose head was read, as it comes."""
        answer.end = "broken"
        try:
            if answer.get("transfer-encoding"):
                yield from self._chunks()
                answer.end = "chunk"
            elif length := answer.get("content-length"):
                yield from self._exactly(int(length))
                answer.end = "length"
            else:
                while self._bytes or self._more():
                    yield self._take()
                answer.end = "close"
        except ConnectionError:
            return

    def events(self, answer: Answer, count: int) -> bytes:
        """Read until that many events have come."""
        seen = b""
        for piece in self.pieces(answer):
            seen += piece
            if seen.count(b"\n\n") >= count:
                return seen
        raise ConnectionError(f"only {seen!r}")

    def is_closed(self) -> bool:
        """Whether the other side ends the connection; what it still sends is thrown away."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            yield from self._exactly(size)
            self._until(b"\r\n")
        while self._until(b"\r\n") != b"\r\n":
            pass

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._bytes and not self._more():
                raise ConnectionError("the connection closed before the end of the response of the response")
            piece = self._take(count)
            count -= len(piece)
            yield piece

    def _until(self, mark: bytes) -> bytes:
        start = 0
        while (at := self._bytes.find(mark, start)) < 0:
            start = max(0, len(self._bytes) - len(mark))
            if not self._more():
                raise ConnectionError(f"the connection closed after {bytes(self._bytes[-200:])!r}")
        return self._take(at + len(mark))

    def _take(self, most: int | None = None) -> bytes:
        taken = bytes(self._bytes[:most])
        del self._bytes[:most]
        return taken

    def _more(self) -> bytes:
        piece = self.socket.recv(65536)
        self._bytes += piece
        return piece


def ask(
    url: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = MOCK, *, method: str | None = None
) -> Answer:
    """One request over a connection of its own."""
    with Wire(url) as wire:
        return wire.ask(path, body, headers, method=method)
