"""What routes give back, written as JSON in one step: most answers have neither cookies nor headers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Response
from litestar.enums import MediaType
from litestar.serialization import encode_json

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

NO_CONTENT = 204


class Answer(Response[Any]):
    """The answer of a route that gave back a value rather than an answer."""

    def to_asgi_response(self, *args: Any, **asked: Any) -> Any:  # noqa: ANN401 - the framework's own has ten arguments
        """Write it down; what is more than JSON goes the framework's way, which looks at all that there might be."""
        status = self.status_code
        more = asked.get("headers") or asked.get("cookies") or self.media_type not in {None, MediaType.JSON}
        if more or status is None or status == NO_CONTENT:
            return super().to_asgi_response(*args, **asked)  # pyright: ignore[reportUnknownMemberType]
        return _written(status, encode_json(self.content))


def _written(status: int, body: bytes) -> ASGIApp:
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def send_all(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return send_all
