"""API format of a client, detected by its headers. Paths that several APIs share, such as `/v1/models`, use the format
of the client's SDK, errors included.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from penstock import engine
from penstock.errors import openai_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.errors import Problem

INTERNAL_ERROR = 500
ANTHROPIC_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
GOOGLE_ERROR_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class ClientFormat(enum.Enum):
    """API format of a client's requests."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"
    COHERE = "cohere"


def detect_client_format(headers: Iterable[tuple[bytes, bytes]]) -> ClientFormat:
    """Returns the API format of the client that sent these headers of an ASGI scope, as the engine recognises it."""
    return ClientFormat(engine.client_format(list(headers)))


def client_error_fields(
    client: ClientFormat, message: str, status: int, problems: Sequence[Problem], request_id: str
) -> dict[str, object]:
    """Returns the fields of an error body that the client's SDK reads."""
    default_type = "invalid_request_error" if status < INTERNAL_ERROR else "api_error"
    match client:
        case ClientFormat.ANTHROPIC:
            error = {"type": ANTHROPIC_ERROR_TYPES.get(status, default_type), "message": message}
            return {"type": "error", "error": error, "request_id": request_id}
        case ClientFormat.GOOGLE:
            default_status = "INVALID_ARGUMENT" if status < INTERNAL_ERROR else "INTERNAL"
            name = GOOGLE_ERROR_STATUSES.get(status, default_status)
            return {"error": {"code": status, "message": message, "status": name}}
        case ClientFormat.COHERE:
            return {"message": message}
        case ClientFormat.OPENAI:
            return {"error": openai_error(message, status, problems)}
