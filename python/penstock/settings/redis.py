"""The section of the settings about Redis, through which workers and nodes share what each else keeps for itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret

MEBIBYTE = 1024 * 1024


class Redis(msgspec.Struct, frozen=True, kw_only=True):
    """What workers and nodes share: kept answers, circuit breakers, sticky sessions, the word that something was saved."""

    url: Annotated[
        Secret | None,
        Meta(
            description="address, such as `redis://user:password@host:6379/0`, `rediss://…` or `redis+unix:///…`; "
            "default: nothing is shared",
            extra={"env": "REDIS_URL"},
        ),
    ] = None
    prefix: Annotated[
        str, Meta(min_length=1, description="how all names there begin; gateways with the same one share")
    ] = "penstock:"
    wait_ms: Annotated[
        int,
        Meta(ge=1, le=10_000, description="time for a look-up that a request waits for; then it goes on without"),
    ] = 50
    answer_bytes: Annotated[int, Meta(ge=0, description="largest answer that is kept there")] = MEBIBYTE
