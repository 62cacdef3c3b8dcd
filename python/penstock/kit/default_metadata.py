"""Limits of the metadata that is stored with an API key or workspace. The gateway adds it to all requests of the key or
workspace, and to their records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Mapping

# The engine cuts metadata beyond these three limits (rust/core/src/accounting/record/metadata.rs).
MAX_PAIRS = 64
MAX_KEY_BYTES = 256
MAX_VALUE_CHARS = 512


def check_default_metadata(path: str, metadata: Mapping[str, Any] | None) -> None:
    """Rejects metadata that is too large to be added to every request. `path` is the JSON path of the field."""
    if not metadata:
        return
    if len(metadata) > MAX_PAIRS:
        raise field_error(path, f"must hold at most {MAX_PAIRS} keys, not {len(metadata)}")
    for name, value in metadata.items():
        if len(name.encode(errors="replace")) > MAX_KEY_BYTES:
            raise field_error(path, f"must have keys of at most {MAX_KEY_BYTES} bytes; `{name[:40]}…` is longer")
        length = len(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        if length > MAX_VALUE_CHARS:
            raise field_error(f"{path}.{name}", f"must have at most {MAX_VALUE_CHARS} characters, not {length}")
