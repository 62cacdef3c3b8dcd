"""Load scenario of provider faults. Each response must be the documented one for its fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from locust import task

from loadtests.scenarios.caller import CHAT, DONE, SECONDS, Caller, Outcome

TIMEOUT_MS = 300
Expectation = Callable[[Outcome], bool]


def status(*numbers: int) -> Expectation:
    return lambda outcome: outcome.status in numbers and not outcome.broken


def gateway_error(outcome: Outcome) -> bool:
    """Returns true for a JSON error from the gateway itself, which replaces an unusable upstream response."""
    return 500 <= outcome.status <= 504 and bool(outcome.json())


def timed_out(outcome: Outcome) -> bool:
    return outcome.status == 408 and outcome.json().get("error", {}).get("type") == "timeout_error"


def told_when_to_retry(outcome: Outcome) -> bool:
    return outcome.status == 429 and outcome.headers.get("retry-after") == "1"


def readable(outcome: Outcome) -> bool:
    return outcome.status == 200 and bool(outcome.json().get("choices"))


def complete(outcome: Outcome) -> bool:
    return outcome.status == 200 and not outcome.broken and DONE in outcome.events


def truncated(outcome: Outcome) -> bool:
    """Returns true for a stream that started well and that a client cannot mistake for a complete one."""
    return outcome.status == 200 and bool(outcome.events) and DONE not in outcome.events


def cut_short(outcome: Outcome) -> bool:
    return outcome.broken or gateway_error(outcome)


def overloaded(outcome: Outcome) -> bool:
    return outcome.status in (200, 503, 529) and "overloaded" in outcome.text


@dataclass(frozen=True)
class Fault:
    """A fault of the provider, and the response that the client must get."""

    behaviour: str
    expected: Expectation
    streamed: bool = False


FAULTS = (
    Fault("fault=429&retry_after=1", told_when_to_retry),
    Fault("fault=429", status(429)),
    Fault("status=529", status(529)),
    Fault("status=99", gateway_error),
    Fault("status=1000", gateway_error),
    Fault("fault=reset", gateway_error),
    Fault("fault=silence", timed_out),
    Fault("first_ms=2000", timed_out),
    Fault("fault=gzip", readable),
    Fault("fault=long_length", cut_short),
    # A redirect may be forwarded or rejected, but must never be followed.
    Fault("fault=redirect_metadata", status(302, 500, 502)),
    Fault("fault=cut", truncated, streamed=True),
    Fault("fault=cut_reset", truncated, streamed=True),
    Fault("fault=bad_framing", truncated, streamed=True),
    Fault("fault=no_done", truncated, streamed=True),
    Fault("fault=malformed_chunk", complete, streamed=True),
    Fault("fault=crlf", complete, streamed=True),
    Fault("fault=overloaded_first", overloaded, streamed=True),
)


class Faults(Caller):
    """Sends requests with random faults, and ordinary chats between them."""

    @task(3)
    def fault(self) -> None:
        drawn = random.choice(FAULTS)
        name = drawn.behaviour + (", streamed" if drawn.streamed else "")
        body = self.question(f"mock?{drawn.behaviour}", stream=drawn.streamed)
        with self.client.post(
            CHAT,
            json=body,
            name=name,
            headers={"x-gateway-request-timeout": str(TIMEOUT_MS)},
            stream=drawn.streamed,
            allow_redirects=False,
            catch_response=True,
            timeout=SECONDS,
        ) as response:
            outcome = self.streamed(response) if drawn.streamed else self.whole(response)
            if drawn.expected(outcome):
                response.success()
            else:
                cut = ", broken" if outcome.broken else ""
                response.failure(f"status {outcome.status}{cut}: {outcome.text[:120]!r}")

    @task(2)
    def chat(self) -> None:
        """Sends an ordinary chat, which faults of other requests must not affect."""
        with self.client.post(
            CHAT, json=self.question("mock"), name="chat between", catch_response=True, timeout=SECONDS
        ) as response:
            if not readable(self.whole(response)):
                response.failure(f"status {response.status_code}")
