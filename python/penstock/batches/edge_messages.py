"""What batches ask the edge, and what they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

JSON_MEDIA_TYPE = "application/json"


class EdgeRequest(NamedTuple):
    """What is asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = ""


class EdgeResponse(NamedTuple):
    """What was answered."""

    status: int
    request_id: str
    retry_after: str
    body: bytes
