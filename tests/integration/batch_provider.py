"""Fake provider with the batch APIs of OpenAI and Anthropic. A test decides when batches end and with which status."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.processes import wait_for


class RecordingServer:
    """HTTP server that records the method and path of each request."""

    def __init__(self, responses: type[BaseHTTPRequestHandler]) -> None:
        self.received_requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (responses,), {"provider": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def count_requests(self, method: str, path: str) -> int:
        with self.lock:
            return sum(item == (method, path) for item in self.received_requests)


class FakeBatchProvider(RecordingServer):
    """Stores uploaded files and batches; `finish_batches` ends all batches."""

    def __init__(self) -> None:
        super().__init__(_RequestHandler)
        self.url += "/v1"
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.credentials: set[str] = set()
        # Number of requests, from the next one on, that are rejected with 429.
        self.busy = 0
        # If true, rejects every request with 401 and echoes its credential in the message.
        self.echoes = False
        self.why = "it did not please"
        # While set, requests that create a batch get no response.
        self.mute = threading.Event()

    def finish_batches(self, status: str = "completed", good: int = 1_000) -> None:
        """Ends every batch; the first `good` lines succeed and the others fail."""
        with self.lock:
            for batch in self.batches.values():
                lines = batch["lines"]
                batch.update(status=status, good=lines[:good], rest=lines[good:])


class _RequestHandler(BaseHTTPRequestHandler):
    provider: FakeBatchProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the access log."""

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) == length:
            self._respond(body)

    def _respond(self, body: bytes) -> None:
        with self.provider.lock:
            path = self.path.removeprefix("/v1")
            self.provider.received_requests.append((self.command, path))
            self.provider.credentials.add(self.headers.get("x-api-key") or self.headers.get("authorization", ""))
            status, response = self._rejection() or self._list_batches(path) or self._route(path, body)
        if self.provider.mute.is_set() and (self.command, path) == ("POST", "/batches"):
            self.close_connection = True
            wait_for("the end of who asks", lambda: not self.provider.mute.is_set() or None)
            return
        content = response if isinstance(response, bytes) else json.dumps(response).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _rejection(self) -> tuple[int, Any] | None:
        if self.provider.echoes:
            displayed = self.headers.get("x-api-key") or self.headers.get("authorization", "")
            return 401, {"error": {"message": f"Incorrect API key provided: {displayed}"}}
        if not self.provider.busy:
            return None
        self.provider.busy -= 1
        return 429, {"error": {"message": "later", "type": "rate_limit_error"}}

    def _list_batches(self, path: str) -> tuple[int, Any] | None:
        if not path.startswith("/batches?"):
            return None
        listed = [{"id": "other", "metadata": None}]
        listed += [{"id": name, "metadata": batch["made"]["metadata"]} for name, batch in self.provider.batches.items()]
        return 200, {"object": "list", "data": listed, "has_more": False}

    def _route(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        if path == "/files":
            content = body.split(b"\r\n\r\n")[-1].rpartition(b"\r\n--")[0]
            there.files["file-in"] = content
            return 200, {"id": "file-in", "object": "file"}
        if path == "/batches":
            created = json.loads(body)
            lines = [json.loads(line) for line in there.files[created["input_file_id"]].splitlines()]
            there.batches["b-1"] = {"made": created, "lines": lines, "status": "in_progress", "good": [], "rest": []}
            return 200, {"id": "b-1", "status": "validating"}
        if path == "/messages/batches":
            lines = json.loads(body)["requests"]
            there.batches["m-1"] = {"lines": lines, "status": "in_progress", "good": [], "rest": []}
            return 200, {"id": "m-1", "processing_status": "in_progress"}
        if matched := re.fullmatch(r"/(messages/)?batches/(b-1|m-1)(/cancel|/results)?", path):
            batch = there.batches[matched[2]]
            if matched[3] == "/cancel":
                batch.update(status="cancelled", good=batch["lines"][:1], rest=[])
            batch["why"] = there.why
            return 200, _anthropic_results(batch) if matched[3] == "/results" else (
                _anthropic_batch if matched[1] else _openai_batch
            )(batch)
        if matched := re.fullmatch(r"/files/(good|rest|file-in)/content", path):
            content = there.files.get(matched[1])
            return 200, content or b"".join(
                _openai_output_line(line, matched[1]) for line in there.batches["b-1"][matched[1]]
            )
        return 404, {"error": {"message": f"nothing at {path}"}}


def _openai_batch(batch: dict[str, Any]) -> dict[str, Any]:
    counts = {"total": len(batch["lines"]), "completed": len(batch["good"]), "failed": len(batch["rest"])}
    return {
        "id": "b-1",
        "status": batch["status"],
        "output_file_id": "good" if batch["good"] else None,
        "error_file_id": "rest" if batch["rest"] else None,
        "request_counts": counts,
        "errors": {"data": [{"message": batch["why"]}]} if batch["status"] == "failed" else None,
    }


def _openai_output_line(line: dict[str, Any], which: str) -> bytes:
    text = "to " + line["body"]["messages"][0]["content"] if "messages" in line["body"] else ""
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    body = {"object": "chat.completion", "model": line["body"]["model"], "choices": choices}
    status = 200 if which == "good" else 400
    response = {"status_code": status, "request_id": f"req-{line['custom_id']}", "body": body}
    return json.dumps({"id": "x", "custom_id": line["custom_id"], "response": response, "error": None}).encode() + b"\n"


def _anthropic_batch(batch: dict[str, Any]) -> dict[str, Any]:
    counts = {"processing": 0, "succeeded": len(batch["good"]), "errored": len(batch["rest"])}
    canceled = len(batch["lines"]) - len(batch["good"]) if batch["status"] == "cancelled" else 0
    over = batch["status"] in {"completed", "cancelled"}
    return {
        "id": "m-1",
        "processing_status": "ended" if over else "in_progress",
        "request_counts": {**counts, "canceled": canceled, "expired": 0},
    }


def _anthropic_results(batch: dict[str, Any]) -> bytes:
    rows = []
    # Results are not in the order of the input.
    for line in reversed(batch["good"]):
        text = f"to {line['params']['messages'][0]['content'][0]['text']}"
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": line["params"]["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 2},
        }
        rows.append({"custom_id": line["custom_id"], "result": {"type": "succeeded", "message": message}})
    for line in batch["rest"]:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": "req_1"}
        rows.append({"custom_id": line["custom_id"], "result": {"type": "errored", "error": error}})
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
