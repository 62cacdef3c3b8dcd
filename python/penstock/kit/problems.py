"""What the framework says about a body or a query that did not fit, in our words and with the path of each field."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.errors import Problem

UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
MISSING = re.compile(r"Object missing required field `(.+)`")


def problems(extra: object) -> list[Problem]:
    """Read what was wrong, and where."""
    try:
        listed = msgspec.convert(extra, list[dict[str, Any]])
    except msgspec.ValidationError:
        return []
    return [_problem(str(item.get("key", "")), str(item.get("message", ""))) for item in listed]


def summary(found: list[Problem], said: str) -> str:
    """Say the first of it in one sentence."""
    if not found:
        return f"the body cannot be read: {_lower(said)}" if said.startswith(("Input data", "JSON")) else _lower(said)
    return f"{found[0].path} {found[0].message}".strip()


def _problem(path: str, message: str) -> Problem:
    # The body itself is called by the name of the argument that it becomes.
    path = "" if path == "data" else path
    if path == "" and message == "'data'":
        return Problem("", "a body is needed")
    for pattern, words in ((UNKNOWN, "is not known"), (MISSING, "is needed")):
        if found := pattern.match(message):
            return Problem(f"{path}.{found[1]}" if path else found[1], words)
    return Problem(path, _lower(message))


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
