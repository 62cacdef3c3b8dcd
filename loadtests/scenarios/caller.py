"""A caller of the gateway: its headers, its questions, and streams read to their end."""

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

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
DONE = "[DONE]"
SECONDS = 30


@dataclass
class Outcome:
    """What came back, however it ended."""

    status: int
    headers: dict[str, str]
    text: str = ""
    events: list[str] = field(default_factory=list)
    broken: bool = False
    """Whether the answer stopped before its end."""

    def json(self) -> dict[str, Any]:
        """The body, or nothing when it is no JSON object."""
        try:
            body = json.loads(self.text)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}


class Caller(HttpUser):
    """Somebody with a key who asks, reads, thinks for a moment and asks again."""

    abstract = True
    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        self.client.headers.update(json.loads(os.environ.get(HEADERS_VARIABLE, "{}")))

    def question(self, model: str, **more: object) -> dict[str, object]:
        """A chat's body; Anthropic's needs its limit, OpenAI's takes it too."""
        return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello?"}], **more}

    def whole(self, response: ResponseContextManager) -> Outcome:
        outcome = self.begun(response)
        # Without a connection there is a response of locust's own, of status 0.
        outcome.text = response.text or ""
        return outcome

    def streamed(self, response: ResponseContextManager) -> Outcome:
        """Read events as they come; the time of the whole stream counts as the response time."""
        began, outcome = time.perf_counter(), self.begun(response)
        try:
            for line in response.iter_lines():
                if line.startswith(b"data:"):
                    outcome.events.append(line[5:].strip().decode())
                outcome.text += line.decode(errors="replace") + "\n"
        except RequestException:
            outcome.broken = True
        response.request_meta = {
            **response.request_meta,
            "response_time": response.request_meta["response_time"] + (time.perf_counter() - began) * 1000,
            "response_length": len(outcome.text),
        }
        return outcome

    def begun(self, response: ResponseContextManager) -> Outcome:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Outcome(response.status_code, headers, broken=response.status_code == 0)
