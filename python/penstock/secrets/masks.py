"""What masked credentials of a config stand for when they come back: those that stood there for the same target, or none."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import InvalidError, Problem
from penstock.ids import DOTS
from penstock.secrets.config_credentials import DEEPEST, Divided, depth_of, mask_of, replaced, texts_of
from penstock.secrets.credential_binding import whom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.secrets.config_credentials import Path

    # Tells targets apart.
    Telling = Callable[[Path], bytes | None]

MOVED = (
    "must be sent anew: another place is named for it to go to, and nobody's credential is sent where its owner did not"
)
UNKNOWN = (
    "is masked, and stands for no credential that this config had here for this provider; hint: send the credential"
)
SEVERAL = "is masked, and several credentials of this config look like that; hint: send the credential"


class Likeness(NamedTuple):
    """What tells credentials apart that nobody knows: those that differ in it never stand for each other."""

    names: Path
    mask: str
    # What is said of the targets that it is for.
    whom: bytes
    # What stands around it in parameters, where any text may be an address.
    row: bytes


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
            one for one in places if one not in found and (is_mask or mask_of(sent, one, likeness.mask) is not None)
        ]
        problems += [Problem(path + _spelled(one), SEVERAL if knowing else UNKNOWN) for one in missing]
    if problems:
        summary = f"{problems[0].path} {problems[0].message}"
        raise InvalidError(summary, problems)
    return replaced(sent, texts)


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
        target = place[: depth_of(place)]
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
        said = whom(self.at(target))
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
    return _grouped(view, (place for place, text in texts_of(sent) if DOTS in text))


def _grouped(view: _View, places: Iterable[Path]) -> dict[Likeness, list[Path]]:
    found: dict[Likeness, list[Path]] = {}
    for place in places:
        found.setdefault(view.likeness(place), []).append(place)
    return found


def _agreed(answers: Sequence[dict[Path, str]]) -> dict[Path, str]:
    """Leave out what is not told, or told otherwise, by one of them."""
    first, *others = answers or [{}]
    return {place: text for place, text in first.items() if all(other.get(place) == text for other in others)}


def _target(place: Path) -> Path:
    return place[: depth_of(place)]


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()


def _spelled(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
