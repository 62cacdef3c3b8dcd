"""Settings that limit requests, and the memory that they use."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret

MEBIBYTE = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, and of all concurrent requests of a worker."""

    body_bytes: Annotated[int, Meta(ge=1024, description="maximum size of a request body")] = 100 * MEBIBYTE
    alert_webhook: Annotated[
        Secret | None,
        Meta(
            description="URL that alerts of budgets are posted to as JSON, once in each period when a budget reaches its alert threshold or its limit"
        ),
    ] = None
    workspace_policies: Annotated[
        int,
        Meta(
            ge=1,
            le=2000,
            description="maximum number of active policies of a workspace; each request is compared with all of them, at about 15 ns each",
        ),
    ] = 200
    buffered_body_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory of each worker for buffered JSON bodies above 256 KiB; one such body is always allowed",
        ),
    ] = 512 * MEBIBYTE
    body_idle_ms: Annotated[int, Meta(ge=10, description="maximum wait for the next chunk of a request body")] = 10_000
    body_total_ms: Annotated[int, Meta(ge=10, description="maximum wait for the complete request body")] = 300_000
    body_rate: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000_000,
            description="minimum rate of a request body in bytes per second, after the first `body_grace_ms`",
        ),
    ] = 1024
    body_grace_ms: Annotated[int, Meta(ge=0, description="time before the minimum rate of a request body applies")] = (
        10_000
    )
    in_flight: Annotated[
        int, Meta(ge=1, description="maximum concurrent requests of each worker; further requests get status 503")
    ] = 20_000
