"""What the workers of a node tell each other where there is no Redis: short notes by name, the oldest of which go."""

from __future__ import annotations

# Of all notes together, with what each takes beside its letters.
MOST_BYTES = 16 * 1024 * 1024
ROOM = 256


class Notes:
    """Notes in the order in which they came; a new one takes the place of the old one of its name."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Begin with none."""
        self._said: dict[str, str] = {}
        self._bytes = 0
        self._most = most

    def put(self, name: str, said: str) -> str | None:
        """Keep one, and give what was said under its name before."""
        before = self._drop(name)
        self._said[name] = said
        self._bytes += _size(name, said)
        while self._bytes > self._most:
            self._drop(next(iter(self._said)))
        return before

    def find(self, name: str) -> str | None:
        """Give what was said last under a name."""
        return self._said.get(name)

    def _drop(self, name: str) -> str | None:
        said = self._said.pop(name, None)
        if said is not None:
            self._bytes -= _size(name, said)
        return said


def _size(name: str, said: str) -> int:
    return len(name) + len(said) + ROOM
