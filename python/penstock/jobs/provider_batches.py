"""How providers run batches: OpenAI's way, which many share, and Anthropic's, in whose words lines are said and told."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.engine import EngineError, say_line, tell_line
from penstock.errors import LostError
from penstock.jobs.talk import JSON, Call, Reply
from penstock.kit.batch_input import speaks_otherwise
from penstock.kit.files import BATCH, lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from penstock.blobs.folder import Folder
    from penstock.jobs.edge import Edge
    from penstock.kit.batch_input import Input, Line
    from penstock.store.tenant import Row

# What is said of a batch, or of a file, is far smaller.
MOST = 1024 * 1024
LONGEST_ANSWER = 64 * 1024 * 1024
# More than a batch may have.
MOST_LINES = 1_000_000
GOOD = 300
ANTHROPIC = "anthropic"
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


Form = TypeVar("Form")


class Seen(NamedTuple):
    """How far a batch is at its provider."""

    status: str
    completed: int = 0
    failed: int = 0
    # Where its answers are, once it is over.
    paths: tuple[str, ...] = ()
    why: str = ""


class Named(msgspec.Struct):
    """What was made there."""

    id: str


class Counts(msgspec.Struct):
    """How many lines there are, in either way."""

    completed: int = 0
    succeeded: int = 0
    failed: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class Problem(msgspec.Struct):
    """What is wrong, as both say it."""

    message: str = ""
    type: str = ""


class Problems(msgspec.Struct):
    """What is wrong with a batch of OpenAI's."""

    data: list[Problem] = []


class OpenAiBatch(msgspec.Struct):
    """A batch as OpenAI shows it."""

    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts | None = None
    errors: Problems | None = None


class AnthropicBatch(msgspec.Struct):
    """A batch as Anthropic shows it."""

    processing_status: str
    request_counts: Counts = msgspec.field(default_factory=Counts)


class OpenAiResult(msgspec.Struct):
    """A line of OpenAI's answers."""

    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Envelope(msgspec.Struct):
    """An error of Anthropic's with what is around it."""

    error: Problem = msgspec.field(default_factory=Problem)
    request_id: str | None = None
    type: str = "error"


class Found(msgspec.Struct):
    """How a line ended at Anthropic."""

    type: str
    message: dict[str, Any] = {}
    error: Envelope | None = None


class AnthropicResult(msgspec.Struct):
    """A line of Anthropic's answers."""

    result: Found


class Told(NamedTuple):
    """How one line ended: what was answered, or an error."""

    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def failed(self) -> bool:
        """Whether it was not answered well."""
        return self.response is None or not self.response.get("status_code", GOOD) < GOOD


class Provider(Protocol):
    """Runs batches."""

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        ...

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        ...

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        ...

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        ...


class Talk:
    """Questions about one batch, asked of its provider over the edge like those of any caller."""

    def __init__(self, row: Row, headers: Mapping[str, str], edge: Edge, blobs: Folder) -> None:
        """Know whose they are."""
        self.row = row
        self._headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge = edge
        self._blobs = blobs
        # Of what is sent in one piece.
        self._draft = f"{row['id']}.draft"

    async def ask(self, form: type[Form], method: str, path: str, body: bytes = b"") -> Form:
        """Ask, and give what was answered well."""
        call = Call(method, path, self._headers, body, JSON if body else "")
        return _read(await self._edge.ask(call, MOST), form)

    async def send(self, path: str, kind: str, pieces: AsyncIterator[bytes]) -> str:
        """Send something long, whose length must be known before; give what it is called there."""
        try:
            length = await self._blobs.put(self._draft, pieces)
            headers = {**self._headers, "content-length": str(length)}
            call = Call("POST", path, headers, self._blobs.read(self._draft), kind)
            return _read(await self._edge.ask(call, MOST), Named).id
        finally:
            await self._blobs.delete(self._draft)

    async def results(self, path: str) -> AsyncIterator[tuple[int, bytes]]:
        """Give the results at a path as they are, each with the number of its line."""
        try:
            await self._blobs.put(self._draft, self._edge.pieces(Call("GET", path, self._headers)))
            async for _, text in lines(self._blobs, self._draft, LONGEST_ANSWER):
                number = _number(text)
                if text and number and 0 < number <= MOST_LINES:
                    yield number, text
        finally:
            await self._blobs.delete(self._draft)


def _read(reply: Reply, form: type[Form]) -> Form:
    if reply.status >= GOOD:
        message = f"{reply.status}: {reply.body[:500].decode('utf-8', 'replace')}"
        kinds = {**dict.fromkeys(REFUSALS, RefusedError), **dict.fromkeys(BUSY, BusyError)}
        raise kinds.get(reply.status, LostError)(message)
    try:
        return msgspec.json.decode(reply.body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the provider's answer cannot be read: {error}"
        raise LostError(message) from None


class RefusedError(LostError):
    """The same question would be answered the same way again."""


class BusyError(LostError):
    """Nothing was done, and another time it may be."""


BUSY = (429, 503, 529)
REFUSALS = frozenset([400, 401, 403, 404, 405, 413, 415, 422])


def _name(number: int) -> str:
    # Callers name lines as they like; not every provider takes every name.
    return f"line-{number}"


class Numbered(msgspec.Struct):
    """A line of answers, as far as both ways have the same."""

    custom_id: str


def _number(text: bytes | None) -> int | None:
    try:
        return int(msgspec.json.decode(text or b"", type=Numbered).custom_id.removeprefix("line-"))
    except (msgspec.MsgspecError, ValueError):
        return None


class OpenAi:
    """Batches of those who have OpenAI's API: a file with lines, a batch of it, a file with answers."""

    def __init__(self, talk: Talk) -> None:
        """Ask in this way."""
        self._talk = talk

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        boundary = secrets.token_hex(16)
        kind = f"multipart/form-data; boundary={boundary}"
        file_id = await self._talk.send("/v1/files", kind, _form(boundary, _lines(given)))
        row = self._talk.row
        made = {
            "input_file_id": file_id,
            "endpoint": row["endpoint"],
            "completion_window": row["completion_window"],
            "metadata": {"gateway_batch": BATCH + row["id"]},
        }
        return (await self._talk.ask(Named, "POST", "/v1/batches", msgspec.json.encode(made))).id

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        batch = await self._talk.ask(OpenAiBatch, "GET", f"/v1/batches/{name}")
        counts = batch.request_counts or Counts()
        paths = [f"/v1/files/{file}/content" for file in (batch.output_file_id, batch.error_file_id) if file]
        why = next((problem.message for problem in (batch.errors or Problems()).data), "")
        return Seen(batch.status, counts.completed, counts.failed, tuple(paths), why)

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.ask(Named, "POST", f"/v1/batches/{name}/cancel")

    def told(self, line: Line, result: bytes) -> Told:  # noqa: ARG002 - others need it
        """Read the result of one line."""
        read = msgspec.json.decode(result, type=OpenAiResult)
        return Told(read.response, read.error)


async def _lines(given: Input) -> AsyncIterator[bytes]:
    async for number, line in given.requests():
        yield msgspec.json.encode({"custom_id": _name(number), "method": "POST", "url": line.url, "body": line.body})
        yield b"\n"


async def _form(boundary: str, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    part = f'--{boundary}\r\ncontent-disposition: form-data; name="'
    yield f'{part}purpose"\r\n\r\nbatch\r\n'.encode()
    yield f'{part}file"; filename="lines.jsonl"\r\ncontent-type: application/jsonl\r\n\r\n'.encode()
    async for piece in content:
        yield piece
    yield f"\r\n--{boundary}--\r\n".encode()


class Anthropic:
    """Anthropic's batches of messages: all lines in one request, answers as lines."""

    def __init__(self, talk: Talk) -> None:
        """Ask in this way."""
        self._talk = talk

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        return await self._talk.send("/v1/messages/batches", JSON, _requests(given))

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        batch = await self._talk.ask(AnthropicBatch, "GET", f"/v1/messages/batches/{name}")
        counts = batch.request_counts
        failed = counts.errored + counts.canceled + counts.expired
        if batch.processing_status != "ended":
            return Seen("in_progress", counts.succeeded, failed)
        status = "cancelled" if counts.canceled else "expired" if counts.expired else "completed"
        return Seen(status, counts.succeeded, failed, (f"/v1/messages/batches/{name}/results",))

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        await self._talk.ask(Named, "POST", f"/v1/messages/batches/{name}/cancel")

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        found, body = msgspec.json.decode(result, type=AnthropicResult).result, msgspec.json.encode(line.body)
        if found.type == "succeeded":
            return _told(200, str(found.message.get("id", "")), line.url, body, found.message)
        if found.type == "errored" and found.error:
            status = STATUSES.get(found.error.error.type, 500)
            return _told(status, found.error.request_id or "", line.url, body, found.error)
        code = "batch_expired" if found.type == "expired" else "batch_cancelled"
        return Told(None, {"code": code, "message": "the batch ended before this line was answered"})


def _told(status: int, request_id: str, url: str, body: bytes, answer: object) -> Told:
    try:
        told = tell_line(ANTHROPIC, url, body, msgspec.json.encode(answer))
        _, lost = say_line(ANTHROPIC, url, body)
    except EngineError as error:
        return Told(None, {"code": "answer_unreadable", "message": str(error)})
    response = {"status_code": status, "request_id": request_id, "body": msgspec.json.decode(told)}
    # As a header names it where a request is one of its own.
    return Told({**response, **({"not_translated": lost} if lost else {})}, None)


async def _requests(given: Input) -> AsyncIterator[bytes]:
    before = b'{"requests":['
    async for number, line in given.requests():
        params, _ = say_line(ANTHROPIC, line.url, msgspec.json.encode(line.body))
        yield before + msgspec.json.encode({"custom_id": _name(number), "params": msgspec.Raw(params)})
        before = b","
    yield b"]}"


def speaking_to(provider: str, talk: Talk) -> Provider:
    """Give the way in which a provider runs batches."""
    return Anthropic(talk) if speaks_otherwise(provider) else OpenAi(talk)
