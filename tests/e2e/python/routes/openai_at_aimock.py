"""Calls the routes of the OpenAI SDK at aimock, a third-party mock provider. `fixtures.json` defines its responses."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import openai
from calls import WEATHER_TEXT, aimock_headers, run_calls

if TYPE_CHECKING:
    from calls import Calls

WEATHER_MESSAGES = [{"role": "user", "content": "how is the weather?"}]
CLOCK_MESSAGES = [{"role": "user", "content": "what time is it?"}]
AUDIO_FILE = ("sound.wav", b"RIFF\r\n--not-a-boundary\r\n\x00\xff" * 500, "audio/wav")
IMAGE_FILES = [("a.png", b"\x89PNG\r\n\x1a\n" * 100, "image/png"), ("b.png", b"\x89PNG\r\n\x1a\n" * 50, "image/png")]
BATCH_LINES = '{"custom_id": "1"}\r\n🌀\n'.encode() * 2000
IMAGE_BASE64 = "cHJldGVuZA=="


def stream_chat(client: openai.OpenAI) -> object:
    chunks = client.chat.completions.create(model="gpt-4o", messages=WEATHER_MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == WEATHER_TEXT


def stream_tool_call(client: openai.OpenAI) -> object:
    chunks = client.chat.completions.create(model="gpt-4o", messages=CLOCK_MESSAGES, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call.function for delta in deltas for call in delta.tool_calls or []]
    arguments = "".join(call.arguments or "" for call in calls)
    return ([call.name for call in calls if call.name], json.loads(arguments)) == (["clock"], {"zone": "UTC"})


def create_response(client: openai.OpenAI) -> object:
    return client.responses.create(model="gpt-4o", input="how is the weather?").output_text == WEATHER_TEXT


def stream_response(client: openai.OpenAI) -> object:
    events = list(client.responses.create(model="gpt-4o", input="how is the weather?", stream=True))
    content = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    return (content, events[-1].type) == (WEATHER_TEXT, "response.completed")


def create_speech(client: openai.OpenAI) -> object:
    return client.audio.speech.create(model="tts-1", voice="alloy", input="how is the weather?").content == b"pretend"


def round_trip_file(client: openai.OpenAI) -> object:
    sent = client.files.create(file=("rows.jsonl", BATCH_LINES), purpose="batch")
    back = client.files.content(sent.id).content
    listed = [file.id for file in client.files.list()]
    is_deleted = client.files.delete(sent.id).deleted
    try:
        client.files.retrieve(sent.id)
    except openai.NotFoundError:
        return (sent.bytes, back, sent.id in listed, is_deleted) == (len(BATCH_LINES), BATCH_LINES, True, True)
    return False


def create_batch(client: openai.OpenAI) -> object:
    rows = client.files.create(file=("rows.jsonl", BATCH_LINES), purpose="batch").id
    request = client.batches.create(input_file_id=rows, endpoint="/v1/chat/completions", completion_window="24h")
    return request.id == client.batches.retrieve(request.id).id in [job.id for job in client.batches.list()]


def create_fine_tuning_job(client: openai.OpenAI) -> object:
    rows = client.files.create(file=("rows.jsonl", BATCH_LINES), purpose="fine-tune").id
    request = client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=rows)
    return (
        request.id
        == client.fine_tuning.jobs.retrieve(request.id).id
        in [job.id for job in client.fine_tuning.jobs.list()]
    )


CALLS: Calls = [
    (
        "chat",
        lambda c: (
            c.chat.completions.create(model="gpt-4o", messages=WEATHER_MESSAGES).choices[0].message.content
            == WEATHER_TEXT
        ),
    ),
    ("chat, streamed", stream_chat),
    ("chat, a call streamed", stream_tool_call),
    ("responses", create_response),
    ("responses, streamed", stream_response),
    ("embeddings", lambda c: c.embeddings.create(model="text-embedding-3-small", input="a").data[0].embedding),
    ("moderations", lambda c: c.moderations.create(input="rain").results[0].flagged is False),
    ("images", lambda c: c.images.generate(model="gpt-image-1", prompt="rain").data[0].b64_json == IMAGE_BASE64),
    (
        "edits",
        lambda c: c.images.edit(model="gpt-image-1", prompt="a", image=IMAGE_FILES).data[0].b64_json == IMAGE_BASE64,
    ),
    ("speech", create_speech),
    ("transcriptions", lambda c: c.audio.transcriptions.create(model="whisper-1", file=AUDIO_FILE).text == "Sunny."),
    ("translations", lambda c: c.audio.translations.create(model="whisper-1", file=AUDIO_FILE).text == "Sunny."),
    ("models", lambda c: [model.id for model in c.models.list()]),
    ("files", round_trip_file),
    ("batches", create_batch),
    ("fine_tuning", create_fine_tuning_job),
]

with openai.OpenAI(
    base_url=os.environ["GATEWAY"] + "/v1",
    api_key="provider-key",
    default_headers=aimock_headers("openai"),
    max_retries=0,
    timeout=10,
) as sdk:
    run_calls(CALLS, sdk)
sys.stderr.write(openai.__version__)
