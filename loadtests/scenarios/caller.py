"""Base class of the locust users: request bodies, headers, and reading of responses and streams."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from locust import HttpUser, between
from requests.exceptions import RequestException

from loadtests.options import HEADERS_VARIABLE

if TYPE_CHECKING:
    from locust.clients import ResponseContextManager

CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
DONE_MARKER = "[DONE]"
REQUEST_TIMEOUT_SECONDS = 30


@dataclass
class ResponseOutcome:
    """The received response, complete or not."""

    status: int
    headers: dict[str, str]
    text: str = ""
    events: list[str] = field(default_factory=list)
    is_broken: bool = False
    """True if the response stopped before its end."""

    def parse_json(self) -> dict[str, Any]:
        """Returns the body, or an empty dict if it is not a JSON object."""
        try:
            body = json.loads(self.text)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}


class GatewayUser(HttpUser):
    """A client with a gateway key that repeatedly sends a request, reads the response and pauses briefly."""

    abstract = True
    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        self.client.headers.update(json.loads(os.environ.get(HEADERS_VARIABLE, "{}")))

    def build_request(self, model: str, **more: object) -> dict[str, object]:
        """Returns the body of a chat request. Anthropic's API requires `max_tokens`; OpenAI's accepts it."""
        return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello?"}], **more}

    def read_response(self, response: ResponseContextManager) -> ResponseOutcome:
        outcome = self.new_outcome(response)
        # Without a connection, locust supplies its own response with status 0.
        outcome.text = response.text or ""
        return outcome

    def read_stream(self, response: ResponseContextManager) -> ResponseOutcome:
        """Reads events as they arrive. The duration of the complete stream counts as the response time."""
        started_at, outcome = time.perf_counter(), self.new_outcome(response)
        try:
            for line in response.iter_lines():
                if line.startswith(b"data:"):
                    outcome.events.append(line[5:].strip().decode())
                outcome.text += line.decode(errors="replace") + "\n"
        except RequestException:
            outcome.is_broken = True
        response.request_meta = {
            **response.request_meta,
            "response_time": response.request_meta["response_time"] + (time.perf_counter() - started_at) * 1000,
            "response_length": len(outcome.text),
        }
        return outcome

    def new_outcome(self, response: ResponseContextManager) -> ResponseOutcome:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return ResponseOutcome(response.status_code, headers, is_broken=response.status_code == 0)
