"""The Rust engine as the rest of the package sees it: the only importer of `_engine`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

# Read once by the extension's allocator: pages of 2 MB, of which little is used, cost 10 MB while nothing goes on.
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
    """Every provider that the engine knows: `slug`, `base_url`, `dialect`."""
    return msgspec.json.decode(_catalogue())


def config_schema() -> dict[str, Any]:
    """Give the JSON Schema of a config."""
    return msgspec.json.decode(_config_schema())
