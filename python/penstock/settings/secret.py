"""Wrapper for a credential that can be used but not printed."""

from __future__ import annotations


class Secret:
    """A value that prints as dots, so that logs and error messages never contain it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Wraps the value."""
        self._value = value

    def reveal(self) -> str:
        """Returns the value. No other method returns it."""
        return self._value

    def __repr__(self) -> str:
        """Returns dots instead of the value."""
        return "••••"

    __str__ = __repr__

    def __reduce__(self) -> str:
        """Raises `TypeError`: a secret must not leave the process in a pickle by accident."""
        message = "a secret cannot be pickled"
        raise TypeError(message)
