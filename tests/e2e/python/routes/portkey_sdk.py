"""Sends requests with the installed portkey-ai SDK and the config in `CONFIG`, once for each kind of call of the SDK.
Prints one line of JSON for each.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import portkey_ai

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]
REQUEST_FUNCTIONS: list[Callable[[portkey_ai.Portkey], object]] = [
    lambda client: client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES).choices[0].message.content,
    lambda client: "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES, stream=True)
        if chunk.choices
    ),
    lambda client: client.post("/chat/completions", model="mock", messages=PROMPT_MESSAGES).choices[0]["message"][
        "content"
    ],
]


def describe_result(way: Callable[[portkey_ai.Portkey], object]) -> list[object]:
    """Returns the status and the `x-should-retry` header of a failure, or 200 and true if the response has content."""
    client = portkey_ai.Portkey(
        api_key="k", base_url=os.environ["GATEWAY"] + "/v1", config=json.loads(os.environ["CONFIG"])
    )
    try:
        return [200, bool(way(client))]
    except Exception as error:  # noqa: BLE001 — it has several, of its own and of what it brings along
        response = getattr(error, "response", None)
        return [response.status_code, response.headers.get("x-should-retry")] if response is not None else [repr(error)]


for item in REQUEST_FUNCTIONS:
    print(json.dumps(describe_result(item)))
sys.stderr.write(portkey_ai.__version__)
