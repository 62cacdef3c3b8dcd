"""Load scenario of complete responses: chats in both client formats and one passed-through path."""

from __future__ import annotations

from locust import task

from loadtests.scenarios.caller import CHAT, MESSAGES, SECONDS, Caller


class Chat(Caller):
    """Sends requests and expects a complete response that contains text."""

    @task(5)
    def chat(self) -> None:
        body = self.question("mock?answer_bytes=1041")
        with self.client.post(CHAT, json=body, name="chat", catch_response=True, timeout=SECONDS) as response:
            choices = self.whole(response).json().get("choices") or [{}]
            if response.status_code != 200 or not choices[0].get("message", {}).get("content"):
                response.failure(f"status {response.status_code}, no text")

    @task(3)
    def messages(self) -> None:
        body = self.question("mock")
        with self.client.post(MESSAGES, json=body, name="messages", catch_response=True, timeout=SECONDS) as response:
            content = self.whole(response).json().get("content") or [{}]
            if response.status_code != 200 or not content[0].get("text"):
                response.failure(f"status {response.status_code}, no text")

    @task(1)
    def large(self) -> None:
        body = self.question("mock", user="x" * 200_000)
        with self.client.post(CHAT, json=body, name="chat, 200 KB", catch_response=True, timeout=SECONDS) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")

    @task(1)
    def passed_through(self) -> None:
        with self.client.get("/v1/models", name="models", catch_response=True, timeout=SECONDS) as response:
            if response.status_code != 200 or not self.whole(response).json().get("data"):
                response.failure(f"status {response.status_code}, no models")
