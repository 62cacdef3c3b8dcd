"""The `[routing]` settings section: limits of configs, retries, and memory for caches and stream recovery."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MEBIBYTE = 1024 * 1024
# Maximum targets at the root of a config, at the root of a conditional config, and below each root target.
TargetLimits = tuple[int, int, int]


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of configs and of the memory for them. Memory limits apply to each worker separately."""

    max_root_targets: Annotated[
        int, Meta(ge=1, description="maximum targets at the root of a config", extra={"env": "MAX_ROOT_CONFIG_TARGETS"})
    ] = 100
    max_conditional_targets: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum targets at the root of a config with a conditional strategy",
            extra={"env": "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS"},
        ),
    ] = 1000
    max_nested_targets: Annotated[
        int,
        Meta(ge=0, description="maximum targets below each root target", extra={"env": "MAX_NESTED_CONFIG_TARGETS"}),
    ] = 50
    retry_backoff_ms: Annotated[
        int,
        Meta(ge=0, le=60_000, description="maximum delay before the first retry; it doubles with each further retry"),
    ] = 1000
    retry_budget_percent: Annotated[
        int, Meta(ge=0, le=1000, description="maximum retries of a target within a second, in percent of its requests")
    ] = 20
    retry_budget_min: Annotated[
        int, Meta(ge=0, le=1_000_000, description="retries of a target within a second that are always allowed")
    ] = 10
    cache_bytes: Annotated[int, Meta(ge=0, description="memory for cached responses")] = 64 * MEBIBYTE
    inline_config_bytes: Annotated[int, Meta(ge=0, description="memory for compiled inline configs of requests")] = (
        16 * MEBIBYTE
    )
    recovery_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory for buffered streams, and for transcripts of streams that can be resumed",
        ),
    ] = 64 * MEBIBYTE
    recovery_stream_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="part of that memory for one stream; a longer stream is passed on as it arrives, and not recovered",
        ),
    ] = 4 * MEBIBYTE

    @property
    def target_limits(self) -> TargetLimits:
        """The limits of targets as one tuple, in the order that the engine expects."""
        return self.max_root_targets, self.max_conditional_targets, self.max_nested_targets
