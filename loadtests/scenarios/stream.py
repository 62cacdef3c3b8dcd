"""Load scenario of streams: some are read to the end and counted, some are closed half-way."""

from __future__ import annotations

from itertools import islice

from locust import task

from loadtests.scenarios.caller import (
    CHAT_PATH,
    DONE_MARKER,
    MESSAGES_PATH,
    REQUEST_TIMEOUT_SECONDS,
    GatewayUser,
    ResponseOutcome,
)

CHUNK_COUNT = 20
STREAM_MODEL = f"mock?chunks={CHUNK_COUNT}&chunk_ms=5"
LONG_STREAM_MODEL = "mock?chunks=400&chunk_ms=5"


class Stream(GatewayUser):
    """Streams in both client formats and expects every chunk."""

    @task(5)
    def stream_chat(self) -> None:
        body = self.build_request(STREAM_MODEL, stream=True)
        with self.client.post(
            CHAT_PATH, json=body, name="stream", stream=True, catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            outcome = self.read_stream(response)
            if problem := find_stream_problem(outcome, '"content":', DONE_MARKER):
                response.failure(problem)

    @task(3)
    def stream_messages(self) -> None:
        body = self.build_request(STREAM_MODEL, stream=True)
        with self.client.post(
            MESSAGES_PATH,
            json=body,
            name="messages stream",
            stream=True,
            catch_response=True,
            timeout=REQUEST_TIMEOUT_SECONDS,
        ) as response:
            outcome = self.read_stream(response)
            if problem := find_stream_problem(outcome, "text_delta", '"message_stop"'):
                response.failure(problem)

    @task(1)
    def disconnect_early(self) -> None:
        """Closes the stream after a few events. The gateway must close the provider's connection too."""
        body = self.build_request(LONG_STREAM_MODEL, stream=True)
        with self.client.post(
            CHAT_PATH, json=body, name="stream, left", stream=True, catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            read = sum(1 for _ in islice(response.iter_lines(), 5))
            if response.status_code != 200 or read < 5:
                response.failure(f"status {response.status_code}, {read} lines")
            response.close()


def find_stream_problem(outcome: ResponseOutcome, content: str, end: str) -> str | None:
    """Returns what is wrong with a stream, or `None` if it is complete."""
    chunks = sum(content in event for event in outcome.events)
    if outcome.status != 200:
        return f"status {outcome.status}"
    if outcome.is_broken or not outcome.events or end not in outcome.events[-1]:
        return f"ended without {end} after {chunks} chunks"
    # OpenAI's first event has an empty content, which is counted too.
    return None if chunks in (CHUNK_COUNT, CHUNK_COUNT + 1) else f"{chunks} chunks of {CHUNK_COUNT}"
