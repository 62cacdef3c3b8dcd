"""Example commands for a gateway with the mock provider. A user can paste them into a shell."""

from __future__ import annotations

import json

EXAMPLE_MESSAGE = {"role": "user", "content": "Say hello"}


def format_examples(url: str, *, key_needed: bool, demo_key: str | None = None) -> list[str]:
    """Returns a title line and a command line for each example. The first sets `PENSTOCK_API_KEY` to the demo key."""
    key = ['-H "x-gateway-api-key: $PENSTOCK_API_KEY"'] if key_needed else []
    chat: dict[str, object] = {"model": "mock", "messages": [EXAMPLE_MESSAGE]}
    tries = [
        *([("key of the demo workspace", f"export PENSTOCK_API_KEY={demo_key}")] if demo_key else []),
        ("chat completion", _curl_command(f"{url}/v1/chat/completions", chat, key)),
        (
            "streamed chat completion",
            _curl_command(f"{url}/v1/chat/completions", {**chat, "stream": True}, ["-N", *key]),
        ),
        ("Anthropic Messages API", _curl_command(f"{url}/v1/messages", {**chat, "max_tokens": 64}, key)),
        ("management API", f"curl -sS {url}/v1/health"),
        # System Python installations often reject packages; a virtual environment accepts them everywhere.
        ("OpenAI's Python SDK in a virtual environment", "python3 -m venv sdk && sdk/bin/pip install openai"),
        ("chat completion with the SDK", _sdk_command(url, key_needed=key_needed)),
    ]
    return [line for title, command in tries for line in (f"# {title}", command)]


def _curl_command(url: str, body: dict[str, object], options: list[str]) -> str:
    headers = ["-H 'content-type: application/json'", "-H 'x-gateway-provider: mock'"]
    return " ".join(["curl -sS", *options, url, *headers, f"-d '{json.dumps(body)}'"])


def _sdk_command(url: str, *, key_needed: bool) -> str:
    headers = '{"x-gateway-provider": "mock"'
    headers += ', "x-gateway-api-key": os.environ["PENSTOCK_API_KEY"]}' if key_needed else "}"
    return (
        f"sdk/bin/python -c 'import os, openai; "
        f'client = openai.OpenAI(base_url="{url}/v1", api_key="none", default_headers={headers}); '
        f'print(client.chat.completions.create(model="mock", messages=[{json.dumps(EXAMPLE_MESSAGE)}]).choices[0].message.content)'
        "'"
    )
