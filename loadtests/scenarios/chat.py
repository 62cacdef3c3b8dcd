"""Load scenario of complete responses: chats in both client formats and one passed-through path."""

from __future__ import annotations

from locust import task

from loadtests.scenarios.caller import CHAT_PATH, MESSAGES_PATH, REQUEST_TIMEOUT_SECONDS, GatewayUser


class Chat(GatewayUser):
    """Sends requests and expects a complete response that contains text."""

    @task(5)
    def send_chat(self) -> None:
        body = self.build_request("mock?response_bytes=1041")
        with self.client.post(
            CHAT_PATH, json=body, name="chat", catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            choices = self.read_response(response).parse_json().get("choices") or [{}]
            if response.status_code != 200 or not choices[0].get("message", {}).get("content"):
                response.failure(f"status {response.status_code}, no text")

    @task(3)
    def send_messages(self) -> None:
        body = self.build_request("mock")
        with self.client.post(
            MESSAGES_PATH, json=body, name="messages", catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            content = self.read_response(response).parse_json().get("content") or [{}]
            if response.status_code != 200 or not content[0].get("text"):
                response.failure(f"status {response.status_code}, no text")

    @task(1)
    def send_large_chat(self) -> None:
        body = self.build_request("mock", user="x" * 200_000)
        with self.client.post(
            CHAT_PATH, json=body, name="chat, 200 KB", catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")

    @task(1)
    def list_models(self) -> None:
        with self.client.get(
            "/v1/models", name="models", catch_response=True, timeout=REQUEST_TIMEOUT_SECONDS
        ) as response:
            if response.status_code != 200 or not self.read_response(response).parse_json().get("data"):
                response.failure(f"status {response.status_code}, no models")
