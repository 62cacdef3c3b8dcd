"""Request bodies of the workloads. The model name in a body selects the behaviour of the mock provider."""

from __future__ import annotations

import json
from dataclasses import dataclass

WHOLE_BYTES = 961
ANSWER_BYTES = 1041
LARGE_BYTES = 1_000_000
SMALL_BYTES = 200


@dataclass(frozen=True)
class Ask:
    """One kind of request, independent of the gateway that receives it."""

    model: str
    size: int = WHOLE_BYTES
    chunks: int = 0
    """Content chunks of a streamed answer; a whole one has none."""
    config: str = ""
    """By which of the configs that the gateway was given, if by one: `kept` has it serve its own answers again."""

    @property
    def streamed(self) -> bool:
        return self.chunks > 0

    def body(self, model: str) -> bytes:
        """Returns the JSON body, padded to `body_bytes`. `model` is the name that clients of this gateway send."""
        asked = {"model": model, "messages": [{"role": "user", "content": ""}]}
        if self.streamed:
            asked["stream"] = True
        filling = self.size - len(json.dumps(asked))
        asked["messages"][0]["content"] = ("Tell me more. " * (filling // 14 + 1))[: max(filling, 1)]
        return json.dumps(asked).encode()


def whole() -> Ask:
    return Ask(f"mock?answer_bytes={ANSWER_BYTES}")


def routed(config: str) -> Ask:
    return Ask(f"mock?answer_bytes={ANSWER_BYTES}", config=config)


def large() -> Ask:
    return Ask(f"mock?answer_bytes={ANSWER_BYTES}", LARGE_BYTES)


def stream(chunks: int, **behaviour: int) -> Ask:
    """Returns a request for a streamed response with this number of chunks. `behaviour` may set `chunk_ms`, `burst`,
    `chunk_bytes` and `stamp`.
    """
    extra = "".join(f"&{key}={value}" for key, value in behaviour.items())
    return Ask(f"mock?chunks={chunks}{extra}", SMALL_BYTES, chunks)
