"""JSON response of management routes. It avoids the framework's general encoding, because most responses have no
cookies and only default headers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from litestar import Response
from litestar.enums import MediaType
from litestar.serialization import encode_json

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

NO_CONTENT, NOT_MODIFIED = 204, 304


class JsonResponse(Response[Any]):
    """Response of a route that returned a plain value instead of a `Response`."""

    def to_asgi_response(self, *args: Any, **requested: Any) -> Any:  # noqa: ANN401 - the framework's method has ten arguments
        """Encodes the value as JSON. A response with headers, cookies or another media type takes the framework's
        slower path.
        """
        status = self.status_code
        more = requested.get("headers") or requested.get("cookies") or self.media_type not in {None, MediaType.JSON}
        if more or status is None or status == NO_CONTENT:
            return super().to_asgi_response(*args, **requested)  # pyright: ignore[reportUnknownMemberType]
        return _json_asgi_app(status, encode_json(self.content))


def short_hash(content: bytes) -> str:
    """Returns the first 32 hexadecimal digits of the content's SHA-256 hash."""
    return hashlib.sha256(content).hexdigest()[:32]


def _json_asgi_app(status: int, body: bytes) -> ASGIApp:
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def send_response(scope: Scope, _receive: Receive, send: Send) -> None:
        response_status, fields, sent = status, head, body
        if scope["type"] == "http" and scope["method"] == "GET" and (state := scope["state"].pop("etag", None)):
            etag = _response_etag(state, body)
            fields = [*head, (b"etag", etag.encode())]
            if _client_has(scope, etag):
                response_status, fields, sent = NOT_MODIFIED, fields[-1:], b""
        await send({"type": "http.response.start", "status": response_status, "headers": fields})
        await send({"type": "http.response.body", "body": sent, "more_body": False})

    return send_response


def _response_etag(state: str, body: bytes) -> str:
    """Returns the entity tag of a response: the hash of its row, which If-Match compares, then a dot and a hash of the
    body.

    The second hash is needed because the body contains more than the row, such as members, related rows and times.
    """
    return f'{state[:-1]}.{short_hash(body)}"'


def _client_has(scope: HTTPScope, etag: str) -> bool:
    """Returns true if the client already has this response: If-None-Match contains its tag. Weak tags match as well."""
    sent = [value.decode("latin-1") for name, value in scope["headers"] if name == b"if-none-match"]
    tags = {tag.strip().removeprefix("W/") for value in sent for tag in value.split(",")}
    return not tags.isdisjoint({"*", etag})
