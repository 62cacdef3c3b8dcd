"""Batches of providers with OpenAI's API. An uploaded file with all requests, one JSON line each, is the input of a
batch. The batch writes a file with the results.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.batches.files import BATCH
from penstock.batches.providers.batch_provider import (
    BatchProvider,
    BatchStatus,
    CreatedObject,
    LineResult,
    custom_id_of_line,
)
from penstock.batches.providers.client import RequestRejectedError, Upload, build_multipart_form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.input import BatchInput, BatchLine


# Metadata key under which the provider's batch stores the gateway's batch id.
METADATA_KEY = "gateway_batch"
# Maximum number of list pages searched for a batch that may have been submitted.
MAX_LIST_PAGES = 10


class ListedBatch(msgspec.Struct):
    """One batch of a list response."""

    id: str
    metadata: dict[str, str] | None = None


class BatchPage(msgspec.Struct):
    """One page of batches, newest first."""

    data: list[ListedBatch]
    has_more: bool = False


class RequestCounts(msgspec.Struct):
    """Number of lines that succeeded and that failed."""

    completed: int = 0
    failed: int = 0


class ErrorDetail(msgspec.Struct):
    """Message of one error."""

    message: str = ""


class ErrorList(msgspec.Struct):
    """Errors of a batch."""

    data: list[ErrorDetail] = []


class Batch(msgspec.Struct):
    """Batch object of OpenAI's API."""

    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts | None = None
    errors: ErrorList | None = None


class ResultLine(msgspec.Struct):
    """One line of the results file."""

    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class OpenAi(BatchProvider):
    """Runs batches at providers with OpenAI's API. Lines and results are passed on untranslated."""

    CAN_RESUBMIT = True

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the provider's batch id."""
        boundary = secrets.token_hex(16)
        upload = Upload(
            "POST", "/v1/files", *build_multipart_form(boundary, {"purpose": "batch"}, _encode_lines(batch_input))
        )
        row = self._client.row
        payload = {
            "input_file_id": (await self._client.upload_and_decode(CreatedObject, upload)).id,
            "endpoint": row["endpoint"],
            "completion_window": row["completion_window"],
            "metadata": {METADATA_KEY: BATCH + row["id"]},
        }
        return (await self._client.request_json(CreatedObject, "POST", "/v1/batches", msgspec.json.encode(payload))).id

    async def find_submitted(self) -> str | None:
        """Searches for a batch of the provider with the id of this batch in its metadata. Returns its id, or `None`."""
        after = ""
        for _ in range(MAX_LIST_PAGES):
            try:
                page = await self._client.request_json(BatchPage, "GET", f"/v1/batches?limit=100{after}")
            except RequestRejectedError:
                # The provider does not list batches, so nothing can be found; the caller submits the batch.
                return None
            for batch in page.data:
                if (batch.metadata or {}).get(METADATA_KEY) == BATCH + self._client.row["id"]:
                    return batch.id
            if not page.has_more or not page.data:
                break
            after = f"&after={quote(page.data[-1].id, safe='')}"
        return None

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the batch."""
        batch = await self._client.request_json(Batch, "GET", f"/v1/batches/{name}")
        counts = batch.request_counts or RequestCounts()
        paths = [f"/v1/files/{file}/content" for file in (batch.output_file_id, batch.error_file_id) if file]
        reason = next((problem.message for problem in (batch.errors or ErrorList()).data), "")
        return BatchStatus(batch.status, counts.completed, counts.failed, tuple(paths), reason)

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the batch."""
        await self._client.send_request("POST", f"/v1/batches/{name}/cancel")

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:  # noqa: ARG002 - other providers need it
        """Parses the result of one line."""
        read = msgspec.json.decode(result, type=ResultLine)
        return LineResult(read.response, read.error)


async def _encode_lines(batch_input: BatchInput) -> AsyncIterator[bytes]:
    async for number, line in batch_input.requests():
        yield msgspec.json.encode(
            {"custom_id": custom_id_of_line(number), "method": "POST", "url": line.url, "body": line.body}
        )
        yield b"\n"
