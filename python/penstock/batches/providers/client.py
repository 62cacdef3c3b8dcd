"""Questions about one batch, asked of its provider over the edge like those of any caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from penstock.batches.edge_messages import JSON_MEDIA_TYPE, EdgeRequest, EdgeResponse
from penstock.batches.files import BATCH, iter_lines
from penstock.batches.providers.batch_provider import SUCCESS_STATUS_END
from penstock.errors import IncompleteResponseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.batches.edge_client import EdgeClient
    from penstock.blobs.folder import BlobFolder
    from penstock.store.tenant import Row

# What is said of a batch, or of a file, is far smaller.
MAX_RESPONSE_BYTES = 1024 * 1024
MAX_RESULT_LINE_BYTES = 64 * 1024 * 1024
# More than a batch may have.
MAX_LINE_NUMBER = 1_000_000

Decoded = TypeVar("Decoded")


class RequestRejectedError(IncompleteResponseError):
    """The same question would be answered the same way again."""


class ProviderNotFoundError(RequestRejectedError):
    """What is asked after is not there."""


class AlreadyExistsError(RequestRejectedError):
    """What is to be made is there."""


class ProviderBusyError(IncompleteResponseError):
    """Nothing was done, and another time it may be."""


BUSY_STATUSES = (429, 503, 529)
REJECTION_STATUSES = (400, 401, 403, 405, 413, 415, 422)
ERROR_BY_STATUS: dict[int, type[IncompleteResponseError]] = {
    **dict.fromkeys(REJECTION_STATUSES, RequestRejectedError),
    **dict.fromkeys(BUSY_STATUSES, ProviderBusyError),
    404: ProviderNotFoundError,
    409: AlreadyExistsError,
}


class Upload(NamedTuple):
    """Something long that is sent."""

    method: str
    path: str
    content_type: str
    chunks: AsyncIterator[bytes]


class BatchClient:
    """Asks in the name of one batch."""

    def __init__(self, row: Row, headers: Mapping[str, str], edge: EdgeClient, blobs: BlobFolder) -> None:
        """Know whose the questions are."""
        self.row = row
        self.headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge = edge
        self._blobs = blobs
        # Of what is sent in one piece.
        self._draft = f"{row['id']}.draft"

    async def request_json(self, form: type[Decoded], method: str, path: str, body: bytes = b"") -> Decoded:
        """Ask, and give what was answered well."""
        call = EdgeRequest(method, path, self.headers, body, JSON_MEDIA_TYPE if body else "")
        return _decode_reply(await self._edge.send_request(call, MAX_RESPONSE_BYTES), form)

    async def send_request(self, method: str, path: str) -> None:
        """Ask where nothing is to be read of a good answer."""
        _raise_for_status(await self._edge.send_request(EdgeRequest(method, path, self.headers), MAX_RESPONSE_BYTES))

    async def send_upload(self, upload: Upload) -> EdgeResponse:
        """Send something long, whose length must be known before."""
        try:
            length = await self._blobs.put(self._draft, upload.chunks)
            headers = {**self.headers, "content-length": str(length)}
            call = EdgeRequest(upload.method, upload.path, headers, self._blobs.read(self._draft), upload.content_type)
            return _raise_for_status(await self._edge.send_request(call, MAX_RESPONSE_BYTES))
        finally:
            await self._blobs.delete(self._draft)

    async def upload_and_decode(self, form: type[Decoded], upload: Upload) -> Decoded:
        """Send something long, and give what was made of it."""
        return _decode_reply(await self.send_upload(upload), form)

    async def download_results(
        self, path: str, number_of: Callable[[bytes], int | None]
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Give the lines at a path as they are, each with its number; none of those that are no batch's."""
        try:
            await self._blobs.put(self._draft, self._edge.stream_body(EdgeRequest("GET", path, self.headers)))
            async for _, text in iter_lines(self._blobs, self._draft, MAX_RESULT_LINE_BYTES):
                number = _line_number_or_none(text, number_of)
                if text and number and 0 < number <= MAX_LINE_NUMBER:
                    yield number, self._edge.hidden.redact(text)
        finally:
            await self._blobs.delete(self._draft)


def build_multipart_form(
    boundary: str, fields: Mapping[str, str], content: AsyncIterator[bytes], field: str = "file"
) -> tuple[str, AsyncIterator[bytes]]:
    """Put lines into a form, under the name of a field, beside other fields; give its type, and its pieces."""
    return f"multipart/form-data; boundary={boundary}", _multipart_chunks(boundary, fields, content, field)


async def _multipart_chunks(
    boundary: str, fields: Mapping[str, str], content: AsyncIterator[bytes], field: str
) -> AsyncIterator[bytes]:
    part = f'--{boundary}\r\ncontent-disposition: form-data; name="'
    for name, value in fields.items():
        yield f'{part}{name}"\r\n\r\n{value}\r\n'.encode()
    yield f'{part}{field}"; filename="lines.jsonl"\r\ncontent-type: application/jsonl\r\n\r\n'.encode()
    async for piece in content:
        yield piece
    yield f"\r\n--{boundary}--\r\n".encode()


def _line_number_or_none(text: bytes | None, number_of: Callable[[bytes], int | None]) -> int | None:
    try:
        return number_of(text or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None


def _raise_for_status(reply: EdgeResponse) -> EdgeResponse:
    if reply.status < SUCCESS_STATUS_END:
        return reply
    message = f"{reply.status}: {reply.body[:500].decode('utf-8', 'replace')}"
    raise ERROR_BY_STATUS.get(reply.status, IncompleteResponseError)(message)


def _decode_reply(reply: EdgeResponse, form: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(_raise_for_status(reply).body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the provider's answer cannot be read: {error}"
        raise IncompleteResponseError(message) from None
