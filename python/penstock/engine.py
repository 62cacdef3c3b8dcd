"""Python interface of the Rust engine. Only this module imports `_engine`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

# The allocator of the extension reads this once at import. Transparent huge pages of 2 MB would cost an idle process 10
# MB.
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")

from penstock._engine import (
    BatchRecorder,
    Engine,
    EngineError,
    WebSocketHandle,
    check,
    is_secret_name,
    start_preemption_ticker,
    translate_batch_line,
    translate_batch_result,
)
from penstock._engine import catalogue as _catalogue
from penstock._engine import config_schema as _config_schema

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BatchRecorder",
    "Engine",
    "EngineError",
    "WebSocketHandle",
    "catalogue",
    "check",
    "config_schema",
    "is_secret_name",
    "start_preemption_ticker",
    "translate_batch_line",
    "translate_batch_result",
]


def catalogue() -> list[dict[str, Any]]:
    """Returns the providers that the engine supports, with `slug`, `base_url` and `dialect`."""
    return msgspec.json.decode(_catalogue())


def config_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a config."""
    return msgspec.json.decode(_config_schema())
