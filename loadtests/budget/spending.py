"""Clients that spend a budget together, through gateways of any kind that serves OpenAI chat completions."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

CHAT_PATH = "/v1/chat/completions"
TIMEOUT_SECONDS = 60
# Number of consecutive error responses after which the budget counts as used up.
MAX_REJECTIONS = 300
REJECTION_PAUSE_SECONDS = 0.02


class SpendingOptions(NamedTuple):
    """Requests to send, their price, and the budget that they spend."""

    urls: list[str]
    headers: dict[str, str]
    model: str
    dollars_per_token: float
    budget: float
    clients: int
    max_tokens: int
    seconds: int


class Spending:
    """Clients that share a budget."""

    def __init__(self, options: SpendingOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._rejected_in_a_row = 0
        self._end = time.monotonic() + options.seconds
        self.tokens = 0
        self.statuses: dict[int, int] = {}

    @property
    def dollars(self) -> float:
        """Cost of the admitted requests in US dollars."""
        return self.tokens * self._options.dollars_per_token

    @property
    def overshoot(self) -> float:
        """Amount by which the budget was exceeded, as a share of the budget."""
        return max(0.0, self.dollars - self._options.budget) / self._options.budget

    def run(self) -> None:
        """Sends requests until nearly all are rejected, or the time is over."""
        with ThreadPoolExecutor(self._options.clients) as pool:
            for call in [pool.submit(self._call, number) for number in range(self._options.clients)]:
                call.result()

    def _call(self, number: int) -> None:
        rng = random.Random(number)
        address = urlsplit(self._options.urls[number % len(self._options.urls)])
        connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=TIMEOUT_SECONDS)
        while self._rejected_in_a_row < MAX_REJECTIONS and time.monotonic() < self._end:
            try:
                status, tokens = self._send(connection, rng.randrange(5, self._options.max_tokens))
            except (OSError, http.client.HTTPException, ValueError):
                connection.close()
                status, tokens = 0, 0
            with self._lock:
                self.tokens += tokens
                self.statuses[status] = self.statuses.get(status, 0) + 1
                self._rejected_in_a_row = 0 if status == http.HTTPStatus.OK else self._rejected_in_a_row + 1
            if status != http.HTTPStatus.OK:
                time.sleep(REJECTION_PAUSE_SECONDS)
        connection.close()

    def _send(self, connection: http.client.HTTPConnection, max_tokens: int) -> tuple[int, int]:
        body = {
            "model": self._options.model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": max_tokens,
        }
        connection.request("POST", CHAT_PATH, json.dumps(body), self._options.headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != http.HTTPStatus.OK:
            return response.status, 0
        return response.status, json.loads(content)["usage"]["total_tokens"]
