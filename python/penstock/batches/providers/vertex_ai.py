"""Vertex AI's batches. A Cloud Storage object with all requests, one JSON line each, is the input of a prediction job.
The job writes an object with the results.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.providers import batch_provider, object_batches
from penstock.batches.providers.batch_provider import (
    BatchProvider,
    BatchStatus,
    LineResult,
    ProviderSettings,
    custom_id_of_line,
    parse_line_number,
)
from penstock.errors import IncompleteResponseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import BatchInput, BatchLine, LineFault

SLUG = "vertex-ai"
BUCKET = "vertex_storage_bucket_name"
CLAUDE, GEMINI = "anthropic", "google"
EMBEDDINGS_PATH = "/v1/embeddings"
# Label that identifies the line of a Gemini result: Gemini returns each request, with its labels, next to the response.
LINE_LABEL = "gateway_line"
# Batch status for each final job state of Vertex AI. All other states mean that the job is in progress.
STATUS_BY_STATE = {
    "JOB_STATE_SUCCEEDED": "completed",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "completed",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "expired",
}


class CreatedJob(msgspec.Struct):
    """Response to the creation of a job; `name` is its resource name."""

    name: str


class OutputInfo(msgspec.Struct, rename="camel"):
    """Location of the results."""

    gcs_output_directory: str = ""


class CompletionStats(msgspec.Struct, rename="camel"):
    """Number of lines that succeeded and that failed; Google writes these numbers as strings."""

    successful_count: int | str = 0
    failed_count: int | str = 0


class ErrorDetail(msgspec.Struct):
    """Message and code of an error."""

    message: str = ""
    code: int = 500


class Job(msgspec.Struct, rename="camel"):
    """Batch prediction job of Vertex AI."""

    state: str
    output_info: OutputInfo = msgspec.field(default_factory=OutputInfo)
    completion_stats: CompletionStats = msgspec.field(default_factory=CompletionStats)
    error: ErrorDetail = msgspec.field(default_factory=ErrorDetail)


class EchoedRequest(msgspec.Struct):
    """The request of a line, which Gemini's results file repeats next to the response."""

    labels: dict[str, str] = {}


class ResultLine(msgspec.Struct):
    """One JSON line of the batch's output file in Cloud Storage."""

    custom_id: str = ""
    status: str = ""
    request: EchoedRequest = msgspec.field(default_factory=EchoedRequest)
    response: dict[str, Any] = {}


class ErrorEnvelope(msgspec.Struct):
    """Google error object, which is appended to the `status` text of a failed line."""

    error: ErrorDetail


class VertexAi(BatchProvider):
    """Runs batches at Vertex AI. Lines are translated to the format of the model's vendor, Google or Anthropic."""

    @classmethod
    def required_options(cls, stated: ProviderSettings) -> dict[str, str]:
        """Returns the storage bucket; rejects the batch if it is not set."""
        return {BUCKET: object_batches.require_option(stated, BUCKET, "a bucket of Cloud Storage")}

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
        """Yields an error if the line is for another model, is not a chat of a supported model, or cannot be
        translated.
        """
        yield from batch_provider.check_same_model(line, first)
        if line.url == EMBEDDINGS_PATH:
            yield (
                "invalid_url",
                "url is '/v1/embeddings': batches of vertex-ai support only chats",
                "url",
            )
        elif not _split_vendor(str(line.body.get("model")))[0]:
            message = f"body.model is {line.body.get('model')!r}: batches support only models of Gemini and Claude"
            yield "invalid_model", message, "body.model"
        else:
            yield from batch_provider.check_translatable(SLUG, line)

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the id of the job."""
        batch_id = self._client.row["id"]
        await object_batches.put_object(self._client, f"{batch_id}.jsonl", _encode_requests(batch_input))
        base_uri = f"gs://{self._client.row['job']['needs'][BUCKET]}/{object_batches.OBJECT_FOLDER}/{batch_id}"
        vendor, model = _split_vendor(await batch_provider.model_of_batch(batch_input))
        payload = {
            "displayName": f"gateway-batch-{batch_id}",
            "model": f"publishers/{vendor}/models/{model}",
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [f"{base_uri}.jsonl"]}},
            "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": base_uri}},
        }
        job = await self._client.request_json(
            CreatedJob, "POST", object_batches.JOBS_PATH, msgspec.json.encode(payload)
        )
        return job.name.rpartition("/")[2]

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the job. Raises `IncompleteResponseError` if the results are outside the
        gateway's folder.
        """
        job = await self._client.request_json(Job, "GET", f"{object_batches.JOBS_PATH}/{name}")
        counts, folder = job.completion_stats, job.output_info.gcs_output_directory.rstrip("/")
        base_uri = f"gs://{self._client.row['job']['needs'][BUCKET]}/{object_batches.OBJECT_FOLDER}/"
        status = STATUS_BY_STATE.get(job.state, "in_progress")
        if folder and not folder.startswith(base_uri):
            message = f"the results are at {folder!r}, which is not below {base_uri!r}"
            raise IncompleteResponseError(message)
        paths = (object_batches.object_path(f"{folder.removeprefix(base_uri)}/predictions.jsonl"),) if folder else ()
        return BatchStatus(status, int(counts.successful_count), int(counts.failed_count), paths, job.error.message)

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the job."""
        await self._client.send_request("POST", f"{object_batches.JOBS_PATH}/{name}/cancel")

    def line_number(self, result: bytes) -> int | None:
        """Returns the number of the line that a result belongs to."""
        result_line = msgspec.json.decode(result, type=ResultLine)
        return parse_line_number(result_line.custom_id or result_line.request.labels.get(LINE_LABEL, ""))

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Parses the result of one line."""
        result_line = msgspec.json.decode(result, type=ResultLine)
        if result_line.response and not result_line.status:
            return batch_provider.translate_result(
                SLUG, line, 200, result_line.response, str(result_line.response.get("responseId", ""))
            )
        problem = _parse_error_status(result_line.status)
        return batch_provider.translate_result(
            SLUG, line, problem.code, {"error": {"code": problem.code, "message": problem.message}}
        )


def _parse_error_status(status: str) -> ErrorDetail:
    """Parses the status of a line: text, often followed by an error object as JSON."""
    _, brace, rest = status.partition("{")
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(brace + rest, type=ErrorEnvelope).error
    return ErrorDetail(status or "the model returned no response")


def _split_vendor(model: str) -> tuple[str, str]:
    """Splits the name of a model into its vendor and the vendor's own name of the model. The vendor is empty if Vertex
    AI runs no batches of the model.
    """
    first, dot, rest = model.partition(".")
    if dot and first in {CLAUDE, GEMINI}:
        return first, rest
    return (CLAUDE if model.startswith("claude") else GEMINI if model.startswith("gemini") else ""), model


async def _encode_requests(batch_input: BatchInput) -> AsyncIterator[bytes]:
    async for number, line in batch_input.requests():
        body, _ = batch_provider.translate_line(SLUG, line)
        name = custom_id_of_line(number)
        if _split_vendor(str(line.body["model"]))[0] == CLAUDE:
            yield msgspec.json.encode({"custom_id": name, "request": body})
        else:
            request: dict[str, Any] = msgspec.json.decode(body)
            request["labels"] = {**request.get("labels", {}), LINE_LABEL: name}
            yield msgspec.json.encode({"request": request})
        yield b"\n"
