"""Validation of values that a database cannot store. The client gets an error that names the field, not a database
failure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, String

from penstock.errors import InvalidError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.types import TypeEngine

LARGE, SMALL = 2**63, 2**31
# SQLAlchemy appends `_1` to the name of a second parameter for the same column.
PARAMETER_SUFFIX = re.compile(r"_\d+$")


def reject_invalid_values(context: ExceptionContext) -> None:
    """Raises `InvalidError` with the field names if invalid values caused a statement to fail."""
    done: Any = context.execution_context
    if done is None or done.compiled is None:
        return
    # DDL statements have no parameters.
    problems = list(_find_invalid_values(getattr(done.compiled, "binds", {}), done.compiled_parameters))
    if problems:
        raise InvalidError(f"{problems[0].path} {problems[0].message}", problems) from None


def _find_invalid_values(binds: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Problem]:
    for row in rows:
        for name, value in row.items():
            if name in binds and (reason := _describe_invalid_value(binds[name].type, value)):
                yield Problem(PARAMETER_SUFFIX.sub("", name), reason)


def _describe_invalid_value(kind: TypeEngine[Any], value: object) -> str | None:
    if isinstance(value, str):
        if "\0" in value or not _is_encodable(value):
            return "must be Unicode text without the character U+0000"
        maximum = kind.length if isinstance(kind, String) else None
        return (
            f"must be at most {maximum} characters long, not {len(value)}" if maximum and len(value) > maximum else None
        )
    if isinstance(value, int) and not isinstance(value, bool):
        end = SMALL if isinstance(kind, Integer) and not isinstance(kind, BigInteger) else LARGE
        return None if -end <= value < end else f"must be between {-end} and {end - 1}"
    return None


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
