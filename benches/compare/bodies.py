"""Request bodies of the workloads. The model name in a body selects the behaviour of the mock provider."""

from __future__ import annotations

import json
from dataclasses import dataclass

REQUEST_BYTES = 961
RESPONSE_BYTES = 1041
LARGE_REQUEST_BYTES = 1_000_000
SMALL_REQUEST_BYTES = 200
# Size of a request with a text of 2 KB: the text, and the other fields of the request.
GUARDED_REQUEST_BYTES = 2048 + 120
# Headers that OpenAI's Python SDK sends in addition to those that every client sends.
SDK_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "OpenAI/Python 2.8.1",
    "x-stainless-arch": "x64",
    "x-stainless-async": "false",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "x-stainless-package-version": "2.8.1",
    "x-stainless-read-timeout": "600",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.9",
}


@dataclass(frozen=True)
class RequestSpec:
    """One kind of request, independent of the gateway that receives it."""

    model: str
    body_bytes: int = REQUEST_BYTES
    chunk_count: int = 0
    """Number of content chunks of a streamed response; 0 for a complete response."""
    config: str = ""
    """Name of the config that the request uses; empty for none. The config `kept` makes the gateway cache responses."""

    @property
    def is_streamed(self) -> bool:
        return self.chunk_count > 0

    def build_body(self, model: str) -> bytes:
        """Returns the JSON body, padded to `body_bytes`. `model` is the name that clients of this gateway send."""
        if self.config == "prompt":
            return json.dumps({"variables": {"language": "French"}}).encode()
        payload = {"model": model, "messages": [{"role": "user", "content": ""}]}
        if self.is_streamed:
            payload["stream"] = True
        filling = self.body_bytes - len(json.dumps(payload))
        payload["messages"][0]["content"] = ("Tell me more. " * (filling // 14 + 1))[: max(filling, 1)]
        return json.dumps(payload).encode()


def non_streaming_request() -> RequestSpec:
    return RequestSpec(f"mock?response_bytes={RESPONSE_BYTES}")


def realistic_request(config: str = "") -> RequestSpec:
    """Returns a request whose response has the headers that a large provider sends."""
    return RequestSpec(f"mock?response_bytes={RESPONSE_BYTES}&headers=1", config=config)


def realistic_prompt() -> dict[str, object]:
    """Returns a saved prompt that renders to the message of `realistic_request`, and its one variable."""
    return {
        "string": json.dumps([{"role": "user", "content": "Answer in {{language}}. " + "Tell me more. " * 60}]),
        "model": realistic_request().model,
        "parameters": {},
    }


def request_with_config(config: str) -> RequestSpec:
    return RequestSpec(f"mock?response_bytes={RESPONSE_BYTES}", config=config)


def guarded_request(config: str) -> RequestSpec:
    """Returns a request with a text of 2 KB, for a config with or without guardrails."""
    return RequestSpec(f"mock?response_bytes={RESPONSE_BYTES}", GUARDED_REQUEST_BYTES, config=config)


def large_request() -> RequestSpec:
    return RequestSpec(f"mock?response_bytes={RESPONSE_BYTES}", LARGE_REQUEST_BYTES)


def streaming_request(chunks: int, **behaviour: int) -> RequestSpec:
    """Returns a request for a streamed response with this number of chunks. `behaviour` may set `chunk_ms`, `burst`,
    `chunk_bytes` and `stamp`.
    """
    extra = "".join(f"&{key}={value}" for key, value in behaviour.items())
    return RequestSpec(f"mock?chunks={chunks}{extra}", SMALL_REQUEST_BYTES, chunks)
