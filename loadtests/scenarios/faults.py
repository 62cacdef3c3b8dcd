"""Load scenario of provider faults. Each response must be the documented one for its fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from locust import task

from loadtests.scenarios.caller import CHAT_PATH, DONE_MARKER, REQUEST_TIMEOUT_SECONDS, GatewayUser, ResponseOutcome

REQUEST_TIMEOUT_MS = 300
Expectation = Callable[[ResponseOutcome], bool]


def has_status(*numbers: int) -> Expectation:
    return lambda outcome: outcome.status in numbers and not outcome.is_broken


def is_gateway_error(outcome: ResponseOutcome) -> bool:
    """Returns true for a JSON error from the gateway itself, which replaces an unusable upstream response."""
    return 500 <= outcome.status <= 504 and bool(outcome.parse_json())


def is_timeout(outcome: ResponseOutcome) -> bool:
    return outcome.status == 408 and outcome.parse_json().get("error", {}).get("type") == "timeout_error"


def has_retry_after(outcome: ResponseOutcome) -> bool:
    return outcome.status == 429 and outcome.headers.get("retry-after") == "1"


def has_choices(outcome: ResponseOutcome) -> bool:
    return outcome.status == 200 and bool(outcome.parse_json().get("choices"))


def is_complete_stream(outcome: ResponseOutcome) -> bool:
    return outcome.status == 200 and not outcome.is_broken and DONE_MARKER in outcome.events


def is_truncated_stream(outcome: ResponseOutcome) -> bool:
    """Returns true for a stream that started well and that a client cannot mistake for a complete one."""
    return outcome.status == 200 and bool(outcome.events) and DONE_MARKER not in outcome.events


def is_broken_or_error(outcome: ResponseOutcome) -> bool:
    return outcome.is_broken or is_gateway_error(outcome)


def is_overloaded(outcome: ResponseOutcome) -> bool:
    return outcome.status in (200, 503, 529) and "overloaded" in outcome.text


@dataclass(frozen=True)
class Fault:
    """A fault of the provider, and the response that the client must get."""

    behaviour: str
    expected: Expectation
    is_streamed: bool = False


FAULTS = (
    Fault("fault=429&retry_after=1", has_retry_after),
    Fault("fault=429", has_status(429)),
    Fault("status=529", has_status(529)),
    Fault("status=99", is_gateway_error),
    Fault("status=1000", is_gateway_error),
    Fault("fault=reset", is_gateway_error),
    Fault("fault=silence", is_timeout),
    Fault("first_ms=2000", is_timeout),
    Fault("fault=gzip", has_choices),
    Fault("fault=long_length", is_broken_or_error),
    # A redirect may be forwarded or rejected, but must never be followed.
    Fault("fault=redirect_metadata", has_status(302, 500, 502)),
    Fault("fault=cut", is_truncated_stream, is_streamed=True),
    Fault("fault=cut_reset", is_truncated_stream, is_streamed=True),
    Fault("fault=invalid_framing", is_truncated_stream, is_streamed=True),
    Fault("fault=no_done", is_truncated_stream, is_streamed=True),
    Fault("fault=malformed_chunk", is_complete_stream, is_streamed=True),
    Fault("fault=crlf", is_complete_stream, is_streamed=True),
    Fault("fault=overloaded_first", is_overloaded, is_streamed=True),
)


class Faults(GatewayUser):
    """Sends requests with random faults, and ordinary chats between them."""

    @task(3)
    def send_faulty_request(self) -> None:
        drawn = random.choice(FAULTS)
        name = drawn.behaviour + (", streamed" if drawn.is_streamed else "")
        body = self.build_request(f"mock?{drawn.behaviour}", stream=drawn.is_streamed)
        with self.client.post(
            CHAT_PATH,
            json=body,
            name=name,
            headers={"x-gateway-request-timeout": str(REQUEST_TIMEOUT_MS)},
            stream=drawn.is_streamed,
            allow_redirects=False,
            catch_response=True,
            timeout=REQUEST_TIMEOUT_SECONDS,
        ) as response:
            outcome = self.read_stream(response) if drawn.is_streamed else self.read_response(response)
            if drawn.expected(outcome):
                response.success()
            else:
                cut = ", broken" if outcome.is_broken else ""
                response.failure(f"status {outcome.status}{cut}: {outcome.text[:120]!r}")

    @task(2)
    def send_chat(self) -> None:
        """Sends an ordinary chat, which faults of other requests must not affect."""
        with self.client.post(
            CHAT_PATH,
            json=self.build_request("mock"),
            name="chat between",
            catch_response=True,
            timeout=REQUEST_TIMEOUT_SECONDS,
        ) as response:
            if not has_choices(self.read_response(response)):
                response.failure(f"status {response.status_code}")
