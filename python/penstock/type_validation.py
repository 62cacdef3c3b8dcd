"""Validation of JSON values against types. Reports all problems with their paths, while msgspec's decoder reports only
the first one.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import inspect

from penstock.errors import MAX_PROBLEMS, Problem, shorten
from penstock.ids import (
    EMAIL_PATTERN,
    HEADER_NAME_PATTERN,
    ID_PATTERN,
    KEY_PREFIX_PATTERN,
    LABEL_NAME_PATTERN,
    SLUG_PATTERN,
    TARGET_FIELD_PATTERN,
    URL_PATTERN,
)
from penstock.similar_names import NameSuggester

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Names of fields whose values may contain a credential, so messages never repeat them.
SECRET_NAME = re.compile(
    r"key|secret|token|password|passphrase|credential|authorization|headers|json|host|url|addr", re.IGNORECASE
)
PATTERN_DESCRIPTIONS = {
    SLUG_PATTERN: "1 to 255 letters, digits, `-` and `_`, and not a UUID",
    ID_PATTERN: "1 to 255 letters, digits, `-` and `_`",
    LABEL_NAME_PATTERN: "letters, digits, `-`, `_` and at most one other character, but not `@`, and neither `latest`, `default` nor digits alone",
    EMAIL_PATTERN: "an e-mail address such as ann@example.com",
    URL_PATTERN: "a URL that begins with http:// or https://",
    HEADER_NAME_PATTERN: "the name of a header",
    KEY_PREFIX_PATTERN: "at most 16 letters and digits",
    TARGET_FIELD_PATTERN: "`key`, or the name of an option such as configurations.aws_secret_access_key",
}
TYPE_DESCRIPTIONS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.DateTimeType: "a time in ISO 8601 such as 2026-01-31T00:00:00Z",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}


class Mode(NamedTuple):
    """Options of a validation: whether `"5"` is rejected for 5, and the source of suggestions for misspelt names."""

    strict: bool
    suggester: NameSuggester


def find_problems(kind: Any, value: object, path: str = "", *, strict: bool = True) -> list[Problem]:  # noqa: ANN401 - any type
    """Returns all problems of a JSON value that must have the type `kind`, at most `MAX_PROBLEMS`. Without `strict`,
    `"5"` is accepted for 5, as the framework does in bodies.
    """
    return list(
        islice(_iter_problems(inspect.type_info(kind), value, path, Mode(strict, NameSuggester())), MAX_PROBLEMS)
    )


def describe_type(kind: Any) -> str:  # noqa: ANN401 - any type
    """Returns the values that a type allows, in words: `an integer from 1 to 365`, `admin or member`."""
    return _describe(inspect.type_info(kind))


def unknown_name(name: str, allowed: Iterable[str], suggester: NameSuggester, subject: str = "field") -> str:
    """Returns the message about an unknown name, with the most similar allowed one and the list of all."""
    names = list(allowed)
    similar = suggester.find(name, names)
    hint = f"did you mean {similar!r}? " if similar else ""
    return f"is an unknown {subject}; {hint}allowed: {', '.join(names) or 'none'}"


def _iter_problems(kind: inspect.Type, value: object, path: str, mode: Mode) -> Iterator[Problem]:
    if isinstance(kind, inspect.Metadata):
        yield from _iter_problems(kind.type, value, path, mode)
    elif isinstance(kind, inspect.UnionType):
        yield from _iter_union_problems(kind, value, path, mode)
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        yield from _iter_struct_problems(kind, cast("dict[str, object]", value), path, mode)
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            yield from _iter_problems(kind.key_type, name, join_path(path, name), mode)
            yield from _iter_problems(kind.value_type, item, join_path(path, name), mode)
        yield from _iter_length_problems(kind, value, path, "entries")
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _iter_problems(kind.item_type, item, f"{path}[{index}]", mode)
        yield from _iter_length_problems(kind, value, path, "items")
    elif not _is_allowed(kind, value, mode):
        yield Problem(path, f"{_show(path, value)} is not allowed: expected {_describe(kind)}")


def _iter_union_problems(kind: inspect.UnionType, value: object, path: str, mode: Mode) -> Iterator[Problem]:
    members = [item.type if isinstance(item, inspect.Metadata) else item for item in kind.types]
    is_dict, is_list = isinstance(value, dict), isinstance(value, list)
    # The members of a union are tried one by one. A member that does not match is no error yet, so it uses no
    # suggestion.
    trial = mode._replace(suggester=NameSuggester(0))
    if any(next(_iter_problems(member, value, path, trial), None) is None for member in members):
        return
    containers = [
        member
        for member in members
        if (is_dict and isinstance(member, inspect.StructType | inspect.DictType))
        or (is_list and isinstance(member, inspect.ListType | inspect.VarTupleType))
    ]
    if containers:
        yield from _iter_problems(containers[0], value, path, mode)
    else:
        yield Problem(path, f"{_show(path, value)} is not allowed: expected {_describe(kind)}")


def _iter_struct_problems(
    kind: inspect.StructType, value: Mapping[str, object], path: str, mode: Mode
) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in kind.fields}
    for name, item in value.items():
        if name in fields:
            yield from _iter_problems(fields[name].type, item, join_path(path, name), mode)
        elif kind.forbid_unknown_fields:
            yield Problem(join_path(path, name), unknown_name(name, fields, mode.suggester))
    for name, field in fields.items():
        if field.required and name not in value:
            yield Problem(join_path(path, name), f"is needed: {_describe(field.type)}")


def _iter_length_problems(kind: Any, value: Any, path: str, items: str) -> Iterator[Problem]:  # noqa: ANN401 - a list or an object
    if not (kind.min_length or 0) <= len(value) <= (len(value) if kind.max_length is None else kind.max_length):
        limits = _describe_range(kind.min_length, kind.max_length)
        yield Problem(path, f"has {len(value)} {items}: expected {limits}")


def _is_allowed(kind: inspect.Type, value: Any, mode: Mode) -> bool:  # noqa: ANN401, PLR0911 - JSON, and one case per type
    match kind:
        case inspect.NoneType():
            return value is None
        case inspect.LiteralType():
            return value in kind.values and not isinstance(value, bool)
        case inspect.StrType():
            return isinstance(value, str) and _is_text_allowed(kind, value)
        case inspect.BoolType():
            return _can_convert(value, bool, mode.strict)
        case inspect.IntType():
            return _can_convert(value, int, mode.strict) and _is_in_range(kind, value)
        case inspect.FloatType():
            return _can_convert(value, float, mode.strict) and _is_in_range(kind, value)
        case inspect.DateTimeType():
            return _can_convert(value, datetime, mode.strict)
        case inspect.StructType() | inspect.DictType() | inspect.ListType() | inspect.VarTupleType():
            return False
        case _:
            # Other types have no checks here: the decoder's own message is used.
            return True


def _can_convert(value: object, kind: type, strict: bool) -> bool:
    """Returns true if the decoder accepts the value."""
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        return False
    return True


def _is_text_allowed(kind: inspect.StrType, value: str) -> bool:
    longest = len(value) if kind.max_length is None else kind.max_length
    if not (kind.min_length or 0) <= len(value) <= longest:
        return False
    return kind.pattern is None or re.search(kind.pattern, value) is not None


def _is_in_range(kind: inspect.IntType | inspect.FloatType, value: object) -> bool:
    number = msgspec.convert(value, float, strict=False)
    lowest, highest = (math.nan if bound is None else float(bound) for bound in (kind.ge, kind.le))
    # A missing bound is NaN, with which each comparison is false.
    return not (number < lowest or number > highest)


def _describe(kind: inspect.Type) -> str:  # noqa: PLR0911 - one case per type
    match kind:
        case inspect.Metadata():
            return _describe(kind.type)
        case inspect.UnionType():
            plain = [item.type if isinstance(item, inspect.Metadata) else item for item in kind.types]
            has_number = any(isinstance(item, inspect.FloatType) for item in plain)
            members = [item for item in plain if not (has_number and isinstance(item, inspect.IntType))]
            return " or ".join(dict.fromkeys(map(_describe, members)))
        case inspect.LiteralType():
            *others, last = map(str, kind.values)
            return f"{', '.join(others)} or {last}" if others else last
        case inspect.IntType():
            return f"an integer{_describe_bounds(kind)}"
        case inspect.FloatType():
            return f"a number{_describe_bounds(kind)}"
        case inspect.StrType():
            return _describe_text(kind)
        case _:
            return TYPE_DESCRIPTIONS.get(type(kind), "another type")


def _describe_text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        return PATTERN_DESCRIPTIONS.get(kind.pattern, "a string of another format")
    if kind.min_length is None and kind.max_length is None:
        return "a string"
    if kind.min_length == 1 and kind.max_length is None:
        return "a string that is not empty"
    return f"a string of {_describe_range(kind.min_length, kind.max_length)} characters"


def _describe_bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return (
            f" from {kind.ge:g} to {kind.le:g}"
            if isinstance(kind, inspect.FloatType)
            else f" from {kind.ge} to {kind.le}"
        )
    words = (("at least", kind.ge), ("at most", kind.le))
    return "".join(f", {word} {bound}" for word, bound in words if bound is not None)


def _describe_range(shortest: int | None, longest: int | None) -> str:
    if shortest and longest is not None:
        return f"{shortest} to {longest}"
    return f"at least {shortest}" if shortest else f"at most {longest}"


def _show(path: str, value: object) -> str:
    """Returns the value as shortened JSON. For objects, lists and values that may be credentials, returns only the
    type.
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str) and SECRET_NAME.search(path):
        return "this string" if value else "an empty string"
    text = repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shorten(text)


def join_path(path: str, name: str) -> str:
    """Returns the path of a field. Clients choose the name, so a long one is cut."""
    return f"{path}.{shorten(name)}" if path else shorten(name)
