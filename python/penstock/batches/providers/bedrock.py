"""Bedrock's batches: an object with all lines in S3, a model invocation job over it, an object with the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.batches.providers import batch_provider, object_batches
from penstock.batches.providers.batch_provider import Seen, Stated, Told, Way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import Fault, Input, Line

SLUG = "bedrock"
BUCKET, ROLE = "aws_s3_bucket", "role_arn"
EMBEDDINGS = "/v1/embeddings"
# Those that are not named are on their way.
STATUSES = {
    "Completed": "completed",
    # What there was no time for has no answer.
    "PartiallyCompleted": "completed",
    "Failed": "failed",
    "Stopped": "cancelled",
    "Expired": "expired",
}


class Made(msgspec.Struct, rename="camel"):
    """A job that was made."""

    job_arn: str


class Job(msgspec.Struct, rename="camel"):
    """A job."""

    status: str
    message: str = ""
    success_record_count: int = 0
    error_record_count: int = 0


class Problem(msgspec.Struct, rename="camel"):
    """Why a line has no answer."""

    error_code: int = 500
    error_message: str = ""


class Result(msgspec.Struct, rename="camel"):
    """A line of the answers."""

    record_id: str
    model_output: dict[str, Any] | None = None
    error: Problem | None = None


class Bedrock(Way):
    """Lines are said as Converse takes them, or as the model does where they are to be embedded."""

    OPTIONS = frozenset([ROLE])
    KNOWS_AGAIN = True

    @classmethod
    def needs(cls, stated: Stated) -> dict[str, str]:
        """Give the bucket, and the role in which Bedrock reads and writes it."""
        bucket = object_batches.needed(stated, BUCKET, "a bucket of S3")
        role = stated.options.get(ROLE) or object_batches.needed(
            stated, "aws_batch_role_arn", "the role that runs batches"
        )
        return {BUCKET: bucket, ROLE: role}

    @classmethod
    def faults(cls, line: Line, first: Line) -> Iterator[Fault]:
        """Say what cannot be said."""
        yield from batch_provider.another_model(line, first)
        yield from batch_provider.unsaid(SLUG, line)

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        row, needs = self._talk.row, self._talk.row["job"]["needs"]
        own = row["id"]
        await object_batches.put(self._talk, f"{own}.jsonl", _records(given))
        place = f"s3://{needs[BUCKET]}/{object_batches.FOLDER}/{own}"
        made = {
            "jobName": f"gateway-batch-{own}",
            "roleArn": needs[ROLE],
            # The same question asked again makes no second job.
            "clientRequestToken": own,
            "modelId": await batch_provider.model_of(given),
            "modelInvocationType": "InvokeModel" if row["endpoint"] == EMBEDDINGS else "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": f"{place}.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"{place}/"}},
        }
        return (await self._talk.ask(Made, "POST", object_batches.JOBS, msgspec.json.encode(made))).job_arn

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        job = await self._talk.ask(Job, "GET", _job(name))
        own, there = self._talk.row["id"], name.rpartition("/")[2]
        paths = (object_batches.path(f"{own}/{there}/{own}.jsonl.out"),)
        status = STATUSES.get(job.status, "in_progress")
        return Seen(status, job.success_record_count, job.error_record_count, paths, job.message)

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.say("POST", f"{_job(name)}/cancel")

    def number(self, result: bytes) -> int | None:
        """Say which line a result is of."""
        return int(msgspec.json.decode(result, type=Result).record_id)

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        found = msgspec.json.decode(result, type=Result)
        if found.model_output is not None:
            return batch_provider.told(SLUG, line, 200, found.model_output)
        problem = found.error or Problem()
        return batch_provider.told(SLUG, line, problem.error_code, {"message": problem.error_message})


def _job(arn: str) -> str:
    return f"{object_batches.JOBS}/{quote(arn, safe='')}"


async def _records(given: Input) -> AsyncIterator[bytes]:
    async for number, line in given.requests():
        body, _ = batch_provider.said(SLUG, line)
        # Eleven letters or digits, as Bedrock wants it.
        yield msgspec.json.encode({"recordId": f"{number:011}", "modelInput": body})
        yield b"\n"
