"""Load scenario of streams: some are read to the end and counted, some are closed half-way."""

from __future__ import annotations

from itertools import islice

from locust import task

from loadtests.scenarios.caller import CHAT, DONE, MESSAGES, SECONDS, Caller, Outcome

CHUNKS = 20
MODEL = f"mock?chunks={CHUNKS}&chunk_ms=5"
LONG = "mock?chunks=400&chunk_ms=5"


class Stream(Caller):
    """Streams in both client formats and expects every chunk."""

    @task(5)
    def chat(self) -> None:
        body = self.question(MODEL, stream=True)
        with self.client.post(
            CHAT, json=body, name="stream", stream=True, catch_response=True, timeout=SECONDS
        ) as response:
            outcome = self.streamed(response)
            if problem := incomplete(outcome, '"content":', DONE):
                response.failure(problem)

    @task(3)
    def messages(self) -> None:
        body = self.question(MODEL, stream=True)
        with self.client.post(
            MESSAGES, json=body, name="messages stream", stream=True, catch_response=True, timeout=SECONDS
        ) as response:
            outcome = self.streamed(response)
            if problem := incomplete(outcome, "text_delta", '"message_stop"'):
                response.failure(problem)

    @task(1)
    def leave(self) -> None:
        """Closes the stream after a few events. The gateway must close the provider's connection too."""
        body = self.question(LONG, stream=True)
        with self.client.post(
            CHAT, json=body, name="stream, left", stream=True, catch_response=True, timeout=SECONDS
        ) as response:
            read = sum(1 for _ in islice(response.iter_lines(), 5))
            if response.status_code != 200 or read < 5:
                response.failure(f"status {response.status_code}, {read} lines")
            response.close()


def incomplete(outcome: Outcome, content: str, end: str) -> str | None:
    """Returns what is wrong with a stream, or `None` if it is complete."""
    chunks = sum(content in event for event in outcome.events)
    if outcome.status != 200:
        return f"status {outcome.status}"
    if outcome.broken or not outcome.events or end not in outcome.events[-1]:
        return f"ended without {end} after {chunks} chunks"
    # OpenAI's first event has an empty content, which is counted too.
    return None if chunks in (CHUNKS, CHUNKS + 1) else f"{chunks} chunks of {CHUNKS}"
