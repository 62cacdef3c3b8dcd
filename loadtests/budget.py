"""`python -m loadtests.budget URL…`: spends a budget through running gateways from many clients at once, and reports by how
much it was exceeded. The gateways may be of any kind that serves OpenAI chat completions.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from loadtests.options import make_int_parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHAT_PATH = "/v1/chat/completions"
TIMEOUT_SECONDS = 60
# The budget is used up if so many responses in a row are errors.
MAX_REJECTIONS = 300
REJECTION_PAUSE_SECONDS = 0.02


class Options(NamedTuple):
    """What is sent, and what it costs."""

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

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._rejected_in_a_row = 0
        self._end = time.monotonic() + options.seconds
        self.tokens = 0
        self.statuses: dict[int, int] = {}

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the budget was exceeded."""
    options = _parse_options(arguments)
    spending = Spending(options)
    began = time.monotonic()
    spending.run()
    spent = spending.tokens * options.dollars_per_token
    over = max(0.0, spent - options.budget)
    print(
        f"{sum(spending.statuses.values())} requests in {time.monotonic() - began:.0f} s, by status {_sorted(spending)}"
    )
    print(f"spent ${spent:.4f} of ${options.budget:g}, exceeded by {over / options.budget:.1%}")
    return 1 if over else 0


def _sorted(spending: Spending) -> Mapping[int, int]:
    return dict(sorted(spending.statuses.items()))


def _parse_options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m loadtests.budget", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("urls", nargs="+", metavar="URL", help="address of a gateway, such as http://127.0.0.1:8787")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="header of each request")
    parser.add_argument("--model", default="mock", help="model in the body (default: %(default)s)")
    parser.add_argument(
        "--price", type=float, default=0.0002, metavar="DOLLARS", help="price of a token (default: %(default)s)"
    )
    parser.add_argument("--budget", type=float, default=1.0, metavar="DOLLARS", help="default: %(default)s")
    parser.add_argument(
        "--clients", type=make_int_parser(1, 5000), default=200, help="clients at once (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=make_int_parser(6, 100_000), default=60, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=make_int_parser(1, 3600), default=120, help="longest time (default: %(default)s)"
    )
    parsed = parser.parse_args(arguments)
    headers = {"content-type": "application/json"}
    headers |= {name.strip(): value.strip() for name, _, value in (text.partition(":") for text in parsed.header)}
    return Options(
        parsed.urls,
        headers,
        parsed.model,
        parsed.price,
        parsed.budget,
        parsed.clients,
        parsed.max_tokens,
        parsed.seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
