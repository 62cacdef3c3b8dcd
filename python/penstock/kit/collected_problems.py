"""Problems of several checks of one request, so that one response lists them all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import ConflictError, InvalidError, UnknownReferenceError, join_problems
from penstock.schemas import invalid_error

if TYPE_CHECKING:
    from collections.abc import Generator


class CollectedProblems:
    """The errors of checks that do not depend on each other."""

    def __init__(self) -> None:
        """Starts without errors."""
        self._errors: list[InvalidError | UnknownReferenceError | ConflictError] = []

    @contextmanager
    def check(self) -> Generator[None]:
        """Runs the check in a `with` block. Stores its error if the error contains problems with paths; other errors
        are raised at once.
        """
        try:
            yield
        except (InvalidError, UnknownReferenceError, ConflictError) as error:
            if not error.problems:
                raise
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raises the stored error, or one error with the problems of all stored errors, if there are any."""
        if len(self._errors) == 1:
            raise self._errors[0]
        problems = [problem for error in self._errors for problem in error.problems]
        for kind in (UnknownReferenceError, ConflictError):
            if self._errors and all(isinstance(error, kind) for error in self._errors):
                raise kind(join_problems(problems), problems)
        if self._errors:
            raise invalid_error(problems)
