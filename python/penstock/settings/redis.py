"""The `[redis]` settings section. Workers and nodes share state through Redis that each otherwise has only in its own
memory.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret

MEBIBYTE = 1024 * 1024


class Redis(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to Redis, which shares cached responses, circuit breakers, sticky sessions and change
    notifications.
    """

    url: Annotated[
        Secret | None,
        Meta(
            description="address, such as `redis://user:password@host:6379/0`, `rediss://…` or `redis+unix:///…`; "
            "default: nothing is shared",
            extra={"env": "REDIS_URL"},
        ),
    ] = None
    prefix: Annotated[
        str,
        Meta(min_length=1, description="prefix of all keys in Redis; gateways with the same prefix share their data"),
    ] = "penstock:"
    wait_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="maximum time that a request waits for a lookup; then it continues without the result",
        ),
    ] = 50
    response_bytes: Annotated[int, Meta(ge=0, description="maximum size of a response that is cached in Redis")] = (
        MEBIBYTE
    )
