"""Google's own SDK, where Google looks something up; what is named are models."""

from __future__ import annotations

from google import genai
from google.genai import types
from said import GATEWAY, KEY, PROVIDERS, say

made = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=GATEWAY))
CONFIG = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])


def whole(model: str) -> object:
    answer = made.models.generate_content(model=model, contents="what is new?", config=CONFIG)
    parts = (answer.candidates or [])[0].content.parts or []
    return "".join(part.text or "" for part in parts)


def streamed(model: str) -> object:
    chunks = made.models.generate_content_stream(model=model, contents="what is new?", config=CONFIG)
    return "".join(chunk.text or "" for chunk in chunks)


for named in PROVIDERS:
    for call in (whole, streamed):
        say(named, call.__name__, lambda call=call, named=named: call(named))
