"""What batches ask the edge, and what they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

JSON = "application/json"


class Call(NamedTuple):
    """What is asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes] = b""
    kind: str = ""


class Reply(NamedTuple):
    """What was answered."""

    status: int
    request_id: str
    retry_after: str
    body: bytes
