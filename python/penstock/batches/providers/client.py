"""HTTP client for one batch at its provider. Requests go through the edge like those of any client."""

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
    from penstock.blobs.store import BlobStore
    from penstock.store.tenant import Row

# Limit for responses other than results. Descriptions of batches and files are far smaller.
MAX_RESPONSE_BYTES = 1024 * 1024
MAX_RESULT_LINE_BYTES = 64 * 1024 * 1024
# Path at which the edge runs guardrails on a line.
CHECK_PATH = "/v1/batch_guardrails"
# Higher than the maximum number of lines of a batch.
MAX_LINE_NUMBER = 1_000_000

Decoded = TypeVar("Decoded")


class RequestRejectedError(IncompleteResponseError):
    """The provider rejected the request; a retry would be rejected too."""


class ProviderNotFoundError(RequestRejectedError):
    """The requested object does not exist at the provider."""


class AlreadyExistsError(RequestRejectedError):
    """The object to create already exists at the provider."""


class ProviderBusyError(IncompleteResponseError):
    """The provider did not process the request; a retry may succeed."""


BUSY_STATUSES = (429, 503, 529)
REJECTION_STATUSES = (400, 401, 403, 405, 413, 415, 422)
ERROR_BY_STATUS: dict[int, type[IncompleteResponseError]] = {
    **dict.fromkeys(REJECTION_STATUSES, RequestRejectedError),
    **dict.fromkeys(BUSY_STATUSES, ProviderBusyError),
    404: ProviderNotFoundError,
    409: AlreadyExistsError,
}


class Upload(NamedTuple):
    """A request with a large body, which is sent in chunks."""

    method: str
    path: str
    content_type: str
    chunks: AsyncIterator[bytes]


class BatchClient:
    """Sends requests on behalf of one batch."""

    def __init__(self, row: Row, headers: Mapping[str, str], edge: EdgeClient, blobs: BlobStore) -> None:
        """Sets the batch row and the headers of its requests."""
        self.row = row
        self.headers = {"x-gateway-trace-id": BATCH + row["id"], **headers}
        self._edge = edge
        self._blobs = blobs
        # Name of the blob that buffers an upload or a download of this batch.
        self._draft = f"{row['id']}.draft"

    async def request_json(self, form: type[Decoded], method: str, path: str, body: bytes = b"") -> Decoded:
        """Sends a request and decodes the response as `form`. Raises an `IncompleteResponseError` if it does not
        succeed.
        """
        call = EdgeRequest(method, path, self.headers, body, JSON_MEDIA_TYPE if body else "")
        return _decode_reply(await self._edge.send_request(call, MAX_RESPONSE_BYTES), form)

    async def check_line(self, body: bytes) -> EdgeResponse:
        """Runs the guardrails of the batch on a line. Returns the response, whatever its status."""
        call = EdgeRequest("POST", CHECK_PATH, self.headers, body, JSON_MEDIA_TYPE)
        return await self._edge.send_request(call, MAX_RESULT_LINE_BYTES)

    async def store_lines(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores lines as a blob of this name. Returns its size in bytes."""
        return await self._blobs.put(name, chunks)

    async def send_request(self, method: str, path: str) -> None:
        """Sends a request whose response body is not needed. Raises an `IncompleteResponseError` if it does not
        succeed.
        """
        _raise_for_status(await self._edge.send_request(EdgeRequest(method, path, self.headers), MAX_RESPONSE_BYTES))

    async def send_upload(self, upload: Upload) -> EdgeResponse:
        """Sends a large body. It is buffered in a blob first, because its length must be known."""
        try:
            length = await self._blobs.put(self._draft, upload.chunks)
            headers = {**self.headers, "content-length": str(length)}
            call = EdgeRequest(upload.method, upload.path, headers, self._blobs.read(self._draft), upload.content_type)
            return _raise_for_status(await self._edge.send_request(call, MAX_RESPONSE_BYTES))
        finally:
            await self._blobs.delete(self._draft)

    async def upload_and_decode(self, form: type[Decoded], upload: Upload) -> Decoded:
        """Sends a large body and decodes the response as `form`."""
        return _decode_reply(await self.send_upload(upload), form)

    async def download_results(
        self, path: str, number_of: Callable[[bytes], int | None]
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Yields the raw result lines at a path with their line numbers. Skips results for which `number_of` finds no
        valid number.
        """
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
    """Builds a multipart form with the lines in the field `field`, after the other fields. Returns its content type and
    its chunks.
    """
    return f"multipart/form-data; boundary={boundary}", _multipart_chunks(boundary, fields, content, field)


async def _multipart_chunks(
    boundary: str, fields: Mapping[str, str], content: AsyncIterator[bytes], field: str
) -> AsyncIterator[bytes]:
    part = f'--{boundary}\r\ncontent-disposition: form-data; name="'
    for name, value in fields.items():
        yield f'{part}{name}"\r\n\r\n{value}\r\n'.encode()
    yield f'{part}{field}"; filename="lines.jsonl"\r\ncontent-type: application/jsonl\r\n\r\n'.encode()
    async for chunk in content:
        yield chunk
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
        message = f"the provider's response cannot be read: {error}"
        raise IncompleteResponseError(message) from None
