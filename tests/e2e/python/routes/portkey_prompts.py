"""Runs and renders prompts with the portkey-ai SDK. Prints one line of JSON for each call."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import portkey_ai

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = portkey_ai.Portkey(api_key=os.environ["KEY"], base_url=os.environ["GATEWAY"] + "/v1")
PROMPT = os.environ["PROMPT"]
VARIABLES = {"name": "Ann"}


def stream_text() -> str:
    stream = CLIENT.prompts.completions.create(prompt_id=f"{PROMPT}@latest", variables=VARIABLES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


CALLS: dict[str, Callable[[], object]] = {
    "prompts.render": lambda: (
        CLIENT.prompts.render(prompt_id=PROMPT, variables=VARIABLES, max_tokens=5).data.messages[0].content
    ),
    "prompts.completions.create": lambda: bool(
        CLIENT.prompts.completions.create(prompt_id=PROMPT, variables=VARIABLES).choices[0].message.content
    ),
    "prompts.completions.create stream": lambda: bool(stream_text()),
}

for name, call in CALLS.items():
    try:
        result: object = call()
    except Exception as error:  # noqa: BLE001 — it has several, of its own and of what it brings along
        result = f"{type(error).__name__}: {error}"
    print(json.dumps([name, result]))
sys.stderr.write(portkey_ai.__version__)
