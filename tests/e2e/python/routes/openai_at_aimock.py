"""Calls what a pretend provider that nobody here wrote answers of the OpenAI SDK's routes; `fixtures.json` says what it answers."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import openai
from calls import SAID, at_aimock, make

if TYPE_CHECKING:
    from calls import Calls

ASK = [{"role": "user", "content": "how is the weather?"}]
CLOCK = [{"role": "user", "content": "what time is it?"}]
SOUND = ("sound.wav", b"RIFF\r\n--not-a-boundary\r\n\x00\xff" * 500, "audio/wav")
PICTURES = [("a.png", b"\x89PNG\r\n\x1a\n" * 100, "image/png"), ("b.png", b"\x89PNG\r\n\x1a\n" * 50, "image/png")]
ROWS = '{"custom_id": "1"}\r\n🌀\n'.encode() * 2000
DRAWN = "cHJldGVuZA=="


def chat_streamed(client: openai.OpenAI) -> object:
    chunks = client.chat.completions.create(model="gpt-4o", messages=ASK, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID


def call_streamed(client: openai.OpenAI) -> object:
    chunks = client.chat.completions.create(model="gpt-4o", messages=CLOCK, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call.function for delta in deltas for call in delta.tool_calls or []]
    arguments = "".join(call.arguments or "" for call in calls)
    return ([call.name for call in calls if call.name], json.loads(arguments)) == (["clock"], {"zone": "UTC"})


def respond(client: openai.OpenAI) -> object:
    return client.responses.create(model="gpt-4o", input="how is the weather?").output_text == SAID


def respond_streamed(client: openai.OpenAI) -> object:
    events = list(client.responses.create(model="gpt-4o", input="how is the weather?", stream=True))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    return (said, events[-1].type) == (SAID, "response.completed")


def speak(client: openai.OpenAI) -> object:
    return client.audio.speech.create(model="tts-1", voice="alloy", input="how is the weather?").content == b"pretend"


def file_there_and_back(client: openai.OpenAI) -> object:
    sent = client.files.create(file=("rows.jsonl", ROWS), purpose="batch")
    back = client.files.content(sent.id).content
    listed = [file.id for file in client.files.list()]
    is_deleted = client.files.delete(sent.id).deleted
    try:
        client.files.retrieve(sent.id)
    except openai.NotFoundError:
        return (sent.bytes, back, sent.id in listed, is_deleted) == (len(ROWS), ROWS, True, True)
    return False


def batch(client: openai.OpenAI) -> object:
    rows = client.files.create(file=("rows.jsonl", ROWS), purpose="batch").id
    asked = client.batches.create(input_file_id=rows, endpoint="/v1/chat/completions", completion_window="24h")
    return asked.id == client.batches.retrieve(asked.id).id in [job.id for job in client.batches.list()]


def tuning(client: openai.OpenAI) -> object:
    rows = client.files.create(file=("rows.jsonl", ROWS), purpose="fine-tune").id
    asked = client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=rows)
    return (
        asked.id == client.fine_tuning.jobs.retrieve(asked.id).id in [job.id for job in client.fine_tuning.jobs.list()]
    )


CALLS: Calls = [
    ("chat", lambda c: c.chat.completions.create(model="gpt-4o", messages=ASK).choices[0].message.content == SAID),
    ("chat, streamed", chat_streamed),
    ("chat, a call streamed", call_streamed),
    ("responses", respond),
    ("responses, streamed", respond_streamed),
    ("embeddings", lambda c: c.embeddings.create(model="text-embedding-3-small", input="a").data[0].embedding),
    ("moderations", lambda c: c.moderations.create(input="rain").results[0].flagged is False),
    ("images", lambda c: c.images.generate(model="gpt-image-1", prompt="rain").data[0].b64_json == DRAWN),
    ("edits", lambda c: c.images.edit(model="gpt-image-1", prompt="a", image=PICTURES).data[0].b64_json == DRAWN),
    ("speech", speak),
    ("transcriptions", lambda c: c.audio.transcriptions.create(model="whisper-1", file=SOUND).text == "Sunny."),
    ("translations", lambda c: c.audio.translations.create(model="whisper-1", file=SOUND).text == "Sunny."),
    ("models", lambda c: [model.id for model in c.models.list()]),
    ("files", file_there_and_back),
    ("batches", batch),
    ("fine_tuning", tuning),
]

with openai.OpenAI(
    base_url=os.environ["GATEWAY"] + "/v1",
    api_key="provider-key",
    default_headers=at_aimock("openai"),
    max_retries=0,
    timeout=10,
) as sdk:
    make(CALLS, sdk)
sys.stderr.write(openai.__version__)
