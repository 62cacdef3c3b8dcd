"""Patterns of fields hold to the end of a text: to Python `$` also stands before a last line end."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any, get_args, get_type_hints

import msgspec

import penstock

# One of these fits each pattern.
FITTING = ("a", "a@b.test", "https://a.test/v1", "key", "configurations.openai_project")


def structs(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    below = kind.__subclasses__()
    return set(below).union(*map(structs, below))


def patterns(hint: Any) -> set[str]:
    """All patterns within an annotation."""
    own = {meta.pattern for meta in getattr(hint, "__metadata__", ()) if getattr(meta, "pattern", None)}
    return own.union(*map(patterns, get_args(hint)))


def every() -> set[str]:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            importlib.import_module(module.name)
    ours = [kind for kind in structs(msgspec.Struct) if kind.__module__.startswith("penstock")]
    return set().union(*(patterns(hint) for kind in ours for hint in hints(kind)))


def hints(kind: type[msgspec.Struct]) -> list[Any]:
    """The annotations of a table; where a name is there for the checker alone, those that can be read."""
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except NameError:
        return [field.type for field in msgspec.structs.fields(kind)]


def test_no_pattern_of_a_field_lets_a_last_line_end_through():
    found = every()
    assert len(found) >= 5
    for pattern in found:
        fitting = [text for text in FITTING if re.search(pattern, text)]
        assert fitting, f"{pattern} fits none of the texts of this test"
        assert not [text for text in fitting if re.search(pattern, f"{text}\n")], pattern
