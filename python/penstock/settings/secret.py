"""A credential that can be used but not shown."""

from __future__ import annotations


class Secret:
    """A value that prints as dots wherever it ends up."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Hide the value."""
        self._value = value

    def reveal(self) -> str:
        """Hand out the value; the only way to it."""
        return self._value

    def __repr__(self) -> str:
        """Print dots."""
        return "••••"

    __str__ = __repr__

    def __reduce__(self) -> str:
        """Refuse to be pickled: a secret does not travel by accident."""
        message = "a secret cannot be pickled"
        raise TypeError(message)
