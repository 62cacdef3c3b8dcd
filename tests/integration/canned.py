"""Provider that sends given bytes, for responses that no HTTP server library would send."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class CannedProvider:
    """Reads each request, sends the bytes with a pause after each chunk, then closes the connection."""

    def __init__(self, *chunks: bytes, pause: float = 0.0) -> None:
        self.chunks, self.pause = chunks, pause
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers that select this provider; the gateway must trust 127.0.0.1."""
        return {"x-gateway-provider": "openai", "x-gateway-custom-host": self.url, "authorization": "Bearer sk-canned"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread that waits in `accept`, which `close` alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self._respond(connection)

    def _respond(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        read = b""
        while b"\r\n\r\n" not in read:
            chunk = connection.recv(65536)
            if not chunk:
                return
            read += chunk
        head, _, body = read.partition(b"\r\n\r\n")
        self.heads.append(head)
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(65536)
        for chunk in self.chunks:
            connection.sendall(chunk)
            time.sleep(self.pause)
        # Sends FIN and not RST, so that all sent bytes arrive.
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            connection.settimeout(2)
            connection.recv(1)
