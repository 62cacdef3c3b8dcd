"""Calls every route of the installed OpenAI SDK through the gateway at `GATEWAY`. Prints one line of JSON for each
call.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import openai
from calls import HEADERS, run_calls

if TYPE_CHECKING:
    from calls import Calls

PROMPT_MESSAGES = [{"role": "user", "content": "say something"}]
AUDIO_FILE = ("sound.wav", b"RIFF\r\n--not-a-boundary\r\n\x00\xff" * 500, "audio/wav")
IMAGE_FILES = [("a.png", b"\x89PNG\r\n\x1a\n" * 100, "image/png"), ("b.png", b"\x89PNG\r\n\x1a\n" * 50, "image/png")]
BATCH_FILE = ("rows.jsonl", b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n')


def create_chat(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES).choices[0].message.content


def stream_chat(client: openai.OpenAI) -> object:
    chunks = client.chat.completions.create(model="mock", messages=PROMPT_MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def stream_chat_cut_within_event(client: openai.OpenAI) -> object:
    content = []
    try:
        model = "mock?chunks=8&after=4&fault=cut_event"
        content.extend(client.chat.completions.create(model=model, messages=PROMPT_MESSAGES, stream=True))
    except openai.APIError as error:
        return len(content) >= 4 and "the provider's response broke off" in error.message
    return False


def stream_completion(client: openai.OpenAI) -> object:
    return "".join(chunk.choices[0].text for chunk in client.completions.create(model="mock", prompt="a", stream=True))


def stream_response(client: openai.OpenAI) -> object:
    events = list(client.responses.create(model="mock", input="hi", stream=True))
    return events[-1].type == "response.completed"


def stream_speech(client: openai.OpenAI) -> object:
    request = {"model": "mock", "voice": "alloy", "input": "hi"}
    with client.audio.speech.with_streaming_response.create(**request) as response:
        return b"".join(response.iter_bytes()).startswith(b"\x00ID3")


def stream_transcription(client: openai.OpenAI) -> object:
    events = client.audio.transcriptions.create(model="mock", file=AUDIO_FILE, stream=True)
    return [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]


CALLS: Calls = [
    ("POST /v1/chat/completions", create_chat),
    ("POST /v1/chat/completions", stream_chat),
    ("POST /v1/chat/completions", stream_chat_cut_within_event),
    ("POST /v1/completions", lambda c: c.completions.create(model="mock", prompt="a").choices[0].text),
    ("POST /v1/completions", stream_completion),
    ("POST /v1/embeddings", lambda c: c.embeddings.create(model="mock", input=["a", "b"]).data[1].embedding),
    ("POST /v1/moderations", lambda c: c.moderations.create(model="mock", input="a").results[0].flagged is False),
    ("POST /v1/images/generations", lambda c: c.images.generate(model="mock", prompt="a").data[0].b64_json),
    ("POST /v1/images/edits", lambda c: c.images.edit(model="mock", prompt="a", image=IMAGE_FILES).data[0].b64_json),
    ("POST /v1/images/variations", lambda c: c.images.create_variation(image=IMAGE_FILES[0]).data[0].b64_json),
    (
        "POST /v1/audio/speech",
        lambda c: c.audio.speech.create(model="mock", voice="alloy", input="a").content.startswith(b"\x00ID3"),
    ),
    ("POST /v1/audio/speech", stream_speech),
    (
        "POST /v1/audio/transcriptions",
        lambda c: (
            c.audio.transcriptions.create(
                model="mock",
                file=AUDIO_FILE,
                response_format="verbose_json",
                timestamp_granularities=["word", "segment"],
            ).text
        ),
    ),
    ("POST /v1/audio/transcriptions", stream_transcription),
    ("POST /v1/audio/translations", lambda c: c.audio.translations.create(model="mock", file=AUDIO_FILE).text),
    ("GET /v1/models", lambda c: [model.id for model in c.models.list()]),
    ("GET /v1/models/mock-mini", lambda c: c.models.retrieve("mock-mini").id == "mock-mini"),
    ("POST /v1/files", lambda c: c.files.create(file=BATCH_FILE, purpose="batch").object == "file"),
    ("GET /v1/files?limit=2&purpose=batch", lambda c: c.files.list(purpose="batch", limit=2).object == "list"),
    ("GET /v1/files/file-1", lambda c: c.files.retrieve("file-1").id == "file-1"),
    ("GET /v1/files/file-1/content", lambda c: c.files.content("file-1").content.endswith(b"}\n")),
    ("DELETE /v1/files/file-1", lambda c: c.files.delete("file-1").deleted),
    (
        "POST /v1/batches",
        lambda c: (
            c.batches.create(input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h").status
        ),
    ),
    ("GET /v1/batches?limit=2", lambda c: c.batches.list(limit=2).object == "list"),
    ("GET /v1/batches/batch-1", lambda c: c.batches.retrieve("batch-1").id == "batch-1"),
    ("POST /v1/batches/batch-1/cancel", lambda c: c.batches.cancel("batch-1").id == "batch-1"),
    ("POST /v1/fine_tuning/jobs", lambda c: c.fine_tuning.jobs.create(model="mock", training_file="file-1").status),
    ("GET /v1/fine_tuning/jobs?limit=2", lambda c: c.fine_tuning.jobs.list(limit=2).object == "list"),
    ("GET /v1/fine_tuning/jobs/ft-1", lambda c: c.fine_tuning.jobs.retrieve("ft-1").id == "ft-1"),
    ("POST /v1/fine_tuning/jobs/ft-1/cancel", lambda c: c.fine_tuning.jobs.cancel("ft-1").id == "ft-1"),
    (
        "GET /v1/fine_tuning/jobs/ft-1/events?after=e&limit=3",
        lambda c: c.fine_tuning.jobs.list_events("ft-1", after="e", limit=3).data[0].message == "ft-1",
    ),
    (
        "GET /v1/fine_tuning/jobs/ft-1/checkpoints?after=k&limit=4",
        lambda c: c.fine_tuning.jobs.checkpoints.list("ft-1", after="k", limit=4).data[0].step_number == 10,
    ),
    ("POST /v1/responses", lambda c: c.responses.create(model="mock", input="hi").output_text),
    ("POST /v1/responses", stream_response),
    ("GET /v1/responses/resp-1", lambda c: c.responses.retrieve("resp-1").id == "resp-1"),
    ("GET /v1/responses/resp-1/input_items", lambda c: c.responses.input_items.list("resp-1").data[0].role == "user"),
    ("DELETE /v1/responses/resp-1", lambda c: c.responses.delete("resp-1") is None),
    ("POST /v1/assistants", lambda c: c.beta.assistants.create(model="mock").object == "assistant"),
    ("GET /v1/assistants/asst-1", lambda c: c.beta.assistants.retrieve("asst-1").id == "asst-1"),
    ("DELETE /v1/assistants/asst-1", lambda c: c.beta.assistants.delete("asst-1").deleted),
    ("POST /v1/threads", lambda c: c.beta.threads.create().object == "thread"),
    (
        "POST /v1/threads/thread-1/messages",
        lambda c: c.beta.threads.messages.create("thread-1", role="user", content="a").thread_id == "thread-1",
    ),
    (
        "POST /v1/threads/thread-1/runs",
        lambda c: c.beta.threads.runs.create("thread-1", assistant_id="asst-1").thread_id == "thread-1",
    ),
    ("POST /v1/vector_stores", lambda c: c.vector_stores.create(name="a").object == "vector_store"),
    ("GET /v1/vector_stores/vs-1", lambda c: c.vector_stores.retrieve("vs-1").id == "vs-1"),
    ("DELETE /v1/vector_stores/vs-1", lambda c: c.vector_stores.delete("vs-1").deleted),
]

with openai.OpenAI(
    base_url=os.environ["GATEWAY"] + "/v1", api_key="provider-key", default_headers=HEADERS, max_retries=0, timeout=10
) as sdk:
    run_calls(CALLS, sdk)
sys.stderr.write(openai.__version__)
