"""Regular expressions of msgspec fields match up to the end of the string. In Python, `$` also matches before a
trailing newline.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any, get_args, get_type_hints

import msgspec

import penstock

# Each pattern matches at least one of these.
MATCHING_SAMPLES = ("a", "a@b.test", "https://a.test/v1", "key", "configurations.openai_project", "@a/b", "0" * 64)


def find_subclasses(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    below = kind.__subclasses__()
    return set(below).union(*map(find_subclasses, below))


def patterns_in_annotation(hint: Any) -> set[str]:
    """Returns all patterns within an annotation."""
    own = {meta.pattern for meta in getattr(hint, "__metadata__", ()) if getattr(meta, "pattern", None)}
    return own.union(*map(patterns_in_annotation, get_args(hint)))


def find_field_patterns() -> set[str]:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            importlib.import_module(module.name)
    ours = [kind for kind in find_subclasses(msgspec.Struct) if kind.__module__.startswith("penstock")]
    return set().union(*(patterns_in_annotation(hint) for kind in ours for hint in field_annotations(kind)))


def field_annotations(kind: type[msgspec.Struct]) -> list[Any]:
    """Returns the field annotations of a struct. Falls back to the unresolved ones if a name is imported for type
    checking only.
    """
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except NameError:
        return [field.type for field in msgspec.structs.fields(kind)]


def test_field_patterns_reject_a_trailing_newline():
    field_patterns = find_field_patterns()
    assert len(field_patterns) >= 5
    for pattern in field_patterns:
        fitting = [text for text in MATCHING_SAMPLES if re.search(pattern, text)]
        assert fitting, f"{pattern} fits none of the texts of this test"
        assert not [text for text in fitting if re.search(pattern, f"{text}\n")], pattern
