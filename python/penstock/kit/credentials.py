"""Credentials within a config: found by the names of their fields, kept apart from what is shown, and put back where their masks come back."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote_plus

import msgspec

from penstock.engine import may_be_secret
from penstock.errors import InvalidError, Problem
from penstock.kit.ids import DOTS, mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
# What of a target decides neither where its credential goes nor for whom: what is not named here does.
BESIDE = frozenset(
    {
        "anthropic_inspect_stream_for_overloaded_error",
        "cache",
        "cb_config",
        "default_params",
        "deployments",
        "drop_params",
        "fetch_integrated_models",
        "forward_headers",
        "name",
        "on_status_codes",
        "override_params",
        "recovery",
        "request_timeout",
        "retry",
        "strategy",
        "strict_open_ai_compliance",
        "targets",
        "weight",
    }
)
# The engine reads no deeper.
DEEPEST = 128
# How many credentials a config may hold.
MOST = 1000
UNKNOWN = (
    "is masked, and stands for no credential that this config had here for this provider; hint: send the credential"
)
SEVERAL = "is masked, and several credentials of this config look like that; hint: send the credential"


class Divided(NamedTuple):
    """A document as it is shown, and what is secret of it by its place."""

    shown: Any
    hidden: dict[Path, str]


class Likeness(NamedTuple):
    """What tells credentials apart that nobody knows: those that differ in it never stand for each other."""

    names: Path
    mask: str
    # What is said of the targets that it is for.
    whom: bytes
    # What stands around it in parameters, where any text may be an address.
    row: bytes


def divide(document: Any) -> Divided:  # noqa: ANN401 - JSON
    """Keep what is secret of a document apart, and show its ends."""
    found = {place: (text, _masked(document, place, text)) for place, text in _texts(document)}
    masks = {place: masked for place, (_, masked) in found.items() if masked is not None}
    return Divided(_replaced(document, masks), {place: found[place][0] for place in masks})


def joined(divided: Divided) -> Any:  # noqa: ANN401 - JSON
    """Put what is secret back to where it stood."""
    return _replaced(divided.shown, divided.hidden)


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


def has_strangers(sent: Any, before: Divided) -> bool:  # noqa: ANN401 - JSON
    """Whether there are masks that nothing looks like: they may be those of an older version."""
    known = _Known(before).places
    return any(likeness not in known for likeness in _asked(sent, _View(sent)))


def restored(path: str, sent: Any, before: Divided, older: Iterable[Divided] = ()) -> Any:  # noqa: ANN401 - JSON
    """Put credentials in the place of their masks; targets may have changed places, and what cannot be told is refused."""
    view, current, earlier = _View(sent), _Known(before), [_Known(one) for one in older]
    masks = {likeness[:2] for known in (current, *earlier) for likeness in known.places}
    texts: dict[Path, str] = {}
    problems: list[Problem] = []
    for likeness, places in _asked(sent, view).items():
        # Older ones are asked for what the last one knows nothing of: it would have told, had it only one.
        knowing = [
            known for known in ([current] if likeness in current.places else earlier) if likeness in known.places
        ]
        found = _agreed([known.matched(view, places, likeness) for known in knowing])
        texts |= found
        # A text under any other name may have dots of its own.
        is_mask = likeness[:2] in masks
        missing = [
            one for one in places if one not in found and (is_mask or _masked(sent, one, likeness.mask) is not None)
        ]
        problems += [Problem(path + _spelled(one), SEVERAL if knowing else UNKNOWN) for one in missing]
    if problems:
        summary = f"{problems[0].path} {problems[0].message}"
        raise InvalidError(summary, problems)
    return _replaced(sent, texts)


class _View:
    """A document whose targets are written down once each."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401 - JSON
        self._document = document
        self.written = cache(self._write)
        self._whom = cache(self._find_whom)
        self._everybody = cache(self._find_everybody)

    def at(self, path: Path) -> Any:  # noqa: ANN401 - JSON
        here = self._document
        for part in path:
            here = here[part]
        return here

    def likeness(self, place: Path) -> Likeness:
        target = place[: _depth(place)]
        inner, text = place[len(target) :], self.at(place)
        if len(inner) == 1:
            return Likeness(inner, text, self._whom(target), b"")
        depth = self._row_depth(target, inner)
        names = tuple(part for part in inner[:depth] if isinstance(part, str)) + inner[depth:]
        return Likeness(names, text, self._everybody(target), self.written(target + inner[:depth]))

    def name(self, target: Path) -> bytes | None:
        name = self.at(target).get("name")
        return None if name is None else _digest(name)

    def _write(self, path: Path) -> bytes:
        return _digest(self.at(path))

    def _row_depth(self, target: Path, inner: Path) -> int:
        """Find the widest part of some parameters that a place is in: a member, or one of a list of them."""
        for depth in (2, 3):
            here = self.at(target + inner[:depth])
            if isinstance(here, str):
                return depth - 1
            if isinstance(here, dict):
                return depth
        return 3

    def _find_whom(self, target: Path) -> bytes:
        above = self._whom(target[:-2]) if target else b""
        said = {
            name: item
            for name, item in self.at(target).items()
            if name not in BESIDE and not _may_be_secret(_plain(name))
        }
        return hashlib.sha256(above + _digest(said)).digest() if said else above

    def _find_everybody(self, target: Path) -> bytes:
        """Tell apart whom parameters reach: all targets below inherit them."""
        return hashlib.sha256(b"".join(sorted({self._whom(end) for end in self._ends(target)}))).digest()

    def _ends(self, target: Path) -> Iterator[Path]:
        below: object = self.at(target).get("targets")
        rows = cast("list[object]", below) if isinstance(below, list) and len(target) < DEEPEST else []
        tables = [index for index, row in enumerate(rows) if isinstance(row, dict)]
        for index in tables:
            yield from self._ends((*target, "targets", index))
        if not tables:
            yield target


class _Known:
    """The credentials of a document by what they look like."""

    def __init__(self, divided: Divided) -> None:
        self._hidden = divided.hidden
        self._view = _View(divided.shown)
        self.places = _grouped(self._view, divided.hidden)

    def matched(self, sent: _View, asked: list[Path], likeness: Likeness) -> dict[Path, str]:
        """Find out which credential each of some masks stands for that look the same, of those that look like them."""
        known = self.places[likeness]
        if text := self._only(known):
            return dict.fromkeys(asked, text)
        # First those whose surroundings are as they were, then those that have a name, then what is left over.
        found = self._alike(known, asked, self._view.written, sent.written)
        left = [place for place in asked if place not in found]
        found |= self._alike(known, left, self._view.name, sent.name)
        used = set(found.values())
        text = self._only([place for place in known if self._hidden[place] not in used])
        return {**dict.fromkeys(asked, text), **found} if text else found

    def _alike(self, known: list[Path], asked: list[Path], before: Telling, now: Telling) -> dict[Path, str]:
        rows: dict[bytes | None, set[Path]] = {}
        for place in known:
            rows.setdefault(before(_target(place)), set()).add(place)
        texts = {said: self._only(places) for said, places in rows.items() if said is not None}
        told = ((place, now(_target(place))) for place in asked)
        is_exact = before == self._view.written
        found = {
            place: self._hidden[place] if is_exact and place in rows[said] else texts[said]
            for place, said in told
            if said in texts
        }
        return {place: text for place, text in found.items() if text is not None}

    def _only(self, places: Iterable[Path]) -> str | None:
        texts = {self._hidden[place] for place in places}
        return texts.pop() if len(texts) == 1 else None


def _asked(sent: Any, view: _View) -> dict[Likeness, list[Path]]:  # noqa: ANN401 - JSON
    return _grouped(view, (place for place, text in _texts(sent) if DOTS in text))


def _grouped(view: _View, places: Iterable[Path]) -> dict[Likeness, list[Path]]:
    found: dict[Likeness, list[Path]] = {}
    for place in places:
        found.setdefault(view.likeness(place), []).append(place)
    return found


def _agreed(answers: Sequence[dict[Path, str]]) -> dict[Path, str]:
    """Leave out what is not told, or told otherwise, by one of them."""
    first, *others = answers or [{}]
    return {place: text for place, text in first.items() if all(other.get(place) == text for other in others)}


def _texts(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - JSON
    if len(path) > DEEPEST:
        return
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _texts(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _texts(item, (*path, index))
    elif isinstance(value, str) and value:
        yield path, value


def _masked(document: Any, place: Path, text: str) -> str | None:  # noqa: ANN401 - JSON
    """Mask a text if it is secret."""
    # Nothing of a strategy is sent.
    if place[_depth(place) :][:1] == ("strategy",):
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
    return any(_may_be_secret(_plain(name)) for name in said if isinstance(name, str))


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
    if not user and not any(name == DOTS or name in IN_ADDRESSES or _may_be_secret(_plain(name)) for name in names):
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
    return any(_says(inner, place) or _masked_address(said) for place, said in _texts(inner))


def _replaced(value: Any, texts: Mapping[Path, str], path: Path = ()) -> Any:  # noqa: ANN401 - JSON
    if path in texts:
        return texts[path]
    if len(path) > DEEPEST:
        return value
    if isinstance(value, dict):
        return {name: _replaced(item, texts, (*path, name)) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_replaced(item, texts, (*path, index)) for index, item in enumerate(cast("list[Any]", value))]
    return value


def _depth(path: Path) -> int:
    """Count the parts of a path that lead to the target that a place is in."""
    depth = 0
    while len(path) > depth + 2 and path[depth] == "targets" and _is_row(*path[depth + 1 : depth + 3]):
        depth += 2
    return depth


def _is_row(index: str | int, member: str | int) -> bool:
    return isinstance(index, int) and isinstance(member, str)


def _target(place: Path) -> Path:
    return place[: _depth(place)]


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()


def _spelled(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
