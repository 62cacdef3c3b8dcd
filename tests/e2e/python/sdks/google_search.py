"""Google Gen AI SDK with Google Search as a tool. `PROVIDERS` lists models here."""

from __future__ import annotations

from google import genai
from google.genai import types
from sdk_calls import GATEWAY, KEY, PROVIDERS, report_call

client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=GATEWAY))
SEARCH_CONFIG = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])


def send_chat(model: str) -> object:
    response = client.models.generate_content(model=model, contents="what is new?", config=SEARCH_CONFIG)
    parts = (response.candidates or [])[0].content.parts or []
    return "".join(part.text or "" for part in parts)


def stream_chat(model: str) -> object:
    chunks = client.models.generate_content_stream(model=model, contents="what is new?", config=SEARCH_CONFIG)
    return "".join(chunk.text or "" for chunk in chunks)


for provider in PROVIDERS:
    for call in (send_chat, stream_chat):
        report_call(provider, call.__name__, lambda call=call, provider=provider: call(provider))
