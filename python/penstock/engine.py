"""The Rust engine as the rest of the package sees it: the only importer of `_engine`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

# Read once by the extension's allocator: pages of 2 MB, of which little is used, cost 10 MB while nothing goes on.
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")

from penstock._engine import (
    Conversation,
    Engine,
    EngineError,
    Ledger,
    check,
    end_turns_in_time,
    may_be_secret,
    say_line,
    tell_line,
)
from penstock._engine import catalogue as _catalogue
from penstock._engine import config_schema as _config_schema

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "Conversation",
    "Engine",
    "EngineError",
    "Ledger",
    "catalogue",
    "check",
    "config_schema",
    "end_turns_in_time",
    "may_be_secret",
    "say_line",
    "tell_line",
]


def catalogue() -> list[dict[str, Any]]:
    """Every provider that the engine knows: `slug`, `base_url`, `dialect`."""
    return msgspec.json.decode(_catalogue())


def config_schema() -> dict[str, Any]:
    """Give the JSON Schema of a config."""
    return msgspec.json.decode(_config_schema())
