"""Anthropic's message batches. One request submits all lines, and the results are a JSONL file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.edge_messages import JSON_MEDIA_TYPE
from penstock.batches.providers import batch_provider
from penstock.batches.providers.batch_provider import (
    BatchProvider,
    BatchStatus,
    CreatedObject,
    LineResult,
    custom_id_of_line,
)
from penstock.batches.providers.client import Upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import BatchInput, BatchLine, LineFault

SLUG = "anthropic"
STATUS_BY_ERROR_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class RequestCounts(msgspec.Struct):
    """Number of lines in each final state."""

    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class Batch(msgspec.Struct):
    """Message batch object of Anthropic's API."""

    processing_status: str
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)


class ErrorDetail(msgspec.Struct):
    """Message and type of an error."""

    message: str = ""
    type: str = ""


class ErrorEnvelope(msgspec.Struct):
    """Error object together with the id of the request."""

    error: ErrorDetail = msgspec.field(default_factory=ErrorDetail)
    request_id: str | None = None
    type: str = "error"


class LineResponse(msgspec.Struct):
    """Result of one line: a message or an error."""

    type: str
    message: dict[str, Any] = {}
    error: ErrorEnvelope | None = None


class ResultLine(msgspec.Struct):
    """One line of the results file."""

    result: LineResponse


class Anthropic(BatchProvider):
    """Runs batches at Anthropic. Lines are translated to its messages format."""

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:  # noqa: ARG003 - other providers need it
        """Yields an error if the line cannot be translated."""
        return batch_provider.check_translatable(SLUG, line)

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the provider's batch id."""
        upload = Upload("POST", "/v1/messages/batches", JSON_MEDIA_TYPE, _encode_requests(batch_input))
        return (await self._client.upload_and_decode(CreatedObject, upload)).id

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the batch."""
        batch = await self._client.request_json(Batch, "GET", f"/v1/messages/batches/{name}")
        counts = batch.request_counts
        failed = counts.errored + counts.canceled + counts.expired
        if batch.processing_status != "ended":
            return BatchStatus("in_progress", counts.succeeded, failed)
        status = "cancelled" if counts.canceled else "expired" if counts.expired else "completed"
        return BatchStatus(status, counts.succeeded, failed, (f"/v1/messages/batches/{name}/results",))

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the batch."""
        await self._client.send_request("POST", f"/v1/messages/batches/{name}/cancel")

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Parses the result of one line."""
        result_line = msgspec.json.decode(result, type=ResultLine).result
        if result_line.type == "succeeded":
            return batch_provider.translate_result(
                SLUG, line, 200, result_line.message, str(result_line.message.get("id", ""))
            )
        if result_line.type == "errored" and result_line.error:
            status = STATUS_BY_ERROR_TYPE.get(result_line.error.error.type, 500)
            return batch_provider.translate_result(
                SLUG, line, status, result_line.error, result_line.error.request_id or ""
            )
        code = "batch_expired" if result_line.type == "expired" else "batch_cancelled"
        return LineResult(None, {"code": code, "message": "the batch ended before this line was answered"})


async def _encode_requests(batch_input: BatchInput) -> AsyncIterator[bytes]:
    before = b'{"requests":['
    async for number, line in batch_input.requests():
        params, _ = batch_provider.translate_line(SLUG, line)
        yield before + msgspec.json.encode({"custom_id": custom_id_of_line(number), "params": params})
        before = b","
    yield b"]}"
