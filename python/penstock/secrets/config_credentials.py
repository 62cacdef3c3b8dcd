"""Credentials within a config. Finds them by field name, separates them from the displayed document, and puts them
back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote_plus

import msgspec

from penstock.engine import is_secret_field
from penstock.ids import MASK_TEXT, mask_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # Returns a digest that identifies a target, or `None` if it has none.
    TargetDigest = Callable[[tuple[str | int, ...]], bytes | None]

JsonPath = tuple["str | int", ...]

# Keywords of a JSON Schema whose objects map field names to schemas. They contain no values.
SCHEMA_FIELD_KEYWORDS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
# Keywords by which a JSON Schema is recognised.
SCHEMA_KEYWORDS = frozenset({"$defs", "$ref", "allOf", "anyOf", "definitions", "oneOf", "properties"})
# Types by which a JSON Schema without one of `SCHEMA_KEYWORDS` is recognised.
SCHEMA_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Fields that contain the name, in a list of name-value pairs.
ROW_NAME_FIELDS = ("name", "key")
URL_PARTS = re.compile(r"([A-Za-z][\w+.-]*://)([^/?#\s]*@)?([^?#\s]*)([?#]\S*)?")
# Names that are secret as query parameters of a URL, but not as fields.
SECRET_QUERY_PARAMS = frozenset({"code", "pwd", "sig"})
# Maximum nesting depth that the engine reads.
MAX_DEPTH = 128
# Maximum number of credentials in one config.
MAX_CREDENTIALS = 1000


class SplitDocument(NamedTuple):
    """A document with masked secrets, and the secrets by their path."""

    masked: Any
    secrets: dict[JsonPath, str]


def split_credentials(document: Any) -> SplitDocument:  # noqa: ANN401 - JSON
    """Separates the secrets of a document from it and masks them there."""
    strings = {path: (text, mask_if_secret(document, path, text)) for path, text in iter_strings(document)}
    masks = {location: masked for location, (_, masked) in strings.items() if masked is not None}
    return SplitDocument(replace_strings(document, masks), {location: strings[location][0] for location in masks})


def join_credentials(divided: SplitDocument) -> Any:  # noqa: ANN401 - JSON
    """Puts the secrets back into the document."""
    return replace_strings(divided.masked, divided.secrets)


def is_same_document(item: SplitDocument, other: SplitDocument) -> bool:
    """Returns true if both encode to the same JSON. Python values are not compared, because `1 == True`."""
    return msgspec.json.encode(item.masked) == msgspec.json.encode(other.masked) and item.secrets == other.secrets


def encode_secrets(hidden: Mapping[JsonPath, str]) -> str:
    """Encodes secrets as JSON text, which is then encrypted."""
    return msgspec.json.encode([[list(path), text] for path, text in hidden.items()]).decode()


def decode_secrets(written: str) -> dict[JsonPath, str]:
    """Decodes the text that `encode_secrets` returned."""
    decoded = msgspec.json.decode(written, type=list[tuple[list[str | int], str]])
    return {tuple(path): text for path, text in decoded}


def iter_strings(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, str]]:  # noqa: ANN401 - JSON
    """Yields each non-empty string of a document with its path."""
    if len(path) > MAX_DEPTH:
        return
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from iter_strings(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from iter_strings(item, (*path, index))
    elif isinstance(value, str) and value:
        yield path, value


def mask_if_secret(document: Any, path: JsonPath, text: str) -> str | None:  # noqa: ANN401 - JSON
    """Returns the mask of a string if it is secret, else `None`."""
    # A `strategy` is never sent to a provider, so nothing in it is masked.
    if path[target_depth(path) :][:1] == ("strategy",):
        return None
    is_secret = _is_secret_by_name(document, path)
    if is_secret is None:
        return _mask_url(text) or (mask_secret(text) if _is_json_with_secret(text) else None)
    return mask_secret(text) if is_secret else None


def _is_secret_by_name(document: Any, path: JsonPath) -> bool | None:  # noqa: ANN401 - JSON
    """Returns true if the names on the path mark the string as secret, false if they rule that out, and `None` if they
    do neither.
    """
    node, above = document, ""
    for depth, name in enumerate(path):
        if isinstance(name, str):
            rest = path[depth + 1 :]
            plain = _normalise_name(name)
            if not (above in SCHEMA_FIELD_KEYWORDS and rest) and (
                is_secret_field(plain) or _is_secret_value(plain, node, rest)
            ):
                return True
            if _is_schema(plain, node[name]):
                return False
        above = name
        node = node[name]
    return None


def _normalise_name(name: str) -> str:
    return name.replace("_", "-").lower()


def _is_secret_value(plain: str, table: Mapping[str, object], rest: JsonPath) -> bool:
    """Returns true for the value of a header, and for the value of a name-value pair whose name is that of a secret."""
    if plain.endswith("headers"):
        # Headers are an object, or a list of rows with a value each. Any other list contains only names of headers.
        return isinstance(next(iter(rest), None), str) or rest[1:2] == ("value",)
    row_names = (table.get(name) for name in ROW_NAME_FIELDS) if plain == "value" else ()
    return any(is_secret_field(name) for name in row_names if isinstance(name, str))


def _is_schema(plain: str, value: object) -> bool:
    if not (plain == "parameters" or plain.endswith("schema")) or not isinstance(value, dict):
        return False
    table = cast("dict[str, Any]", value)
    return not SCHEMA_KEYWORDS.isdisjoint(table) or str(table.get("type")).lower() in SCHEMA_TYPES


def _mask_url(text: str) -> str | None:
    """Masks the user information and the query of a URL if they contain a secret; host and path stay visible. Returns
    `None` if nothing is secret.
    """
    matched = URL_PARTS.fullmatch(text)
    if matched is None:
        return None
    scheme, user, rest, query = (part or "" for part in matched.groups())
    names = (unquote_plus(pair.partition("=")[0]) for pair in re.split("[?&#;]", query))
    if not user and not any(
        name == MASK_TEXT or name in SECRET_QUERY_PARAMS or is_secret_field(name) for name in names
    ):
        return None
    return f"{scheme}{user and MASK_TEXT + '@'}{rest}{query and '?' + MASK_TEXT}"


def _is_json_with_secret(text: str) -> bool:
    """Returns true if a string is JSON that contains a secret."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return any(_is_secret_by_name(inner, path) or _mask_url(value) for path, value in iter_strings(inner))


def replace_strings(value: Any, texts: Mapping[JsonPath, str], path: JsonPath = ()) -> Any:  # noqa: ANN401 - JSON
    """Returns a copy of a document in which the strings at these paths are replaced."""
    if path in texts:
        return texts[path]
    if len(path) > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {
            name: replace_strings(item, texts, (*path, name)) for name, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [replace_strings(item, texts, (*path, index)) for index, item in enumerate(cast("list[Any]", value))]
    return value


def target_depth(path: JsonPath) -> int:
    """Returns the number of path segments that lead to the target that contains this path."""
    depth = 0
    while len(path) > depth + 2 and path[depth] == "targets" and _is_target_field(*path[depth + 1 : depth + 3]):
        depth += 2
    return depth


def _is_target_field(index: str | int, member: str | int) -> bool:
    return isinstance(index, int) and isinstance(member, str)
