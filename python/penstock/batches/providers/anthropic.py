"""Anthropic's batches of messages: all lines in one request, answers as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.edge_messages import JSON
from penstock.batches.providers import batch_provider
from penstock.batches.providers.batch_provider import Named, Seen, Told, Way, name_of
from penstock.batches.providers.client import Upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.batches.input import Fault, Input, Line

SLUG = "anthropic"
STATUSES = {
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


class Counts(msgspec.Struct):
    """How many lines there are."""

    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class Batch(msgspec.Struct):
    """A batch."""

    processing_status: str
    request_counts: Counts = msgspec.field(default_factory=Counts)


class Problem(msgspec.Struct):
    """What is wrong."""

    message: str = ""
    type: str = ""


class Envelope(msgspec.Struct):
    """An error with what is around it."""

    error: Problem = msgspec.field(default_factory=Problem)
    request_id: str | None = None
    type: str = "error"


class Found(msgspec.Struct):
    """How a line ended."""

    type: str
    message: dict[str, Any] = {}
    error: Envelope | None = None


class Result(msgspec.Struct):
    """A line of the answers."""

    result: Found


class Anthropic(Way):
    """Lines are said in Anthropic's words."""

    @classmethod
    def faults(cls, line: Line, first: Line) -> Iterator[Fault]:  # noqa: ARG003 - others need it
        """Say what cannot be said."""
        return batch_provider.unsaid(SLUG, line)

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        upload = Upload("POST", "/v1/messages/batches", JSON, _requests(given))
        return (await self._talk.make(Named, upload)).id

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        batch = await self._talk.ask(Batch, "GET", f"/v1/messages/batches/{name}")
        counts = batch.request_counts
        failed = counts.errored + counts.canceled + counts.expired
        if batch.processing_status != "ended":
            return Seen("in_progress", counts.succeeded, failed)
        status = "cancelled" if counts.canceled else "expired" if counts.expired else "completed"
        return Seen(status, counts.succeeded, failed, (f"/v1/messages/batches/{name}/results",))

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.say("POST", f"/v1/messages/batches/{name}/cancel")

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        found = msgspec.json.decode(result, type=Result).result
        if found.type == "succeeded":
            return batch_provider.told(SLUG, line, 200, found.message, str(found.message.get("id", "")))
        if found.type == "errored" and found.error:
            status = STATUSES.get(found.error.error.type, 500)
            return batch_provider.told(SLUG, line, status, found.error, found.error.request_id or "")
        code = "batch_expired" if found.type == "expired" else "batch_cancelled"
        return Told(None, {"code": code, "message": "the batch ended before this line was answered"})


async def _requests(given: Input) -> AsyncIterator[bytes]:
    before = b'{"requests":['
    async for number, line in given.requests():
        params, _ = batch_provider.said(SLUG, line)
        yield before + msgspec.json.encode({"custom_id": name_of(number), "params": params})
        before = b","
    yield b"]}"
