"""What the workers of a node tell each other where there is no Redis: short notes by name, the oldest of which go."""

from __future__ import annotations

# Of all notes together, with what each takes beside its letters.
MAX_BYTES = 16 * 1024 * 1024
ENTRY_OVERHEAD_BYTES = 256


class NodeStore:
    """Notes in the order in which they came; a new one takes the place of the old one of its name."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        """Begin with none."""
        self._said: dict[str, str] = {}
        self._bytes = 0
        self._most = most

    def put(self, name: str, said: str) -> str | None:
        """Keep one, and give what was said under its name before."""
        before = self._remove(name)
        self._said[name] = said
        self._bytes += _entry_bytes(name, said)
        while self._bytes > self._most:
            self._remove(next(iter(self._said)))
        return before

    def get(self, name: str) -> str | None:
        """Give what was said last under a name."""
        return self._said.get(name)

    def _remove(self, name: str) -> str | None:
        said = self._said.pop(name, None)
        if said is not None:
            self._bytes -= _entry_bytes(name, said)
        return said


def _entry_bytes(name: str, said: str) -> int:
    return len(name) + len(said) + ENTRY_OVERHEAD_BYTES
