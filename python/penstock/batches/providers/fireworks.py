"""Fireworks's batches. A dataset with all requests, one JSON line each, is the input of an inference job. The output
dataset of the job lists the URLs of its files.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.providers import batch_provider
from penstock.batches.providers.batch_provider import (
    BatchProvider,
    BatchStatus,
    LineResult,
    ProviderSettings,
    custom_id_of_line,
)
from penstock.batches.providers.client import AlreadyExistsError, ProviderNotFoundError, Upload, build_multipart_form
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import BatchInput, BatchLine, LineFault

ACCOUNT, CHATS = "fireworks_account_id", "/v1/chat/completions"
JOBS, DATASETS = "/v1/batch_jobs", "/v1/batch_datasets"
# Batch status for each final state at Fireworks. All other states mean that the job is in progress.
STATUS_BY_STATE = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled", "EXPIRED": "expired"}
LOWEST, HIGHEST = 400, 599


class JobProgress(msgspec.Struct, rename="camel"):
    """Number of lines that succeeded and that failed."""

    successfully_processed_requests: int = 0
    failed_requests: int = 0


class JobError(msgspec.Struct):
    """Error message of a failed job."""

    message: str = ""


class Job(msgspec.Struct, rename="camel"):
    """Batch inference job of Fireworks's API."""

    state: str
    job_progress: JobProgress | None = None
    status: JobError | None = None


class ResultLine(msgspec.Struct):
    """One line of the results file."""

    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Fireworks(BatchProvider):
    """Runs batches at Fireworks. Chat lines are sent untranslated; the model is set once for the job."""

    CAN_RESUBMIT = True

    @classmethod
    def required_options(cls, stated: ProviderSettings) -> dict[str, str]:
        """Returns the Fireworks account; rejects the batch if it is not set."""
        if account := stated.find_option(ACCOUNT):
            return {ACCOUNT: account}
        message = f"need an account: set {ACCOUNT!r} on the saved provider, or send x-gateway-fireworks-account-id"
        raise field_error("gateway_options", message)

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
        """Yields an error if the line is not a chat or is for another model."""
        if line.url != CHATS:
            yield "invalid_url", f"url is {line.url!r}: batches of this provider support only {CHATS!r}", "url"
        yield from batch_provider.check_same_model(line, first)

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the name of the job."""
        client, name = self._client, f"gateway-{self._client.row['id']}"
        datasets_path = f"accounts/{client.row['job']['needs'][ACCOUNT]}/datasets"
        dataset: dict[str, Any] = {"datasetId": name, "dataset": {"userUploaded": {}}}
        await self._create_if_absent(DATASETS, dataset)
        boundary = secrets.token_hex(16)
        await client.send_upload(
            Upload("POST", f"{DATASETS}/{name}", *build_multipart_form(boundary, {}, _encode_lines(batch_input)))
        )
        job = {
            "displayName": name,
            "model": await batch_provider.model_of_batch(batch_input),
            "inputDatasetId": f"{datasets_path}/{name}",
            "outputDatasetId": f"{datasets_path}/{name}-out",
        }
        await self._create_if_absent(f"{JOBS}?batchInferenceJobId={name}", job)
        return name

    async def _create_if_absent(self, path: str, resource: dict[str, Any]) -> None:
        """Creates a resource under a name that contains the batch id. If the name is taken, an earlier attempt created
        the resource.
        """
        try:
            await self._client.request_json(dict[str, Any], "POST", path, msgspec.json.encode(resource))
        except AlreadyExistsError:
            return

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the job."""
        try:
            job = await self._client.request_json(Job, "GET", f"{JOBS}/{name}")
        except ProviderNotFoundError:
            # `cancel` has deleted the job.
            return BatchStatus("cancelled")
        progress = job.job_progress or JobProgress()
        status = STATUS_BY_STATE.get(job.state.removeprefix("JOB_STATE_"), "in_progress")
        reason = job.status.message if job.status else ""
        counts = (progress.successfully_processed_requests, progress.failed_requests)
        return BatchStatus(status, *counts, (f"/v1/files/{name}-out/content",), reason)

    async def cancel(self, name: str) -> None:
        """Cancels the job by deleting it."""
        await self._client.send_request("DELETE", f"{JOBS}/{name}")

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:  # noqa: ARG002 - other providers need it
        """Parses the result of one line."""
        result_line = msgspec.json.decode(result, type=ResultLine)
        if result_line.error is not None or result_line.response is None:
            error = result_line.error or {"message": "the model returned no response"}
            code = error.get("code")
            status = code if isinstance(code, int) and LOWEST <= code <= HIGHEST else 500
            return LineResult({"status_code": status, "request_id": "", "body": {"error": error}}, None)
        return LineResult(
            {"status_code": 200, "request_id": str(result_line.response.get("id", "")), "body": result_line.response},
            None,
        )


async def _encode_lines(batch_input: BatchInput) -> AsyncIterator[bytes]:
    async for number, line in batch_input.requests():
        body = {name: value for name, value in line.body.items() if name != "model"}
        yield msgspec.json.encode({"custom_id": custom_id_of_line(number), "body": body})
        yield b"\n"
