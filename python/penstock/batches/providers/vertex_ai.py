"""Vertex AI's batches: an object with all lines in Cloud Storage, a prediction job over it, an object with the answers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.providers import batch_provider, object_batches
from penstock.batches.providers.batch_provider import Seen, Stated, Told, Way, name_of, number_of
from penstock.errors import LostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import Fault, Input, Line

SLUG = "vertex-ai"
BUCKET = "vertex_storage_bucket_name"
CLAUDE, GEMINI = "anthropic", "google"
EMBEDDINGS = "/v1/embeddings"
# By which a line of Gemini's is known again: it is said with the request, and the request with the answer.
LABEL = "gateway_line"
# Those that are not named are on their way.
STATES = {
    "JOB_STATE_SUCCEEDED": "completed",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "completed",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "expired",
}


class Named(msgspec.Struct):
    """What was made there, with where it is."""

    name: str


class Place(msgspec.Struct, rename="camel"):
    """Where the answers are."""

    gcs_output_directory: str = ""


class Counts(msgspec.Struct, rename="camel"):
    """How many lines there are; Google writes such numbers as texts."""

    successful_count: int | str = 0
    failed_count: int | str = 0


class Problem(msgspec.Struct):
    """What is wrong."""

    message: str = ""
    code: int = 500


class Job(msgspec.Struct, rename="camel"):
    """A job."""

    state: str
    output_info: Place = msgspec.field(default_factory=Place)
    completion_stats: Counts = msgspec.field(default_factory=Counts)
    error: Problem = msgspec.field(default_factory=Problem)


class Request(msgspec.Struct):
    """A request as it is said again with its answer."""

    labels: dict[str, str] = {}


class Result(msgspec.Struct):
    """A line of the answers."""

    custom_id: str = ""
    status: str = ""
    request: Request = msgspec.field(default_factory=Request)
    response: dict[str, Any] = {}


class Failure(msgspec.Struct):
    """An error of Google's, as it stands at the end of a line's status."""

    error: Problem


class VertexAi(Way):
    """Lines are said as the model's vendor takes them, Google or Anthropic."""

    @classmethod
    def needs(cls, stated: Stated) -> dict[str, str]:
        """Give the bucket."""
        return {BUCKET: object_batches.needed(stated, BUCKET, "a bucket of Cloud Storage")}

    @classmethod
    def faults(cls, line: Line, first: Line) -> Iterator[Fault]:
        """Say what cannot be said."""
        yield from batch_provider.another_model(line, first)
        if line.url == EMBEDDINGS:
            yield (
                "invalid_url",
                "url is '/v1/embeddings', which vertex-ai has no batches of here: expected chats",
                "url",
            )
        elif not _vendor(str(line.body.get("model")))[0]:
            message = f"body.model is {line.body.get('model')!r}: batches are of Gemini and Claude"
            yield "invalid_model", message, "body.model"
        else:
            yield from batch_provider.unsaid(SLUG, line)

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        own = self._talk.row["id"]
        await object_batches.put(self._talk, f"{own}.jsonl", _requests(given))
        place = f"gs://{self._talk.row['job']['needs'][BUCKET]}/{object_batches.FOLDER}/{own}"
        vendor, model = _vendor(await batch_provider.model_of(given))
        made = {
            "displayName": f"gateway-batch-{own}",
            "model": f"publishers/{vendor}/models/{model}",
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [f"{place}.jsonl"]}},
            "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": place}},
        }
        job = await self._talk.ask(Named, "POST", object_batches.JOBS, msgspec.json.encode(made))
        return job.name.rpartition("/")[2]

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        job = await self._talk.ask(Job, "GET", f"{object_batches.JOBS}/{name}")
        counts, folder = job.completion_stats, job.output_info.gcs_output_directory.rstrip("/")
        ours = f"gs://{self._talk.row['job']['needs'][BUCKET]}/{object_batches.FOLDER}/"
        status = STATES.get(job.state, "in_progress")
        if folder and not folder.startswith(ours):
            message = f"the answers are at {folder!r}, which is not below {ours!r}"
            raise LostError(message)
        paths = (object_batches.path(f"{folder.removeprefix(ours)}/predictions.jsonl"),) if folder else ()
        return Seen(status, int(counts.successful_count), int(counts.failed_count), paths, job.error.message)

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.say("POST", f"{object_batches.JOBS}/{name}/cancel")

    def number(self, result: bytes) -> int | None:
        """Say which line a result is of."""
        found = msgspec.json.decode(result, type=Result)
        return number_of(found.custom_id or found.request.labels.get(LABEL, ""))

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        found = msgspec.json.decode(result, type=Result)
        if found.response and not found.status:
            return batch_provider.told(SLUG, line, 200, found.response, str(found.response.get("responseId", "")))
        problem = _problem(found.status)
        return batch_provider.told(
            SLUG, line, problem.code, {"error": {"code": problem.code, "message": problem.message}}
        )


def _problem(status: str) -> Problem:
    """Read the status of a line: words, and often an error as JSON behind them."""
    _, brace, rest = status.partition("{")
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(brace + rest, type=Failure).error
    return Problem(status or "the model gave no answer")


def _vendor(model: str) -> tuple[str, str]:
    """Say whose model it is, and what it is called there; nobody's where it has no batches."""
    first, dot, rest = model.partition(".")
    if dot and first in {CLAUDE, GEMINI}:
        return first, rest
    return (CLAUDE if model.startswith("claude") else GEMINI if model.startswith("gemini") else ""), model


async def _requests(given: Input) -> AsyncIterator[bytes]:
    async for number, line in given.requests():
        body, _ = batch_provider.said(SLUG, line)
        name = name_of(number)
        if _vendor(str(line.body["model"]))[0] == CLAUDE:
            yield msgspec.json.encode({"custom_id": name, "request": body})
        else:
            request: dict[str, Any] = msgspec.json.decode(body)
            request["labels"] = {**request.get("labels", {}), LABEL: name}
            yield msgspec.json.encode({"request": request})
        yield b"\n"
