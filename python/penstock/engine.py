"""The Rust engine as the rest of the package sees it: the only importer of `_engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock._engine import Engine, EngineError, check
from penstock._engine import catalogue as _catalogue

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Engine", "EngineError", "catalogue", "check"]


def catalogue() -> list[dict[str, Any]]:
    """Every provider that the engine knows: `slug`, `base_url`, `dialect`."""
    return msgspec.json.decode(_catalogue())
