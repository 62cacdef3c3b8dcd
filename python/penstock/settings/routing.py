"""The section of the settings about configs: how many targets they may have, how often they retry, what is kept for them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MEBIBYTE = 1024 * 1024
# Most targets at the root of a config, of a conditional one, and below each of them.
TargetLimits = tuple[int, int, int]


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """What configs may ask for, and what is kept for them; each worker for itself."""

    max_root_targets: Annotated[
        int, Meta(ge=1, description="targets at the root of a config", extra={"env": "MAX_ROOT_CONFIG_TARGETS"})
    ] = 100
    max_conditional_targets: Annotated[
        int,
        Meta(
            ge=1,
            description="targets at the root of a config with a conditional strategy",
            extra={"env": "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS"},
        ),
    ] = 1000
    max_nested_targets: Annotated[
        int,
        Meta(ge=0, description="targets below each target of the root", extra={"env": "MAX_NESTED_CONFIG_TARGETS"}),
    ] = 50
    retry_backoff_ms: Annotated[
        int,
        Meta(ge=0, le=60_000, description="longest wait before a first retry; each further one may be twice as long"),
    ] = 1000
    retry_budget_percent: Annotated[
        int, Meta(ge=0, le=1000, description="retries of a target within a second, in percent of its requests")
    ] = 20
    retry_budget_floor: Annotated[
        int, Meta(ge=0, le=1_000_000, description="retries of a target within a second that are made in any case")
    ] = 10
    cache_bytes: Annotated[int, Meta(ge=0, description="memory for answers that are kept for configs with a cache")] = (
        64 * MEBIBYTE
    )
    inline_config_bytes: Annotated[
        int, Meta(ge=0, description="memory for compiled configs that requests bring along")
    ] = 16 * MEBIBYTE
    recovery_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory for streams that are held back, and for what was said of those that may be continued",
        ),
    ] = 64 * MEBIBYTE
    recovery_stream_bytes: Annotated[
        int, Meta(ge=0, description="of that for one stream; a longer one is passed on as it comes, and not recovered")
    ] = 4 * MEBIBYTE

    @property
    def target_limits(self) -> TargetLimits:
        """The limits of targets together, as the engine takes them."""
        return self.max_root_targets, self.max_conditional_targets, self.max_nested_targets
