"""Requests that batches send to the edge, and the responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

JSON_MEDIA_TYPE = "application/json"


class EdgeRequest(NamedTuple):
    """A request to the edge."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = ""


class EdgeResponse(NamedTuple):
    """A complete response from the edge."""

    status: int
    request_id: str
    retry_after: str
    body: bytes
