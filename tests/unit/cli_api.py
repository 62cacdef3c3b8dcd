"""A management API for tests of the command line: a server that returns fixed responses and remembers requests."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from click.testing import CliRunner, Result

from penstock.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class PretendedApi:
    """Calls `respond` with method, path and body of each request. It returns JSON, or the bytes of a stream."""

    def __init__(self, respond: Callable[[str, str, Any], Any]) -> None:
        self.respond = respond
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.url = ""

    @property
    def query(self) -> dict[str, list[str]]:
        """Query parameters of the last request."""
        return parse_qs(urlsplit(self.paths[-1]).query)

    def run(self, *words: str) -> Result:
        """Runs a command against this API."""
        return CliRunner().invoke(main, words, env={"PENSTOCK_URL": self.url, "PENSTOCK_API_KEY": "k"})

    def answer(self, method: str, path: str, body: Any) -> bytes:
        self.paths.append(path)
        self.bodies.append(body)
        actual = self.respond(method, urlsplit(path).path, body)
        return actual if isinstance(actual, bytes) else json.dumps(actual).encode()


@contextmanager
def pretended_api(respond: Callable[[str, str, Any], Any]) -> Iterator[PretendedApi]:
    """Runs the API on a free port."""
    api = PretendedApi(respond)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            content = api.answer(self.command, self.path, body)
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Writes nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
