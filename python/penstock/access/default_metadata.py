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


def merge_metadata(header: str | None, *defaults: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the metadata of a request as the data plane does: the header `x-gateway-metadata`, overridden by the
    metadata of the key or token, and then by that of the workspace.
    """
    merged = _parse_header(header)
    for pairs in defaults:
        for name, value in _list_default_pairs(pairs or {}):
            merged.pop(name, None)
            # Metadata of the client makes room for stored metadata.
            if len(merged) >= MAX_PAIRS:
                del merged[next(iter(merged))]
            merged[name] = value
    return merged


def _list_default_pairs(pairs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns stored metadata as the data plane reads it: values that are not strings as JSON, and none too large."""
    short = [name for name in pairs if len(name.encode(errors="replace")) <= MAX_KEY_BYTES]
    return [(name, _to_text(pairs[name])[:MAX_VALUE_CHARS]) for name in short[:MAX_PAIRS]]


def _parse_header(header: str | None) -> dict[str, str]:
    try:
        return msgspec.json.decode(header or "{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def check_default_metadata(path: str, metadata: Mapping[str, Any] | None) -> None:
    """Rejects metadata that is too large to be added to every request. `path` is the JSON path of the field."""
    if not metadata:
        return
    if len(metadata) > MAX_PAIRS:
        raise field_error(path, f"must hold at most {MAX_PAIRS} keys, not {len(metadata)}")
    for name, value in metadata.items():
        if len(name.encode(errors="replace")) > MAX_KEY_BYTES:
            raise field_error(path, f"must have keys of at most {MAX_KEY_BYTES} bytes; `{name[:40]}…` is longer")
        length = len(_to_text(value))
        if length > MAX_VALUE_CHARS:
            raise field_error(f"{path}.{name}", f"must have at most {MAX_VALUE_CHARS} characters, not {length}")
