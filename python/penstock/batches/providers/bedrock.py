"""Bedrock's batches. An S3 object with all requests, one JSON line each, is the input of a model invocation job. The
job writes an object with the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.batches.providers import batch_provider, object_batches
from penstock.batches.providers.batch_provider import BatchProvider, BatchStatus, LineResult, ProviderSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import BatchInput, BatchLine, LineFault

SLUG = "bedrock"
BUCKET, ROLE = "aws_s3_bucket", "role_arn"
EMBEDDINGS_PATH = "/v1/embeddings"
# Batch status for each final job status of Bedrock. All other job statuses mean that the job is in progress.
STATUS_BY_JOB_STATUS = {
    "Completed": "completed",
    # The job reached its time limit before it had processed all lines. The remaining lines have no result.
    "PartiallyCompleted": "completed",
    "Failed": "failed",
    "Stopped": "cancelled",
    "Expired": "expired",
}


class CreatedJob(msgspec.Struct, rename="camel"):
    """Response to the creation of a job."""

    job_arn: str


class Job(msgspec.Struct, rename="camel"):
    """Model invocation job of Bedrock's API."""

    status: str
    message: str = ""
    success_record_count: int = 0
    error_record_count: int = 0


class RecordError(msgspec.Struct, rename="camel"):
    """Error of a line that has no response."""

    error_code: int = 500
    error_message: str = ""


class ResultRecord(msgspec.Struct, rename="camel"):
    """One line of the results object."""

    record_id: str
    model_output: dict[str, Any] | None = None
    error: RecordError | None = None


class Bedrock(BatchProvider):
    """Runs batches at Bedrock. Chat lines are translated to the Converse format, embedding lines to the model's own
    format.
    """

    ALLOWED_OPTIONS = frozenset([ROLE])
    CAN_RESUBMIT = True

    @classmethod
    def required_options(cls, stated: ProviderSettings) -> dict[str, str]:
        """Returns the S3 bucket and the IAM role with which Bedrock reads and writes it."""
        bucket = object_batches.require_option(stated, BUCKET, "a bucket of S3")
        role = stated.options.get(ROLE) or object_batches.require_option(
            stated, "aws_batch_role_arn", "the role that runs batches"
        )
        return {BUCKET: bucket, ROLE: role}

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
        """Yields an error if the line is for another model or cannot be translated."""
        yield from batch_provider.check_same_model(line, first)
        yield from batch_provider.check_translatable(SLUG, line)

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the ARN of the job."""
        row, needs = self._client.row, self._client.row["job"]["needs"]
        batch_id = row["id"]
        await object_batches.put_object(self._client, f"{batch_id}.jsonl", _encode_records(batch_input))
        base_uri = f"s3://{needs[BUCKET]}/{object_batches.OBJECT_FOLDER}/{batch_id}"
        payload = {
            "jobName": f"gateway-batch-{batch_id}",
            "roleArn": needs[ROLE],
            # Idempotency token: a repeated request does not create a second job.
            "clientRequestToken": batch_id,
            "modelId": await batch_provider.model_of_batch(batch_input),
            "modelInvocationType": "InvokeModel" if row["endpoint"] == EMBEDDINGS_PATH else "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": f"{base_uri}.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"{base_uri}/"}},
        }
        return (
            await self._client.request_json(CreatedJob, "POST", object_batches.JOBS_PATH, msgspec.json.encode(payload))
        ).job_arn

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the job."""
        job = await self._client.request_json(Job, "GET", _job_path(name))
        batch_id, job_id = self._client.row["id"], name.rpartition("/")[2]
        paths = (object_batches.object_path(f"{batch_id}/{job_id}/{batch_id}.jsonl.out"),)
        status = STATUS_BY_JOB_STATUS.get(job.status, "in_progress")
        return BatchStatus(status, job.success_record_count, job.error_record_count, paths, job.message)

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the job."""
        await self._client.send_request("POST", f"{_job_path(name)}/cancel")

    def line_number(self, result: bytes) -> int | None:
        """Returns the number of the line that a result belongs to."""
        return int(msgspec.json.decode(result, type=ResultRecord).record_id)

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Parses the result of one line."""
        result_record = msgspec.json.decode(result, type=ResultRecord)
        if result_record.model_output is not None:
            return batch_provider.translate_result(SLUG, line, 200, result_record.model_output)
        problem = result_record.error or RecordError()
        return batch_provider.translate_result(SLUG, line, problem.error_code, {"message": problem.error_message})


def _job_path(arn: str) -> str:
    return f"{object_batches.JOBS_PATH}/{quote(arn, safe='')}"


async def _encode_records(batch_input: BatchInput) -> AsyncIterator[bytes]:
    async for number, line in batch_input.requests():
        body, _ = batch_provider.translate_line(SLUG, line)
        # Bedrock requires a record id of eleven alphanumeric characters.
        yield msgspec.json.encode({"recordId": f"{number:011}", "modelInput": body})
        yield b"\n"
