"""Google Gen AI SDK with guardrails. `PROVIDERS` lists saved configs here, each with a guardrail that fails."""

from __future__ import annotations

from google import genai
from google.genai import errors, types
from sdk_calls import GATEWAY, KEY, PROVIDERS, report_call

PROMPT = "the canary"
REASON = "see hook_results"
MODEL = "mock"


def build_client(config: str) -> genai.Client:
    options = types.HttpOptions(base_url=GATEWAY, headers={"x-gateway-config": config})
    return genai.Client(api_key=KEY, http_options=options)


def describe(text: str) -> object:
    return REASON if REASON in text else True


def send_chat(config: str) -> object:
    client = build_client(config)
    try:
        response = client.models.generate_content(model=MODEL, contents=PROMPT)
    except errors.APIError as error:
        return error.code
    return describe(response.text or "")


def stream_chat(config: str) -> object:
    client = build_client(config)
    try:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents=PROMPT))
    except errors.APIError as error:
        return error.code
    return describe("".join(chunk.text or "" for chunk in chunks))


for name in PROVIDERS:
    for call in (send_chat, stream_chat):
        report_call(name, call.__name__, lambda call=call, name=name: call(name))
