"""Fireworks's batches: a dataset with all lines, a batch inference job over it, a dataset whose files are fetched where it says."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.providers import batch_provider
from penstock.batches.providers.batch_provider import Seen, Stated, Told, Way, name_of
from penstock.batches.providers.client import GoneError, TakenError, Upload, form
from penstock.schemas import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import Fault, Input, Line

ACCOUNT, CHATS = "fireworks_account_id", "/v1/chat/completions"
JOBS, DATASETS = "/v1/batch_jobs", "/v1/batch_datasets"
# Those that are not named are on their way.
STATES = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled", "EXPIRED": "expired"}
LOWEST, HIGHEST = 400, 599


class Progress(msgspec.Struct, rename="camel"):
    """How many lines there are."""

    successfully_processed_requests: int = 0
    failed_requests: int = 0


class Problem(msgspec.Struct):
    """What is wrong."""

    message: str = ""


class Job(msgspec.Struct, rename="camel"):
    """A job."""

    state: str
    job_progress: Progress | None = None
    status: Problem | None = None


class Result(msgspec.Struct):
    """A line of the answers."""

    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Fireworks(Way):
    """Chats go and come as they are; their model is said once."""

    KNOWS_AGAIN = True

    @classmethod
    def needs(cls, stated: Stated) -> dict[str, str]:
        """Give the account."""
        if account := stated.find(ACCOUNT):
            return {ACCOUNT: account}
        message = f"need an account: where the provider is saved as {ACCOUNT!r}, or x-gateway-fireworks-account-id"
        raise refuse("gateway_options", message)

    @classmethod
    def faults(cls, line: Line, first: Line) -> Iterator[Fault]:
        """Refuse all but chats with one model."""
        if line.url != CHATS:
            yield "invalid_url", f"url is {line.url!r}: expected {CHATS!r}, of which batches are here", "url"
        yield from batch_provider.another_model(line, first)

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        talk, name = self._talk, f"gateway-{self._talk.row['id']}"
        place = f"accounts/{talk.row['job']['needs'][ACCOUNT]}/datasets"
        dataset: dict[str, Any] = {"datasetId": name, "dataset": {"userUploaded": {}}}
        await self._make(DATASETS, dataset)
        boundary = secrets.token_hex(16)
        await talk.send(Upload("POST", f"{DATASETS}/{name}", *form(boundary, {}, _lines(given))))
        job = {
            "displayName": name,
            "model": await batch_provider.model_of(given),
            "inputDatasetId": f"{place}/{name}",
            "outputDatasetId": f"{place}/{name}-out",
        }
        await self._make(f"{JOBS}?batchInferenceJobId={name}", job)
        return name

    async def _make(self, path: str, what: dict[str, Any]) -> None:
        """Make something under a name of ours; where it is there already, it was made before."""
        try:
            await self._talk.ask(dict[str, Any], "POST", path, msgspec.json.encode(what))
        except TakenError:
            return

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        try:
            job = await self._talk.ask(Job, "GET", f"{JOBS}/{name}")
        except GoneError:
            # Who ends a job deletes it.
            return Seen("cancelled")
        progress = job.job_progress or Progress()
        status = STATES.get(job.state.removeprefix("JOB_STATE_"), "in_progress")
        why = job.status.message if job.status else ""
        counts = (progress.successfully_processed_requests, progress.failed_requests)
        return Seen(status, *counts, (f"/v1/files/{name}-out/content",), why)

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.say("DELETE", f"{JOBS}/{name}")

    def told(self, line: Line, result: bytes) -> Told:  # noqa: ARG002 - others need it
        """Read the result of one line."""
        found = msgspec.json.decode(result, type=Result)
        if found.error is not None or found.response is None:
            error = found.error or {"message": "the model gave no answer"}
            code = error.get("code")
            status = code if isinstance(code, int) and LOWEST <= code <= HIGHEST else 500
            return Told({"status_code": status, "request_id": "", "body": {"error": error}}, None)
        return Told({"status_code": 200, "request_id": str(found.response.get("id", "")), "body": found.response}, None)


async def _lines(given: Input) -> AsyncIterator[bytes]:
    async for number, line in given.requests():
        body = {name: value for name, value in line.body.items() if name != "model"}
        yield msgspec.json.encode({"custom_id": name_of(number), "body": body})
        yield b"\n"
