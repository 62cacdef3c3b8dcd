"""A provider that answers what it was told to answer, by method and path, and keeps what it was sent."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from tests.integration.batch_provider import Listening

if TYPE_CHECKING:
    import threading


class Answer(NamedTuple):
    """What comes back."""

    body: bytes
    kind: str = "application/json"
    together: threading.Barrier | None = None
    """It waits until as many ask as this says."""


def whole(answer: object, together: threading.Barrier | None = None) -> Answer:
    return Answer(json.dumps(answer).encode(), together=together)


def events(*said: dict[str, Any]) -> Answer:
    """A stream as OpenAI, Anthropic and Google have them; what has a type says it twice."""
    heads = [f"event: {one['type']}\n" if "type" in one else "" for one in said]
    text = "".join(f"{head}data: {json.dumps(one)}\n\n" for head, one in zip(heads, said, strict=True))
    return Answer(text.encode(), "text/event-stream")


class AnsweringProvider(Listening):
    """Of several answers to one question each is given once, and the last for ever."""

    def __init__(self) -> None:
        super().__init__(_Answers)
        self.answers: dict[tuple[str, str], list[Answer]] = {}
        self.sent: list[Any] = []

    def answer(self, method: str, path: str, *answers: Answer) -> None:
        with self.lock:
            self.answers[method, path] = list(answers)
            self.sent.clear()

    def find(self, method: str, path: str) -> list[Answer]:
        """Whoever asks may have put the version of the API before the path."""
        found = (left for (its, end), left in self.answers.items() if its == method and path.endswith(end))
        return next(found, [])


class _Answers(BaseHTTPRequestHandler):
    provider: AnsweringProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = unquote(self.path.partition("?")[0])
        with self.provider.lock:
            self.provider.asked.append((self.command, path))
            if "json" in self.headers.get("content-type", ""):
                self.provider.sent.append(json.loads(body or b"null"))
            left = self.provider.find(self.command, path)
            found = left.pop(0) if len(left) > 1 else (left or [None])[0]
        if found and found.together:
            found.together.wait(timeout=10)
        status, answer = (200, found) if found else (404, whole({"error": {"message": f"nothing at {path}"}}))
        self.send_response(status)
        self.send_header("content-type", answer.kind)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
