"""In-memory key-value store that the workers of a node share if there is no Redis. Evicts the oldest entries when it is
full.
"""

from __future__ import annotations

# Maximum size of all entries together, including a fixed overhead for each.
MAX_BYTES = 16 * 1024 * 1024
ENTRY_OVERHEAD_BYTES = 256


class NodeStore:
    """Entries in insertion order. A new entry replaces the old one with the same name."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        """Creates an empty store."""
        self._values: dict[str, str] = {}
        self._bytes = 0
        self._most = most

    def put(self, name: str, value: str) -> str | None:
        """Stores an entry and returns the value that it replaces, or `None`."""
        before = self._remove(name)
        self._values[name] = value
        self._bytes += _entry_bytes(name, value)
        while self._bytes > self._most:
            self._remove(next(iter(self._values)))
        return before

    def get(self, name: str) -> str | None:
        """Returns the current value of a name, or `None`."""
        return self._values.get(name)

    def _remove(self, name: str) -> str | None:
        value = self._values.pop(name, None)
        if value is not None:
            self._bytes -= _entry_bytes(name, value)
        return value


def _entry_bytes(name: str, value: str) -> int:
    return len(name) + len(value) + ENTRY_OVERHEAD_BYTES
