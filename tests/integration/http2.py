"""Minimal HTTP/2 client that exposes every frame. Uses one socket and no header compression."""

from __future__ import annotations

import collections
import socket
import urllib.parse
from typing import TYPE_CHECKING, Self

from tests.frames import (
    ACK,
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    encode_frame,
    request_frames,
    reset_frame,
)

INITIAL_WINDOW_SIZE_SETTING = 4

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Http2Connection:
    """HTTP/2 connection over one socket."""

    def __init__(self, url: str, timeout: float = 20.0, window: int | None = None) -> None:
        """Connects; `window` is the initial flow-control window of each stream in bytes."""
        credential = (
            b"" if window is None else INITIAL_WINDOW_SIZE_SETTING.to_bytes(2, "big") + window.to_bytes(4, "big")
        )
        at = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((at.hostname, at.port), timeout)
        self.socket.sendall(PREFACE + encode_frame(SETTINGS, 0, 0, credential) + encode_frame(SETTINGS, ACK, 0))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send_request(self, stream: int, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.socket.sendall(request_frames(stream, method, path, headers, body))

    def grant_window(self, stream: int, size: int) -> None:
        """Grants `size` more bytes to a stream, or to the connection if `stream` is 0."""
        self.socket.sendall(encode_frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big")))

    def reset_stream(self, stream: int) -> None:
        self.socket.sendall(reset_frame(stream))

    def read_frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yields kind, flags, stream id and payload of each frame until the connection ends."""
        while len(head := self._file.read(9)) == 9:
            payload = self._file.read(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], int.from_bytes(head[5:], "big"), payload

    def read_until_ended(self, stream: int) -> dict[int, bytes]:
        """Reads until `stream` has ended; returns the bodies of all streams that ended so far."""
        bodies: dict[int, bytes] = collections.defaultdict(bytes)
        ended = set()
        for kind, flags, number, payload in self.read_frames():
            if kind == DATA:
                bodies[number] += payload
            if kind in {DATA, HEADERS} and flags & END_STREAM:
                ended.add(number)
            if stream in ended:
                return {number: bodies[number] for number in ended}
        raise ConnectionError(f"only {dict(bodies)}")
