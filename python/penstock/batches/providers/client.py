"""Questions about one batch, asked of its provider over the edge like those of any caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from penstock.batches.edge_messages import JSON, Call, Reply
from penstock.batches.files import BATCH, lines
from penstock.batches.providers.batch_provider import GOOD
from penstock.errors import LostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.batches.edge_client import Edge
    from penstock.blobs.folder import Folder
    from penstock.store.tenant import Row

# What is said of a batch, or of a file, is far smaller.
MOST = 1024 * 1024
LONGEST_ANSWER = 64 * 1024 * 1024
# More than a batch may have.
MOST_LINES = 1_000_000

Form = TypeVar("Form")


class RefusedError(LostError):
    """The same question would be answered the same way again."""


class GoneError(RefusedError):
    """What is asked after is not there."""


class TakenError(RefusedError):
    """What is to be made is there."""


class BusyError(LostError):
    """Nothing was done, and another time it may be."""


BUSY = (429, 503, 529)
REFUSALS = (400, 401, 403, 405, 413, 415, 422)
ERRORS: dict[int, type[LostError]] = {
    **dict.fromkeys(REFUSALS, RefusedError),
    **dict.fromkeys(BUSY, BusyError),
    404: GoneError,
    409: TakenError,
}


class Upload(NamedTuple):
    """Something long that is sent."""

    method: str
    path: str
    kind: str
    pieces: AsyncIterator[bytes]


class Talk:
    """Asks in the name of one batch."""

    def __init__(self, row: Row, headers: Mapping[str, str], edge: Edge, blobs: Folder) -> None:
        """Know whose the questions are."""
        self.row = row
        self.headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge = edge
        self._blobs = blobs
        # Of what is sent in one piece.
        self._draft = f"{row['id']}.draft"

    async def ask(self, form: type[Form], method: str, path: str, body: bytes = b"") -> Form:
        """Ask, and give what was answered well."""
        call = Call(method, path, self.headers, body, JSON if body else "")
        return _read(await self._edge.ask(call, MOST), form)

    async def say(self, method: str, path: str) -> None:
        """Ask where nothing is to be read of a good answer."""
        _check(await self._edge.ask(Call(method, path, self.headers), MOST))

    async def send(self, upload: Upload) -> Reply:
        """Send something long, whose length must be known before."""
        try:
            length = await self._blobs.put(self._draft, upload.pieces)
            headers = {**self.headers, "content-length": str(length)}
            call = Call(upload.method, upload.path, headers, self._blobs.read(self._draft), upload.kind)
            return _check(await self._edge.ask(call, MOST))
        finally:
            await self._blobs.delete(self._draft)

    async def make(self, form: type[Form], upload: Upload) -> Form:
        """Send something long, and give what was made of it."""
        return _read(await self.send(upload), form)

    async def results(self, path: str, number_of: Callable[[bytes], int | None]) -> AsyncIterator[tuple[int, bytes]]:
        """Give the lines at a path as they are, each with its number; none of those that are no batch's."""
        try:
            await self._blobs.put(self._draft, self._edge.pieces(Call("GET", path, self.headers)))
            async for _, text in lines(self._blobs, self._draft, LONGEST_ANSWER):
                number = _number(text, number_of)
                if text and number and 0 < number <= MOST_LINES:
                    yield number, self._edge.hidden.without(text)
        finally:
            await self._blobs.delete(self._draft)


def form(
    boundary: str, fields: Mapping[str, str], content: AsyncIterator[bytes], field: str = "file"
) -> tuple[str, AsyncIterator[bytes]]:
    """Put lines into a form, under the name of a field, beside other fields; give its type, and its pieces."""
    return f"multipart/form-data; boundary={boundary}", _pieces(boundary, fields, content, field)


async def _pieces(
    boundary: str, fields: Mapping[str, str], content: AsyncIterator[bytes], field: str
) -> AsyncIterator[bytes]:
    part = f'--{boundary}\r\ncontent-disposition: form-data; name="'
    for name, value in fields.items():
        yield f'{part}{name}"\r\n\r\n{value}\r\n'.encode()
    yield f'{part}{field}"; filename="lines.jsonl"\r\ncontent-type: application/jsonl\r\n\r\n'.encode()
    async for piece in content:
        yield piece
    yield f"\r\n--{boundary}--\r\n".encode()


def _number(text: bytes | None, number_of: Callable[[bytes], int | None]) -> int | None:
    try:
        return number_of(text or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None


def _check(reply: Reply) -> Reply:
    if reply.status < GOOD:
        return reply
    message = f"{reply.status}: {reply.body[:500].decode('utf-8', 'replace')}"
    raise ERRORS.get(reply.status, LostError)(message)


def _read(reply: Reply, form: type[Form]) -> Form:
    try:
        return msgspec.json.decode(_check(reply).body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the provider's answer cannot be read: {error}"
        raise LostError(message) from None
