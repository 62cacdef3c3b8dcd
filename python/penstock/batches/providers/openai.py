"""Batches of those who have OpenAI's API: a file with lines, a batch of it, a file with answers."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.batches.files import BATCH
from penstock.batches.providers.batch_provider import Named, Seen, Told, Way, name_of
from penstock.batches.providers.client import RefusedError, Upload, form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.input import Input, Line


# What a batch says there of ours.
MARK = "gateway_batch"
# So many pages are looked through for a batch that may be there.
PAGES = 10


class Known(msgspec.Struct):
    """A batch of a list."""

    id: str
    metadata: dict[str, str] | None = None


class Page(msgspec.Struct):
    """Batches, newest first."""

    data: list[Known]
    has_more: bool = False


class Counts(msgspec.Struct):
    """How many lines there are."""

    completed: int = 0
    failed: int = 0


class Problem(msgspec.Struct):
    """What is wrong."""

    message: str = ""


class Problems(msgspec.Struct):
    """What is wrong with a batch."""

    data: list[Problem] = []


class Batch(msgspec.Struct):
    """A batch."""

    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts | None = None
    errors: Problems | None = None


class Result(msgspec.Struct):
    """A line of the answers."""

    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class OpenAi(Way):
    """Lines go and come as they are."""

    KNOWS_AGAIN = True

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        boundary = secrets.token_hex(16)
        upload = Upload("POST", "/v1/files", *form(boundary, {"purpose": "batch"}, _lines(given)))
        row = self._talk.row
        made = {
            "input_file_id": (await self._talk.make(Named, upload)).id,
            "endpoint": row["endpoint"],
            "completion_window": row["completion_window"],
            "metadata": {MARK: BATCH + row["id"]},
        }
        return (await self._talk.ask(Named, "POST", "/v1/batches", msgspec.json.encode(made))).id

    async def found(self) -> str | None:
        """Look for the one that says it is this batch's."""
        after = ""
        for _ in range(PAGES):
            try:
                page = await self._talk.ask(Page, "GET", f"/v1/batches?limit=100{after}")
            except RefusedError:
                # Who has no list cannot say: it is handed over.
                return None
            for known in page.data:
                if (known.metadata or {}).get(MARK) == BATCH + self._talk.row["id"]:
                    return known.id
            if not page.has_more or not page.data:
                break
            after = f"&after={quote(page.data[-1].id, safe='')}"
        return None

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        batch = await self._talk.ask(Batch, "GET", f"/v1/batches/{name}")
        counts = batch.request_counts or Counts()
        paths = [f"/v1/files/{file}/content" for file in (batch.output_file_id, batch.error_file_id) if file]
        why = next((problem.message for problem in (batch.errors or Problems()).data), "")
        return Seen(batch.status, counts.completed, counts.failed, tuple(paths), why)

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.say("POST", f"/v1/batches/{name}/cancel")

    def told(self, line: Line, result: bytes) -> Told:  # noqa: ARG002 - others need it
        """Read the result of one line."""
        read = msgspec.json.decode(result, type=Result)
        return Told(read.response, read.error)


async def _lines(given: Input) -> AsyncIterator[bytes]:
    async for number, line in given.requests():
        yield msgspec.json.encode({"custom_id": name_of(number), "method": "POST", "url": line.url, "body": line.body})
        yield b"\n"
