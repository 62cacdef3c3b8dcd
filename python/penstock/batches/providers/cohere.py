"""Cohere's batches. A dataset with all requests, one JSON line each, is the input of a batch. Cohere validates the
dataset first. The output of the batch is a dataset in Avro.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.batches.providers import batch_provider
from penstock.batches.providers.batch_provider import (
    BatchProvider,
    BatchStatus,
    CreatedObject,
    LineResult,
    custom_id_of_line,
)
from penstock.batches.providers.client import ProviderBusyError, RequestRejectedError, Upload, build_multipart_form
from penstock.errors import IncompleteResponseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import BatchInput, BatchLine, LineFault
    from penstock.batches.providers.client import BatchClient

SLUG, EMBEDDINGS = "cohere", "/v1/embeddings"
JOBS, DATASETS, FILES = "/v1/batch_jobs", "/v1/batch_datasets", "/v1/files"
CHAT_KIND, EMBED_KIND = "batch-chat-v2-input", "batch-embed-v2-input"
# Fields that a chat line of a Cohere dataset may have; single requests allow more.
CHAT_FIELDS = frozenset(
    [
        "messages",
        "tools",
        "temperature",
        "p",
        "k",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "max_tokens",
        "logprobs",
        "reasoning",
        "thinking_budget",
    ]
)
EMBED_FIELDS = frozenset(["texts", "images", "input_type", "embedding_types", "output_dimension", "truncate"])
CONTENT_PART_TYPES = frozenset(["text", "thinking", "image_url"])
# Batch status for each final state at Cohere. All other states mean that the batch is in progress.
STATUS_BY_STATE = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "cancelled"}
READY, WRONG = "validated", frozenset(["failed", "skipped"])


class Batch(msgspec.Struct):
    """Batch object of Cohere's API."""

    id: str
    status: str
    output_dataset_id: str | None = None
    num_successful_records: int | None = None
    num_failed_records: int | None = None
    status_reason: str | None = None


class BatchEnvelope(msgspec.Struct):
    """Response that contains a batch object."""

    batch: Batch


class Dataset(msgspec.Struct):
    """Validation state of a dataset."""

    validation_status: str
    validation_error: str | None = None


class DatasetEnvelope(msgspec.Struct):
    """Response that contains a dataset object."""

    dataset: Dataset


class ResultRecord(msgspec.Struct):
    """One record of the results dataset."""

    custom_id: str
    body: dict[str, Any] | str | None = None
    # Set instead of `body` if the record contains a complete response.
    response: dict[str, Any] | str | None = None
    error: dict[str, Any] | str | None = None


class Cohere(BatchProvider):
    """Runs batches at Cohere. Lines are translated to Cohere's format, limited to the fields that its batches
    support.
    """

    def __init__(self, client: BatchClient) -> None:
        """Starts without an uploaded dataset."""
        super().__init__(client)
        self._dataset = ""

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
        """Yields an error if the line is for another model, cannot be translated, or has fields that batches do not
        support.
        """
        yield from batch_provider.check_same_model(line, first)
        untranslatable = list(batch_provider.check_translatable(SLUG, line))
        yield from untranslatable or _validate_batch_fields(line)

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the batch id. Raises `ProviderBusyError` while Cohere still validates the
        dataset.
        """
        client = self._client
        name = f"gateway-{client.row['id']}"
        if not self._dataset:
            kind = EMBED_KIND if client.row["endpoint"] == EMBEDDINGS else CHAT_KIND
            content = build_multipart_form(secrets.token_hex(16), {}, _encode_lines(batch_input), field="data")
            self._dataset = (
                await client.upload_and_decode(
                    CreatedObject, Upload("POST", f"{DATASETS}/{name}?type={kind}", *content)
                )
            ).id
        dataset = await self._fetch_dataset(self._dataset)
        if dataset.validation_status in WRONG:
            raise RequestRejectedError(dataset.validation_error or "Cohere rejected the lines of this batch")
        if dataset.validation_status != READY:
            message = "Cohere is still validating the lines of this batch"
            raise ProviderBusyError(message)
        payload = {
            "name": name,
            "input_dataset_id": self._dataset,
            "model": await batch_provider.model_of_batch(batch_input),
        }
        return (await client.request_json(BatchEnvelope, "POST", JOBS, msgspec.json.encode(payload))).batch.id

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the batch."""
        batch = (await self._client.request_json(BatchEnvelope, "GET", f"{JOBS}/{quote(name, safe='')}")).batch
        status = STATUS_BY_STATE.get(batch.status.removeprefix("BATCH_STATUS_"), "in_progress")
        counts = (batch.num_successful_records or 0, batch.num_failed_records or 0)
        paths = (batch.output_dataset_id,) if batch.output_dataset_id else ()
        return BatchStatus(status, *counts, paths, batch.status_reason or "")

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the batch."""
        await self._client.send_request("POST", f"{JOBS}/{quote(name, safe='')}/cancel")

    async def fetch_results(self, path: str) -> AsyncIterator[tuple[int, bytes]]:
        """Yields the results of a dataset, from all of its files, with their line numbers."""
        dataset = await self._fetch_dataset(path)
        if dataset.validation_status in WRONG:
            raise RequestRejectedError(dataset.validation_error or "Cohere's results cannot be read")
        if dataset.validation_status != READY:
            message = "Cohere is still validating the results of this batch"
            raise IncompleteResponseError(message)
        async for result in self._client.download_results(f"{FILES}/{quote(path, safe='')}/content", self.line_number):
            yield result

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Parses the result of one line."""
        result_record = msgspec.json.decode(result, type=ResultRecord)
        raw_body = result_record.body or result_record.response
        if result_record.error or not raw_body:
            return LineResult(None, _error_object(result_record.error))
        body: Any = msgspec.json.decode(raw_body) if isinstance(raw_body, str) else raw_body
        body = body.get("body", body)
        return batch_provider.translate_result(SLUG, line, 200, body, str(body.get("id") or ""))

    async def _fetch_dataset(self, name: str) -> Dataset:
        return (await self._client.request_json(DatasetEnvelope, "GET", f"{DATASETS}/{quote(name, safe='')}")).dataset


def _error_object(error: dict[str, Any] | str | None) -> dict[str, Any]:
    message = error.get("message") if isinstance(error, dict) else error
    return {"code": "provider_failed", "message": str(message or "the model returned no response")}


def _validate_batch_fields(line: BatchLine) -> Iterator[LineFault]:
    """Yields an error for parts of a line that Cohere supports in single requests but not in batches."""
    body = _render_line(line)
    unknown = body.keys() - (EMBED_FIELDS if line.url == EMBEDDINGS else CHAT_FIELDS)
    contents = (message.get("content") for message in body.get("messages", []))
    kinds = {part.get("type") for content in contents for part in content or ()} - CONTENT_PART_TYPES
    if wrong := sorted(unknown) + [f"content of type {kind!r}" for kind in sorted(map(str, kinds))]:
        message = f"not supported in a batch of cohere: {', '.join(wrong)}; hint: use completion_window 'immediate'"
        yield "untranslatable", message, "body"


def _render_line(line: BatchLine) -> dict[str, Any]:
    """Returns a line as a dataset contains it: the translated request without its model. Plain values replace some
    nested objects.
    """
    encoded, _ = batch_provider.translate_line(SLUG, line)
    body: dict[str, Any] = msgspec.json.decode(encoded)
    for name in ("model", "stream"):
        body.pop(name, None)
    if thinking := body.pop("thinking", None):
        body["reasoning"] = thinking.get("type") != "disabled"
        if budget := thinking.get("token_budget"):
            body["thinking_budget"] = budget
    for message in body.get("messages", []):
        if isinstance(content := message.get("content"), str):
            message["content"] = [{"type": "text", "text": content}]
        for part in message.get("content") or ():
            if part.get("type") == "image_url":
                part["image_url"] = part["image_url"]["url"]
    for tool in body.get("tools", []):
        if isinstance(parameters := tool["function"].get("parameters"), dict):
            tool["function"]["parameters"] = msgspec.json.encode(parameters).decode()
    return body


async def _encode_lines(batch_input: BatchInput) -> AsyncIterator[bytes]:
    async for number, line in batch_input.requests():
        yield msgspec.json.encode({"custom_id": custom_id_of_line(number), "body": _render_line(line)})
        yield b"\n"
