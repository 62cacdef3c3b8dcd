"""Depth check of JSON values. The engine reads fewer levels than the management API, so routes reject fields that are
nested deeper.
"""

from __future__ import annotations

from typing import cast


def nests_deeper(value: object, levels: int) -> bool:
    """Returns true if a JSON value has more than `levels` levels of objects and lists."""
    # Works level by level instead of recursively, because a body may be nested deeper than Python's recursion limit.
    current: list[object] = [value]
    for _ in range(levels + 1):
        current = [item for item in current if isinstance(item, dict | list)]
        if not current:
            return False
        current = [
            inner
            for item in current
            for inner in (
                cast("dict[str, object]", item).values() if isinstance(item, dict) else cast("list[object]", item)
            )
        ]
    return True
