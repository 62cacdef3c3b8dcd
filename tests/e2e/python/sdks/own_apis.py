"""Parts of Google's and Cohere's APIs that the gateway forwards: files, batches, caches, datasets. `PROVIDERS` lists
versions of Google's API here.
"""

from __future__ import annotations

import io
from functools import cache, partial

import cohere
import httpx
from google import genai
from google.genai import types
from sdk_calls import GATEWAY, KEY, PROVIDERS, report_call

# Larger than one part of a resumable upload, so that an upload has two parts.
UPLOAD_BYTES = 9 * 1024 * 1024


@cache
def google_client(version: str) -> genai.Client:
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=GATEWAY, api_version=version))


def upload(version: str) -> object:
    client = google_client(version)
    return client.files.upload(file=io.BytesIO(b"x" * UPLOAD_BYTES), config={"mime_type": "text/plain"}).name


def get_file(version: str) -> object:
    return google_client(version).files.get(name="files/f-1").name


def list_files(version: str) -> object:
    return [file.name for file in google_client(version).files.list()]


def delete_file(version: str) -> object:
    return google_client(version).files.delete(name="files/f-1") is not None


def get_batch(version: str) -> object:
    return google_client(version).batches.get(name="batches/b-1").name


def list_batches(version: str) -> object:
    return [batch.name for batch in google_client(version).batches.list()]


def create_batch(version: str) -> object:
    requests = [{"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}]
    return google_client(version).batches.create(model="m", src=requests).name


def create_cache(version: str) -> object:
    config = types.CreateCachedContentConfig(contents=["hi"])
    return google_client(version).caches.create(model="m", config=config).name


def create_interaction(version: str) -> object:
    return google_client(version).interactions.create(model="m", input="hi").id


def cohere_client() -> cohere.Client:
    return cohere.Client(api_key=KEY, base_url=GATEWAY, httpx_client=httpx.Client(timeout=10))


for version in PROVIDERS:
    for call in (
        upload,
        get_file,
        list_files,
        delete_file,
        get_batch,
        list_batches,
        create_batch,
        create_cache,
        create_interaction,
    ):
        report_call(version, call.__name__, partial(call, version))
report_call("cohere", "tokenize", lambda: cohere_client().tokenize(text="ab", model="command", offline=False).tokens)
report_call("cohere", "datasets", lambda: [item.id for item in cohere_client().datasets.list().datasets])
report_call("cohere", "embed_jobs", lambda: cohere_client().embed_jobs.list().embed_jobs)
report_call("cohere", "chat", lambda: cohere_client().chat(message="hi", model="command").text)
