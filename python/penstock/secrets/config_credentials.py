"""Credentials within a config: found by the names of their fields, kept apart from what is shown, and put back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote_plus

import msgspec

from penstock.engine import may_be_secret
from penstock.ids import DOTS, mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # Tells targets apart.
    Telling = Callable[[tuple[str | int, ...]], bytes | None]

Path = tuple["str | int", ...]

# Named like credentials, and none.
HARMLESS = frozenset(
    {
        "amz-server-side-encryption-aws-kms-key-id",
        "author",
        "authors",
        "aws-auth-type",
        "aws-s3-object-key",
        "azure-auth-mode",
        "azure-authority-host",
        "bos-token",
        "eos-token",
        "keyword",
        "keywords",
        "pad-token",
        "prompt-cache-key",
        "stop-token",
        "stop-tokens",
        "tokenizer",
        "vertex-auth-type",
        "virtual-key",
    }
)
# As many as are to be sampled.
COUNTS = re.compile(r"max-(.+-)?tokens")
# Names below these are those of a schema's fields: no values stand there.
FIELDS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
# Schemas have one of these, or one of these types.
SCHEMA = frozenset({"$defs", "$ref", "allOf", "anyOf", "definitions", "oneOf", "properties"})
TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Where they stand in a row of a list that has a name beside each value.
NAMES = ("name", "key")
ADDRESS = re.compile(r"([A-Za-z][\w+.-]*://)([^/?#\s]*@)?([^?#\s]*)([?#]\S*)?")
# Secret within addresses alone.
IN_ADDRESSES = frozenset({"code", "pwd", "sig"})
# The engine reads no deeper.
DEEPEST = 128
# How many credentials a config may hold.
MOST = 1000


class Divided(NamedTuple):
    """A document as it is shown, and what is secret of it by its place."""

    shown: Any
    hidden: dict[Path, str]


def divide(document: Any) -> Divided:  # noqa: ANN401 - JSON
    """Keep what is secret of a document apart, and show its ends."""
    found = {place: (text, mask_of(document, place, text)) for place, text in texts_of(document)}
    masks = {place: masked for place, (_, masked) in found.items() if masked is not None}
    return Divided(replaced(document, masks), {place: found[place][0] for place in masks})


def joined(divided: Divided) -> Any:  # noqa: ANN401 - JSON
    """Put what is secret back to where it stood."""
    return replaced(divided.shown, divided.hidden)


def is_same(one: Divided, other: Divided) -> bool:
    """Whether the same is written in both: to Python 1 is true."""
    return msgspec.json.encode(one.shown) == msgspec.json.encode(other.shown) and one.hidden == other.hidden


def write(hidden: Mapping[Path, str]) -> str:
    """Write down what is secret, to be sealed."""
    return msgspec.json.encode([[list(path), text] for path, text in hidden.items()]).decode()


def read(written: str) -> dict[Path, str]:
    """Read what was written down."""
    found = msgspec.json.decode(written, type=list[tuple[list[str | int], str]])
    return {tuple(path): text for path, text in found}


def texts_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - JSON
    """Give every text of a document that is not empty, with its place."""
    if len(path) > DEEPEST:
        return
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from texts_of(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from texts_of(item, (*path, index))
    elif isinstance(value, str) and value:
        yield path, value


def mask_of(document: Any, place: Path, text: str) -> str | None:  # noqa: ANN401 - JSON
    """Mask a text if it is secret."""
    # Nothing of a strategy is sent.
    if place[depth_of(place) :][:1] == ("strategy",):
        return None
    said = _says(document, place)
    if said is None:
        return _masked_address(text) or (mask(text) if _holds_secret(text) else None)
    return mask(text) if said else None


def _says(document: Any, path: Path) -> bool | None:  # noqa: ANN401 - JSON
    """Whether the names on the way to a text say that it is secret, or that nothing there is, or neither."""
    here, above = document, ""
    for depth, name in enumerate(path):
        if isinstance(name, str):
            rest = path[depth + 1 :]
            plain = _plain(name)
            if not (above in FIELDS and rest) and (_may_be_secret(plain) or _is_value(plain, here, rest)):
                return True
            if _is_schema(plain, here[name]):
                return False
        above = name
        here = here[name]
    return None


def is_named_secret(name: str) -> bool:
    """Whether a field of this name holds something secret."""
    return _may_be_secret(_plain(name))


def _may_be_secret(plain: str) -> bool:
    return may_be_secret(plain) and plain not in HARMLESS and not COUNTS.fullmatch(plain)


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _is_value(plain: str, table: Mapping[str, object], rest: Path) -> bool:
    """Whether it is the value of a header field, or stands beside the name of something secret."""
    if plain.endswith("headers"):
        # Header fields are a table, or rows with a value each; any other list has their names.
        return isinstance(next(iter(rest), None), str) or rest[1:2] == ("value",)
    said = (table.get(name) for name in NAMES) if plain == "value" else ()
    return any(is_named_secret(name) for name in said if isinstance(name, str))


def _is_schema(plain: str, value: object) -> bool:
    if not (plain == "parameters" or plain.endswith("schema")) or not isinstance(value, dict):
        return False
    table = cast("dict[str, Any]", value)
    return not SCHEMA.isdisjoint(table) or str(table.get("type")).lower() in TYPES


def _masked_address(text: str) -> str | None:
    """Mask an address if its user or its query is secret; where it leads to is shown."""
    found = ADDRESS.fullmatch(text)
    if found is None:
        return None
    scheme, user, rest, query = (part or "" for part in found.groups())
    names = (unquote_plus(pair.partition("=")[0]) for pair in re.split("[?&#;]", query))
    if not user and not any(name == DOTS or name in IN_ADDRESSES or is_named_secret(name) for name in names):
        return None
    return f"{scheme}{user and DOTS + '@'}{rest}{query and '?' + DOTS}"


def _holds_secret(text: str) -> bool:
    """Whether a text is JSON with something secret in it."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return any(_says(inner, place) or _masked_address(said) for place, said in texts_of(inner))


def replaced(value: Any, texts: Mapping[Path, str], path: Path = ()) -> Any:  # noqa: ANN401 - JSON
    """Put texts in their places, and leave all else as it is."""
    if path in texts:
        return texts[path]
    if len(path) > DEEPEST:
        return value
    if isinstance(value, dict):
        return {name: replaced(item, texts, (*path, name)) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [replaced(item, texts, (*path, index)) for index, item in enumerate(cast("list[Any]", value))]
    return value


def depth_of(path: Path) -> int:
    """Count the parts of a path that lead to the target that a place is in."""
    depth = 0
    while len(path) > depth + 2 and path[depth] == "targets" and _is_row(*path[depth + 1 : depth + 3]):
        depth += 2
    return depth


def _is_row(index: str | int, member: str | int) -> bool:
    return isinstance(index, int) and isinstance(member, str)
