"""Stub of Google's and Cohere's own APIs, for requests that the gateway forwards. Supports resumable uploads, and
records the requests that it receives.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.integration.batch_provider import RecordingServer

# Host of the upload URLs that Google's API returns, whatever the host of the request.
UPLOAD_HOST = "https://generativelanguage.googleapis.com"
FILE = {"name": "files/f-1", "state": "ACTIVE"}
BATCH = {"name": "batches/b-1", "metadata": {"state": "BATCH_STATE_PENDING", "name": "batches/b-1"}}
RESPONSES: dict[tuple[str, str], Any] = {
    ("GET", "/files/f-1"): FILE,
    ("GET", "/files"): {"files": [FILE]},
    ("GET", "/batches/b-1"): BATCH,
    ("GET", "/batches"): {"operations": [BATCH]},
    ("POST", "/models/m:batchGenerateContent"): BATCH,
    ("POST", "/cachedContents"): {"name": "cachedContents/c-1"},
    ("POST", "/interactions"): {"id": "i-1", "status": "completed", "outputs": []},
    ("POST", "/tokenize"): {"tokens": [1, 2], "token_strings": ["a", "b"]},
    ("GET", "/datasets"): {"datasets": [{"id": "d-1"}]},
    ("GET", "/embed-jobs"): {"embed_jobs": []},
    ("POST", "/chat"): {"text": "hello", "generation_id": "g-1"},
}


class GoogleProvider(RecordingServer):
    """Serves `RESPONSES` below `/v1` and `/v1beta` only, and uploads of files."""

    def __init__(self) -> None:
        super().__init__(_RequestHandler)
        self.uploads: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    def paths(self) -> list[str]:
        """Returns method and path of the requests since the last call, and forgets them."""
        with self.lock:
            requests = [f"{method} {urlsplit(target).path}" for method, target, _ in self.requests]
            self.requests.clear()
        return requests


class _RequestHandler(BaseHTTPRequestHandler):
    provider: GoogleProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the request log of `BaseHTTPRequestHandler`."""

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_DELETE(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.provider.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.provider.requests.append((self.command, self.path, headers))
        path = urlsplit(self.path).path
        if path.startswith("/upload/"):
            self._continue_upload(path, body)
            return
        version, _, rest = path.removeprefix("/").partition("/")
        actual = {} if self.command == "DELETE" else RESPONSES.get((self.command, f"/{rest}"))
        known = actual is not None and version in {"v1", "v1beta"}
        self._send(
            200 if known else 404, actual if known else {"error": {"code": 404, "message": f"nothing at {path}"}}
        )

    def _continue_upload(self, path: str, body: bytes) -> None:
        command = self.headers.get("x-goog-upload-command", "")
        if command == "start":
            with self.provider.lock:
                upload_id = f"id-{len(self.provider.uploads)}"
                self.provider.uploads[upload_id] = b""
            url = f"{UPLOAD_HOST}{path}?upload_id={upload_id}&upload_protocol=resumable"
            self._send(200, {}, {"x-goog-upload-status": "active", "x-goog-upload-url": url})
            return
        (upload_id,) = parse_qs(urlsplit(self.path).query)["upload_id"]
        with self.provider.lock:
            self.provider.uploads[upload_id] += body
        is_final = "finalize" in command
        status = {"x-goog-upload-status": "final" if is_final else "active"}
        self._send(200, {"file": FILE} if is_final else {}, status)

    def _send(self, status: int, response: object, headers: dict[str, str] | None = None) -> None:
        sent = json.dumps(response).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)
