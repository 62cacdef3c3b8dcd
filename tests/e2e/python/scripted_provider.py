"""Stub provider with scripted responses by method and path. It records the requests that it receives."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from tests.integration.batch_provider import RecordingServer

if TYPE_CHECKING:
    import threading


class ScriptedResponse(NamedTuple):
    """Response that the stub provider sends."""

    body: bytes
    content_type: str = "application/json"
    barrier: threading.Barrier | None = None
    """It waits until as many ask as this says."""


def json_response(response: object, together: threading.Barrier | None = None) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(response).encode(), barrier=together)


def sse_response(*content: dict[str, Any]) -> ScriptedResponse:
    """Returns an event stream as OpenAI, Anthropic and Google send it. An event with a `type` also gets it as its SSE
    event name.
    """
    heads = [f"event: {item['type']}\n" if "type" in item else "" for item in content]
    text = "".join(f"{head}data: {json.dumps(item)}\n\n" for head, item in zip(heads, content, strict=True))
    return ScriptedResponse(text.encode(), "text/event-stream")


class ScriptedProvider(RecordingServer):
    """Sends the scripted responses of a path one after the other, and repeats the last one."""

    def __init__(self) -> None:
        super().__init__(_RequestHandler)
        self.answers: dict[tuple[str, str], list[ScriptedResponse]] = {}
        self.sent: list[Any] = []

    def set_responses(self, method: str, path: str, *responses: ScriptedResponse) -> None:
        with self.lock:
            self.answers[method, path] = list(responses)
            self.sent.clear()

    def find_responses(self, method: str, path: str) -> list[ScriptedResponse]:
        """Returns the responses for a path. The request's path may have an API version in front of the scripted one."""
        items = (
            remaining
            for (expected_method, end), remaining in self.answers.items()
            if expected_method == method and path.endswith(end)
        )
        return next(items, [])


class _RequestHandler(BaseHTTPRequestHandler):
    provider: ScriptedProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the request log of `BaseHTTPRequestHandler`."""

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = unquote(self.path.partition("?")[0])
        with self.provider.lock:
            self.provider.received_requests.append((self.command, path))
            if "json" in self.headers.get("content-type", ""):
                self.provider.sent.append(json.loads(body or b"null"))
            remaining = self.provider.find_responses(self.command, path)
            actual = remaining.pop(0) if len(remaining) > 1 else (remaining or [None])[0]
        if actual and actual.barrier:
            actual.barrier.wait(timeout=10)
        status, response = (
            (200, actual) if actual else (404, json_response({"error": {"message": f"nothing at {path}"}}))
        )
        self.send_response(status)
        self.send_header("content-type", response.content_type)
        self.send_header("content-length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)
